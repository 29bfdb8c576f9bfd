"""What the sensors share: look once, then wait here or in the triggerer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseSensorOperator, PokeReturnValue

if TYPE_CHECKING:
    from airflow.sdk import Context


class LookOnceSensor(BaseSensorOperator):
    """A sensor that looks with ``poke``; the subclass sets ``deferrable``."""

    deferrable: bool

    def execute(self, context: Context) -> Any:
        """Look once; then wait here, or in the triggerer where ``deferrable``."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if not found.is_done:
            self._defer()
        return found.xcom_value

    @abstractmethod
    def poke(self, context: Context) -> PokeReturnValue:
        """Look."""

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Take the trigger's answer."""
        if event["error"]:
            raise AirflowFailException(event["error"])
        return event["value"]

    @abstractmethod
    def _defer(self) -> NoReturn:
        """Hand over to the trigger."""

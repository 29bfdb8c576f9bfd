"""What the sensors share: look once, then wait here or in the triggerer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_eos import errors
from airflow_eos.hooks.arguments import CheckedArguments, as_rendered, no_retry_where_useless

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.supervision.progress import BlockedWatch, ProgressWatch, TimeoutWatch
    from airflow_eos.triggers.polling import PollingTrigger


DEFERRABLE = conf.getboolean("operators", "default_deferrable", fallback=False)


class LookOnceSensor(CheckedArguments, BaseSensorOperator):
    """A sensor that looks with ``poke``; its subclasses say what each argument is for."""

    participant_conn_ids: Mapping[str, str] | None = None

    def __init__(
        self,
        *,
        kafka_config_id: str | XComArg = "kafka_default",
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        deferrable: bool = DEFERRABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kafka_config_id: str = as_rendered(kafka_config_id)
        self.storage_conn_id: str | None = as_rendered(storage_conn_id)
        self.storage_options = storage_options
        self.deferrable = deferrable

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

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Take the trigger's answer.

        Raises:
            AirflowFailException: the answer is a failure for good, as a stall is.
            EosError: a trouble that may pass; what ``poke`` would have raised, so that ``retries``
                treat both alike.
        """
        if event.get("raised"):
            with no_retry_where_useless():
                raise getattr(errors, event["raised"])(event["error"])
        if event["error"]:
            raise AirflowFailException(event["error"])
        return event["value"]

    def _settings(self) -> tuple[KafkaSettings, dict[str, str]]:
        """Read the connections: of the cluster, and of the checkpoint's store."""
        from airflow_eos.hooks.kafka import KafkaSettingsHook
        from airflow_eos.hooks.store import CheckpointStoreHook

        store = CheckpointStoreHook(self.storage_conn_id, self.storage_options)
        return KafkaSettingsHook(self.kafka_config_id).settings(), store.options()

    def _reach(self) -> dict[str, Any]:
        """Read the connections of the other participants."""
        from airflow_eos.hooks.store import ParticipantsHook

        return ParticipantsHook(self.participant_conn_ids).reach()

    def _defer(self) -> None:
        """Hand over to the trigger, with the connections' names and nothing of what they hold."""
        self.defer(
            trigger=self._trigger()(
                watch=self._watch().as_dict(),
                kafka_config_id=self.kafka_config_id,
                storage_conn_id=self.storage_conn_id,
                storage_options=self.storage_options,
                participant_conn_ids=self.participant_conn_ids,
                poke_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    @abstractmethod
    def _trigger(self) -> type[PollingTrigger]:
        """Name the trigger that waits for this sensor."""

    @abstractmethod
    def _watch(self) -> ProgressWatch | TimeoutWatch | BlockedWatch:
        """Make what looks, from the arguments; ConfigurationError where they cannot work."""

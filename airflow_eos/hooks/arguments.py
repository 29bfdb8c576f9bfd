"""Checks of the arguments of operators and sensors; failing a task that no retry heals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator, XComArg

from airflow_eos.core.arguments import Argument, arguments_of, is_template
from airflow_eos.errors import NO_RETRY_HEALS
from airflow_eos.hooks.answers import answered
from airflow_eos.hooks.store import mask_secrets

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from airflow_eos.ops.supervision.exit_status import ExitStatus


_OURS = "airflow_eos."
_ASKED = frozenset({"batch_id", "checkpoint_location", "outputs", "plan", "since", "since_batch"})
"""The arguments without which another question is asked, or rows go elsewhere.

A template or another task's output that gives nothing is no such argument left out: a sensor
without its target is done at once."""


@contextmanager
def no_retry_where_useless() -> Iterator[None]:
    """Fail the task at once where only a person can change the answer.

    Everything else (a broker that is away, a pipeline that is still alive, an app that failed)
    is left to the task's own ``retries``.
    """
    try:
        yield
    except NO_RETRY_HEALS as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


@contextmanager
def no_retry_of_what_was_drained(exit_status: ExitStatus | None) -> Iterator[None]:
    """Fail the task for good where a person has drained its app, whatever fails afterwards.

    A retry cannot be told from a person who clears the task to start the app, so it would start it.

    Args:
        exit_status: how the app ended; None where it has not.
    """
    from airflow_eos.ops.supervision.exit_status import ExitKind

    try:
        yield
    except Exception as error:
        if exit_status is None or exit_status.end is not ExitKind.DRAINED:
            raise
        raise AirflowFailException(
            f"The app was drained ({exit_status.found}), and a retry would start it again. What "
            f"failed behind it is {type(error).__name__}: {error}. Look whether something is left "
            "open (airflow-eos plan), or clear the task, which recovers that and starts the app."
        ) from error


class CheckedArguments(BaseOperator):
    """The base of this package's operators: checks each argument by what stands at it.

    Airflow renders a template by setting the attribute anew, so ``__setattr__`` checks both. A
    value that is yet to be rendered (a template, another task's output) is checked when it is. What
    may be another task's output is a template field.
    """

    checkpoint_location: str
    transactional_id_prefix: str | None
    kafka_config_id: str
    storage_conn_id: str | None
    storage_options: Mapping[str, str] | None
    participant_conn_ids: Mapping[str, str] | None
    deferrable: bool

    _is_rendered = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(_OURS):
            own = own_arguments(cls).items()
            cls.template_fields = tuple(name for name, each in own if XComArg in each.others)

    def __setattr__(self, name: str, value: Any) -> None:
        argument = own_arguments(type(self)).get(name)
        if argument is not None:
            value = self._checked(name, value, argument)
        super().__setattr__(name, value)

    def _take(self, given: Mapping[str, Any]) -> None:
        """Set the arguments of this package among the ``locals()`` of an ``__init__``."""
        for name in own_arguments(type(self)):
            if name in given:
                setattr(self, name, given[name])

    def render_template_fields(
        self, context: Context, jinja_env: jinja2.Environment | None = None
    ) -> None:
        """Render the template fields, check all of them, and mask their secrets in logs."""
        self._is_rendered = True
        with no_retry_where_useless():
            answered(super().render_template_fields, context, jinja_env)
            for name in set(self.template_fields) & own_arguments(type(self)).keys():
                setattr(self, name, getattr(self, name))  # also what rendering left as it was
                mask_secrets(getattr(self, name))  # the page of rendered templates shows it

    def _checked(self, name: str, value: Any, argument: Argument) -> Any:
        if value is None and self._is_rendered and name in _ASKED and _waits(getattr(self, name)):
            raise argument.type.refusal(name, value, "what was given has rendered to nothing")
        if _waits(value) and not self._is_rendered:
            if name in self.template_fields:
                return value
            raise argument.type.refusal(name, value, "it is no template field")
        return argument.of(name, value)


@cache
def own_arguments(kind: type) -> Mapping[str, Argument]:
    """Return what stands at the arguments that this package's classes give an operator."""
    found: dict[str, Argument] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith(_OURS) and "__init__" in vars(each):
            found |= arguments_of(vars(each)["__init__"])
    return found


def _waits(value: object) -> bool:
    """Whether the value is, or contains, a template or another task's output."""
    if isinstance(value, Mapping):
        return any(map(_waits, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_waits, value))
    # The argument of a mapped task group is no XComArg, and is resolved as one.
    return hasattr(value, "iter_references") or is_template(value)

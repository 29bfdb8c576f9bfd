"""Is the pipeline getting on?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import PokeReturnValue

from airflow_eos.arguments import Duration, milliseconds, taken
from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.arguments import as_rendered, no_retry_where_useless
from airflow_eos.sensors.deferring import LookOnceSensor

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_eos.supervision.progress import Conclusion, ProgressWatch
    from airflow_eos.triggers.polling import PollingTrigger


class CheckpointProgressSensor(LookOnceSensor):
    """Waits for progress of a checkpoint, and fails with the reason where there will be none.

    A stall is a failure; an idle topic is not a stall. Evidence is Spark's own checkpoint, the
    driver's heartbeat, which is looked at until it was seen to change or to stand still, and, where
    the last commit is old, the ends of the input topics. The table is in
    :mod:`airflow_eos.supervision.progress`.

    With no target it says at once whether the pipeline is well. Give at most one target:

    - ``batch_id``: done once this batch is committed;
    - ``since_batch`` or ``since``: done once a later batch is committed, or once there is nothing
      to read.

    Returns (XCom) ``batch_id``, ``committed_at_ms``, ``health``, ``reason`` and ``alive``.

    Args:
        checkpoint_location: of the pipeline (templated).
        kafka_config_id: connection of the cluster that the pipeline *reads* from (templated).
        max_age: how old the last commit, a running batch or a start may be before it counts as a
            stall; longer than the trigger interval and the longest batch.
        batch_id: target (templated).
        since_batch: target; -1 where none was committed yet (templated).
        since: target, a time with a zone or its ISO form; commits are dated by the clock of the
            checkpoint's store (templated).
        storage_conn_id: connection of the checkpoint's object store, of type ``aws``,
            ``google_cloud_platform`` or ``wasb``; None leaves it to the environment (templated).
        storage_options: further options of that store, such as ``aws_region``; no secrets.
        deferrable: wait in the triggerer, without a worker slot; as ``[operators]
            default_deferrable`` says where it is not given.
    """

    template_fields: Sequence[str] = (
        "checkpoint_location",
        "kafka_config_id",
        "storage_conn_id",
        "batch_id",
        "since_batch",
        "since",
    )
    ui_color = "#cfe8ef"

    def __init__(
        self,
        *,
        checkpoint_location: str | XComArg,
        max_age: Duration = timedelta(minutes=5),
        batch_id: int | str | XComArg | None = None,
        since_batch: int | str | XComArg | None = None,
        since: datetime | str | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_location: str = as_rendered(checkpoint_location)
        self.max_age: timedelta = taken("max_age", max_age)
        self.batch_id: int | None = as_rendered(batch_id)
        self.since_batch: int | None = as_rendered(since_batch)
        self.since: datetime | str | None = as_rendered(since)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look; a suspicion is looked at again after a trigger interval.

        Raises:
            AirflowFailException: the pipeline has stalled, with the reason.
        """
        with no_retry_where_useless():
            watch = self._watch()
            kafka, storage = self._settings()
            first = watch.look(kafka, storage)
            found = watch.conclude(first)
            if found.again_after_s is not None:
                self.log.info(
                    "%s; looking again in %g s", found.value["reason"], found.again_after_s
                )
                time.sleep(found.again_after_s)
                found = watch.conclude(watch.look(kafka, storage), earlier=first)
        if found.error:
            self.stalled(context, found)
        self.log.info("%s", found.value["reason"])
        return PokeReturnValue(found.done, dict(found.value))

    def stalled(self, context: Context, found: Conclusion) -> None:  # noqa: ARG002 - a subclass's
        """Fail; a subclass may do otherwise, and raises too."""
        raise AirflowFailException(found.error)

    def _trigger(self) -> type[PollingTrigger]:
        from airflow_eos.triggers.polling import CheckpointProgressTrigger

        return CheckpointProgressTrigger

    def _watch(self) -> ProgressWatch:
        from airflow_eos.supervision.progress import ProgressWatch

        targets = [self.batch_id, self.since_batch, self.since]
        if sum(target is not None for target in targets) > 1:
            raise ConfigurationError("Give one of batch_id, since_batch and since, not several.")
        return ProgressWatch(
            checkpoint=self.checkpoint_location,
            max_age_ms=milliseconds(self.max_age),
            batch_id=self.batch_id,
            since_batch=self.since_batch,
            since_ms=None if self.since is None else _epoch_ms(self.since),
        )


def _epoch_ms(moment: datetime | str) -> int:
    """The milliseconds of a moment, which has to say its zone: nobody can guess which was meant."""
    import pendulum

    try:
        # tz=None: without it a text that names no zone would silently be taken for UTC
        at = pendulum.parse(moment, tz=None) if isinstance(moment, str) else moment
    except ValueError as error:
        raise ConfigurationError(
            f"since={moment!r} is no time: expected one such as 2026-11-22T06:00:00+01:00."
        ) from error
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ConfigurationError(f"since={moment!s} has no time zone: add one, such as +00:00.")
    return round(at.timestamp() * 1000)

"""Sensors for a checkpoint's progress, transactions that run out of time, and blocked topics."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    conf,
)
from airflow.sdk import BaseSensorOperator, PokeReturnValue, XComArg

from airflow_eos import errors
from airflow_eos.core.arguments import Number, PositiveDuration, Topics, milliseconds
from airflow_eos.core.protocol.decision import one_line
from airflow_eos.errors import ConfigurationError, EosError
from airflow_eos.hooks.arguments import CheckedArguments, no_retry_where_useless
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.ops.supervision.progress import (
        BlockedJudge,
        Conclusion,
        ProgressJudge,
        SeenOpen,
        TimeoutJudge,
    )
    from airflow_eos.triggers.polling import PollingTrigger


DEFERRABLE = conf.getboolean("operators", "default_deferrable", fallback=False)


class LookOnceSensor(CheckedArguments, BaseSensorOperator):
    """The base of the sensors: looks once with ``poke``, then waits here or in the triggerer."""

    participant_conn_ids: Mapping[str, str] | None = None
    trigger_name: str
    """The name of the class in ``triggers.polling`` that waits for this sensor."""
    unanswered: Exception | None = None
    """Why the newest look got no answer."""

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
        self._take(locals())

    def execute(self, context: Context) -> Any:
        """Look once; then wait here, or in the triggerer where ``deferrable``."""
        with self._unanswered_is_no_skip():
            if not self.deferrable:
                return super().execute(context)
            found = self.poke(context)
        if not found.is_done:
            self._defer()
        return found.xcom_value

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Resume after the deferral, and end as a sensor that has not deferred would."""
        with self._unanswered_is_no_skip():
            try:
                return super().resume_execution(next_method, next_kwargs, context)
            except AirflowSensorTimeout as error:
                allowed = self.execution_timeout
                if allowed is None or allowed.total_seconds() >= self.timeout:
                    raise
                raise AirflowTaskTimeout(
                    f"It waited for {allowed}, its execution_timeout."
                ) from error

    @contextmanager
    def _unanswered_is_no_skip(self) -> Iterator[None]:
        """Let ``soft_fail`` skip a stall or a timeout only; a question without an answer fails.

        Airflow's ``soft_fail`` skips every failure for good; and below 3.3 no deferred timeout.
        """
        try:
            yield
        except (AirflowSensorTimeout, AirflowFailException) as found:
            if self.soft_fail and not isinstance(found.__cause__, EosError):
                raise AirflowSkipException(str(found)) from found
            raise
        except AirflowSkipException as skip:
            if self.soft_fail and self.unanswered:  # ``silent_fail`` logs it, until the timeout
                raise self.unanswered from skip
            why = skip.__cause__
            # By its name: the class is in one module in Airflow 3.1 and in another in 3.3.
            died = type(why).__name__ == "TaskDeferralError"  # the trigger died
            if self.soft_fail and why and (died or isinstance(why.__cause__, EosError)):
                raise why from why.__cause__
            raise

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Note that a look gets no answer, and fail at once where no retry gets one."""
        self.unanswered = None
        try:
            with no_retry_where_useless():
                yield
        except Exception as error:
            self.unanswered = error
            raise

    @abstractmethod
    def poke(self, context: Context) -> PokeReturnValue:
        """Look once whether the condition holds."""

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return the value of the trigger's event, or raise its error.

        Raises:
            AirflowFailException: the answer is a failure for good, as a stall is.
            EosError: a failure that may pass, of the class that ``poke`` would have raised, so that
                ``retries`` treat both alike.
        """
        if event.get("raised"):
            with no_retry_where_useless():
                raise getattr(errors, event["raised"])(event["error"])
        if event["error"]:
            raise AirflowFailException(event["error"])
        return event["value"]

    def _settings(self) -> tuple[KafkaSettings, dict[str, str]]:
        """Read the connections: of the cluster, and of the checkpoint's store."""
        store = CheckpointStoreHook(self.storage_conn_id, self.storage_options)
        return KafkaSettingsHook(self.kafka_config_id).settings(), store.options()

    def _reach(self) -> dict[str, Any]:
        """Read the connections of the other participants."""
        return ParticipantsHook(self.participant_conn_ids).reach()

    def _defer(self) -> None:
        """Defer to the trigger, with the ids of the connections and nothing of their contents."""
        from airflow_eos.triggers import polling

        trigger: type[PollingTrigger] = getattr(polling, self.trigger_name)
        self.defer(
            trigger=trigger(
                watch=asdict(self._watch()),
                kafka_config_id=self.kafka_config_id,
                storage_conn_id=self.storage_conn_id,
                storage_options=self.storage_options,
                participant_conn_ids=self.participant_conn_ids,
                poke_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=min(timedelta(seconds=self.timeout), self.execution_timeout or timedelta.max),
        )

    @abstractmethod
    def _watch(self) -> ProgressJudge | TimeoutJudge | BlockedJudge:
        """Make the watch from the arguments; ConfigurationError where they cannot work."""


class CheckpointProgressSensor(LookOnceSensor):
    """Waits for progress of a checkpoint, and fails with the reason where there will be none.

    A stall is a failure; an idle topic is not a stall. Evidence is Spark's own checkpoint, the
    driver's heartbeat, which is looked at until it was seen to change or to stand still, and, where
    the last commit is old, the ends of the input topics. The table is in
    :mod:`airflow_eos.ops.supervision.progress`.

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
        storage_conn_id, storage_options: see :class:`~airflow_eos.operators.PlanRecoveryOperator`.
        deferrable: wait in the triggerer, without a worker slot; as ``[operators]
            default_deferrable`` says where it is not given.
    """

    ui_color = "#cfe8ef"
    trigger_name = "CheckpointProgressTrigger"

    max_age: timedelta
    batch_id: int | None
    since_batch: int | None
    since: datetime | str | None

    def __init__(
        self,
        *,
        checkpoint_location: str | XComArg,
        max_age: PositiveDuration = timedelta(minutes=5),
        batch_id: int | str | XComArg | None = None,
        since_batch: Annotated[int, Number(least=-1)] | str | XComArg | None = None,
        since: datetime | str | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the checkpoint, and again after a trigger interval where a stall is suspected.

        Raises:
            AirflowFailException: the pipeline has stalled, with the reason.
        """
        with self._asking():
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
        """Fail the task with the reason of the stall; a subclass may raise otherwise."""
        raise AirflowFailException(found.error)

    def _watch(self) -> ProgressJudge:
        from airflow_eos.ops.supervision.progress import ProgressJudge

        targets = [self.batch_id, self.since_batch, self.since]
        if sum(target is not None for target in targets) > 1:
            raise ConfigurationError("Give one of batch_id, since_batch and since, not several.")
        return ProgressJudge(
            checkpoint=self.checkpoint_location,
            max_age_ms=milliseconds(self.max_age),
            batch_id=self.batch_id,
            since_batch=self.since_batch,
            since_ms=None if self.since is None else _epoch_ms(self.since),
        )


def _epoch_ms(moment: datetime | str) -> int:
    """Return a time in ms since the epoch; refuse a time without a zone, which is ambiguous."""
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


class TransactionTimeoutSensor(LookOnceSensor):
    """Fires when prepared or open work has less than a part of its timeout left.

    The broker aborts it at the end of its timeout, promised or not; until then every
    ``read_committed`` reader of its partitions waits. So this is the moment for recovery, while
    promised rows need not be replayed yet. Returns (XCom) the open work, the most urgent first:
    ``participant``, ``key``, ``age_ms``, ``timeout_ms`` and ``time_left_ms``.

    While nothing runs out of time the sensor waits until its ``timeout``; with ``soft_fail`` that
    is a skip, which is what a watchdog wants.

    How old the work is, its own system tells: a cluster whose clock may be asked for (Describe on
    Cluster, and KRaft), a database. Elsewhere it counts from where this sensor saw it first, which
    ``mode="reschedule"`` would forget: refused there.

    Args:
        checkpoint_location: of the pipeline, whose participants are all looked at (templated).
        transactional_id_prefix: looked at besides them, where the checkpoint does not name it, as
            before the first start (templated).
        kafka_config_id: connection of the cluster that the pipeline *writes* to (templated).
        part_left: part of the timeout, above 0 and up to 1; 0.5 fires at half time.
        max_age: fires for older work of systems that end nothing by themselves, as Postgres, whose
            prepared transactions hold locks.
        participant_conn_ids, storage_conn_id, storage_options: see
            :class:`~airflow_eos.operators.PlanRecoveryOperator`.
        deferrable: as of :class:`CheckpointProgressSensor`.
    """

    ui_color = "#f4d6cc"
    trigger_name = "TransactionTimeoutTrigger"
    seen: SeenOpen | None = None
    """The open work that this process has seen, for systems that do not tell their time."""

    part_left: float
    max_age: timedelta

    def __init__(
        self,
        *,
        checkpoint_location: str | XComArg | None = None,
        transactional_id_prefix: str | XComArg | None = None,
        part_left: Annotated[float, Number(most=1, whole=False, above=True)] = 0.5,
        max_age: PositiveDuration = timedelta(minutes=10),
        participant_conn_ids: Mapping[str, str] | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look for transactions that run out of time."""
        from airflow_eos.ops.supervision.progress import SeenOpen

        is_forgotten = self.seen is None and self.reschedule and not self.deferrable
        self.seen = self.seen or SeenOpen()
        with self._asking():
            found = self._watch().look(*self._settings(), self._reach(), self.seen)
            if is_forgotten and self.seen.needed:
                raise ConfigurationError(
                    "mode='reschedule': each look is a process of its own, which forgets since "
                    f"when {', '.join(self.seen.needed)} is open, and its system does not tell. "
                    "Expected mode='poke' or deferrable=True."
                )
        for each in found:
            self.log.warning(
                "%s of %s has %d ms left, and is %d ms old",
                one_line(each["key"]),
                one_line(each["participant"]),
                each["time_left_ms"],
                each["age_ms"],
            )
        return PokeReturnValue(bool(found), found or None)

    def _watch(self) -> TimeoutJudge:
        from airflow_eos.ops.supervision.progress import TimeoutJudge

        return TimeoutJudge(
            prefix=self.transactional_id_prefix,
            checkpoint=self.checkpoint_location,
            part_left=self.part_left,
            max_age_ms=milliseconds(self.max_age),
        )


class BlockedTopicSensor(LookOnceSensor):
    """Fires when a transaction, of any program, has held the readers of a topic up for too long.

    Every ``read_committed`` reader of a partition waits for the oldest transaction that is open
    there, whoever wrote it. Returns (XCom) each partition that is held up, as ``airflow-eos blocked
    --json`` has it: the transaction, whose it is by the form of its id, its age and its state, and
    how much each consumer group waits for.

    While nothing is held up the sensor waits until its ``timeout``; with ``soft_fail`` that is a
    skip. Readers that stand still behind what no broker names are a question without an answer.

    Args:
        topics: one or several, looked at whoever writes them (templated).
        max_age: fires for older transactions; longer than a batch of your own takes.
        kafka_config_id: connection of the topics' cluster (templated).
        deferrable: as of :class:`CheckpointProgressSensor`.
    """

    ui_color = "#f4d6cc"
    trigger_name = "BlockedTopicTrigger"

    topics: str | list[str]
    max_age: timedelta

    def __init__(
        self,
        *,
        topics: Topics | XComArg,
        max_age: PositiveDuration = timedelta(minutes=15),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look for transactions that hold readers up."""
        with self._asking():
            found = self._watch().look(self._settings()[0])
        for each in found:
            self.log.warning(
                "readers of %s-%s stand at offset %s: %s transaction %s, %s ms old",
                each["topic"],
                each["partition"],
                each["stable"],
                each["owner"] or "somebody's",
                one_line(each["transactional_id"] or f"of producer {each['producer_id']}"),
                each["age_ms"],
            )
        return PokeReturnValue(bool(found), found or None)

    def _watch(self) -> BlockedJudge:
        from airflow_eos.ops.supervision.progress import BlockedJudge

        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        return BlockedJudge(topics=topics, max_age_ms=milliseconds(self.max_age))

"""Operators that emit an asset event of each settled batch or complete hour exactly once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from airflow.providers.common.compat.sdk import AirflowSkipException, conf
from airflow.sdk import Asset, AssetAlias, XComArg

from airflow_eos import errors
from airflow_eos import events as settled
from airflow_eos.core.arguments import Duration, Instance, PositiveDuration
from airflow_eos.hooks.answers import answered
from airflow_eos.hooks.arguments import CheckedArguments, no_retry_where_useless
from airflow_eos.hooks.deadlines import TaskDeadline
from airflow_eos.hooks.store import checkpoint_of
from airflow_eos.operators.lineage import BatchLineage

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.events import Settled, SettledEvent

_LOOK_BACK = 200
"""How many events are read from Airflow at a time."""
_AT_MOST = 50
"""Most events of one task: Airflow's server stores them singly, and its client waits for 5 s."""
_SKEW = timedelta(hours=1)
"""How far the clocks of two API servers may differ: each stamps the events that it stores."""
_NOTE = "settled"


class EmitSettledBatchesOperator(BatchLineage, CheckedArguments):
    """Emits asset events of settled batches: each batch is in exactly one of them.

    Airflow stores the events of a task in the same transaction as its success, and takes a success
    only of a task that is running, whose row it locks; so one try tells, however many processes
    think that they are it, and however often they ask. (SQLite has no such lock.)
    What was told is read from the events themselves. At most one task instance runs at a time. So
    nothing is missing and nothing comes twice, whoever is killed: see docs/events.md.

    The ``extra`` of an event is that of :meth:`airflow_eos.ops.settled.SettledEvent.as_extra`:
    pipeline, batches, offsets by source, rows by participant, watermark, and a key; and the ``cut``
    after its last batch (docs/cuts.md).

    Put it alone into a DAG with ``schedule="@continuous"``; it defers until something is due. It is
    not mapped: each checkpoint has a task and an asset of its own.

    Args:
        asset: the asset of the events; nothing else may emit events of it.
        checkpoint_location: of the pipeline (templated).
        each_batch: an event for each batch; else one for all that has been settled since the last.
        every: at least so long between two events; batches that come meanwhile are in the next.
        former_emitter: ``dag_id.task_id`` of the task that emitted before this one was renamed.
        kafka_config_id: connection of the cluster, whose servers name topics in OpenLineage's graph
            (templated).
        storage_conn_id, storage_options: see :class:`~airflow_eos.operators.PlanRecoveryOperator`.
        deferrable: wait in the triggerer until something is due; else a task that has nothing to
            tell is skipped. As ``[operators] default_deferrable`` says where it is not given.
        poke_interval: time between two looks of the trigger.
    """

    ui_color = "#e9edc9"

    asset: Asset
    each_batch: bool
    every: timedelta
    former_emitter: str | None
    poke_interval: timedelta

    def __init__(
        self,
        *,
        asset: Annotated[Asset, Instance(kind="Asset")],
        checkpoint_location: str | XComArg,
        each_batch: bool = False,
        every: Duration = timedelta(0),
        former_emitter: str | None = None,
        kafka_config_id: str | XComArg = "kafka_default",
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: PositiveDuration = 5,
        **kwargs: Any,
    ) -> None:
        # An event for each batch of one task goes through an alias: by itself a task has one.
        asset = Instance(kind="Asset").of("asset", asset)
        outlet = AssetAlias(f"{asset.name}.settled") if each_batch else asset
        given = {"inlets": [asset], "outlets": [outlet], "max_active_tis_per_dag": 1}
        super().__init__(**{**kwargs, **given})
        self._take(locals())
        self._told: Sequence[SettledEvent] = ()
        self._stand: Sequence[Any] = ()

    def execute(self, context: Context) -> list[str]:
        """Return the keys of the events that Airflow stores if this task succeeds.

        Raises:
            AirflowSkipException: nothing is due, and it does not wait.
            AirflowFailException: another task emits events of this asset, or the checkpoint is an
                older copy.
            EosError: the checkpoint cannot be read.
        """
        return self._tell(context, TaskDeadline.of(self), has_waited=False)

    def _tell(self, context: Context, deadline: TaskDeadline, *, has_waited: bool) -> list[str]:
        with no_retry_where_useless():
            if getattr(context.get("ti"), "map_index", None) not in (None, -1):
                raise errors.ConfigurationError(
                    "An emitter is not mapped: hours that one pipeline has told would count as "
                    "another's, and Airflow knows neither its asset nor that it runs alone. Make a "
                    "task for each checkpoint, with an asset of its own (a loop in the DAG file)."
                )
            store = checkpoint_of(self)
            pipeline = settled.pipeline_of(store)
            last, told_at = self._last(context, pipeline) if pipeline else (None, None)
            after = None if last is None else last.to_batch
            due_at = told_at + self.every if told_at else None
            left = timedelta(0) if due_at is None else due_at - datetime.now(UTC)
            if self.deferrable and left > timedelta(0) and not has_waited:  # else by a wrong clock
                self._wait(after, due_at, deadline)
            if not self.deferrable and timedelta(0) < left <= self.every:
                raise AirflowSkipException(f"The next event is due at {due_at}.")
            found = self._found(store, last)
            events = self._due(self._events(last, found))
        if not events and self.deferrable:
            self._wait(found.newest, due_at, deadline)  # the newest was looked at, too
        if not events:
            raise AirflowSkipException(f"Nothing was settled after batch {after}.")
        self._emit(context, events)
        self._told = events
        return [event.key for event in events]

    def execute_complete(
        self, context: Context, event: Mapping[str, Any], until_s: float | None = None
    ) -> list[str]:
        """Read the settled batches again and emit: what was read before the wait is old.

        Raises:
            EosError: what the trigger met.
        """
        if event["error"]:
            with no_retry_where_useless():
                raise getattr(errors, event["raised"])(event["error"])
        with TaskDeadline(until_s).kept():
            return self._tell(context, TaskDeadline(until_s), has_waited=True)

    def _found(self, store: CheckpointStore, last: SettledEvent | None) -> Settled:
        at_most = _AT_MOST if self.each_batch else None
        return settled.read_settled(
            store, after=None if last is None else last.to_batch, at_most=at_most
        )

    def _events(self, last: SettledEvent | None, found: Settled) -> tuple[SettledEvent, ...]:
        return settled.events_since(last, found, each_batch=self.each_batch)

    def _due(self, events: Sequence[SettledEvent]) -> Sequence[SettledEvent]:
        """Return the events to emit now; the batches of the others are in a later event."""
        return events

    def _batches_of(self, task_instance: Any, store: CheckpointStore) -> Sequence[SettledEvent]:  # noqa: ARG002 - what it told, however long it waited
        return self._told

    def _last(self, context: Context, pipeline: str) -> tuple[SettledEvent | None, datetime | None]:
        """Return the newest event that Airflow has stored, and when it was stored.

        ``airflow db clean`` may remove events; so the newest event that was seen is noted, too.
        """
        self._stand = stand = _stored_events(context, self.asset, pipeline)
        self._require_alone(stand)
        ours = [each for each in stand if settled.newest_of(pipeline, [each.extra]) is not None]
        last = settled.newest_of(pipeline, [each.extra for each in ours])
        notes = _notes(context, self.asset)
        if notes is not None:
            noted = settled.newest_of(pipeline, [answered(notes.get, _NOTE)])
            if last is not None and (noted is None or noted.to_batch < last.to_batch):
                stored = max((each.extra for each in ours), key=lambda extra: extra["to_batch"])
                # A sign that it told hours, which may be many.
                told = last.as_extra() | {"hours": stored.get("hours", [])[-1:]}
                answered(notes.set, _NOTE, told)
            elif noted is not None and (last is None or last.to_batch < noted.to_batch):
                last = noted
        return last, max((each.timestamp for each in ours), default=None)

    def _require_alone(self, stand: Sequence[Any]) -> None:
        me = f"{self.dag_id}.{self.task_id}"
        for each in stand:
            other = f"{each.source_dag_id}.{each.source_task_id}"
            is_settled = settled.SettledEvent.from_extra(each.extra) is not None
            if is_settled and other not in {me, self.former_emitter}:
                raise errors.ConfigurationError(
                    f"{other} emitted event {each.extra['key']} of asset {self.asset.name!r}, so "
                    f"{me} must not: two emitters would tell batches twice. Keep one of them. If "
                    f"this one has replaced it for good, say former_emitter={other!r}."
                )

    def _wait(self, after: int | None, due_at: datetime | None, deadline: TaskDeadline) -> None:
        from airflow_eos.triggers.settled import SettledBatchesTrigger

        self.defer(
            trigger=SettledBatchesTrigger(
                checkpoint_location=self.checkpoint_location,
                after=after,
                not_before_ms=round(due_at.timestamp() * 1000) if due_at else 0,
                at_most_s=self.every.total_seconds(),
                storage_conn_id=self.storage_conn_id,
                storage_options=self.storage_options,
                poke_interval=self.poke_interval.total_seconds(),
            ),
            method_name="execute_complete",
            kwargs=deadline.kwargs,
            timeout=deadline.left,
        )

    def _emit(self, context: Context, events: Sequence[SettledEvent]) -> None:
        outlet = context["outlet_events"][self.outlets[0]]
        for event in events:
            if self.each_batch:
                outlet.add(self.asset, extra=self._extra(event))
            else:
                outlet.extra = self._extra(event)

    def _extra(self, event: SettledEvent) -> dict[str, Any]:
        """Return what is stored with the event: what it tells, and the cut after its last batch."""
        from airflow_eos.core.checkpoint.cuts import CutLog

        cut = CutLog(checkpoint_of(self)).whole(event.to_batch)
        return event.as_extra() | {"cut": cut and cut.as_json()}


class EmitCompleteHoursOperator(EmitSettledBatchesOperator):
    """Emits an asset event when hours of event time are complete: each hour in exactly one event.

    An hour is complete once the watermark of a settled batch has reached its end, and it is over by
    the clock of the checkpoint's store: readers have the rows of it that were read by then. A query
    without state delivers those that come later all the same. The event is that of
    :class:`EmitSettledBatchesOperator`, about all batches since the one before, and its ``extra``
    has ``hours`` beside: ``["2026-11-25T09"]``, in UTC; several after a pause. From Airflow 3.3 on
    each hour is a partition of the asset: one event each, of the same batches, and a DAG with
    ``PartitionedAssetTimetable`` runs for each. What makes it exactly once is the same.

    ``late`` says how many rows came behind the watermark so far, so that Spark has left them out;
    None where that is not known.

    Args:
        since: the first hour, an instant with its zone: none before it is told, and before the
            first watermark nobody knows which hours had rows. None: the first hour is the one in
            which the first watermark that is told stands.
        **kwargs: of :class:`EmitSettledBatchesOperator`, but for ``each_batch``.
    """

    def __init__(self, *, since: datetime | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.each_batch or (since is not None and getattr(since, "tzinfo", None) is None):
            raise errors.ConfigurationError(
                "Complete hours are told as they come (each_batch is not for them), since an "
                "instant with its zone."
            )
        self.since = since
        self._former_ms: int | None = None

    def _last(self, context: Context, pipeline: str) -> tuple[SettledEvent | None, datetime | None]:
        """Return the newest event; a new checkpoint goes on behind its predecessors' hours."""
        last, told_at = super()._last(context, pipeline)
        extras: list[Any] = []
        if last is None:  # then what Airflow has noted is of a predecessor, as are the events
            notes = _notes(context, self.asset)
            extras = [each.extra for each in self._stand]
            extras += [] if notes is None else [answered(notes.get, _NOTE)]
        hourly = [each for each in extras if isinstance(each, Mapping) and each.get("hours")]
        told = [
            event for event in map(settled.SettledEvent.from_extra, hourly) if event is not None
        ]
        self._former_ms = max((event.watermark_reached_ms or 0 for event in told), default=None)
        return last, told_at

    def _events(self, last: SettledEvent | None, found: Settled) -> tuple[SettledEvent, ...]:
        return settled.events_since(last, found, former_watermark_ms=self._former_ms)

    def _found(self, store: CheckpointStore, last: SettledEvent | None) -> Settled:
        """Read the newest batch alone, until it completes an hour: an hour has many batches."""
        newest = settled.newest_settled(store)
        if newest is not None:
            alone = settled.read_settled(store, after=newest - 1)
            events = self._events(last, alone)
            if not any(self._count(each) or self._is_the_first(each) for each in events):
                return alone
        return self._in_time(super()._found(store, last), last)

    def _in_time(self, found: Settled, last: SettledEvent | None) -> Settled:
        """Keep as many batches as Airflow's server stores the hours of in time, at least one."""

        def hours(count: int) -> int:
            alone = replace(found, batches=found.batches[:count])
            return sum(map(self._count, self._events(last, alone)))

        count = bisect_right(range(1, len(found.batches) + 1), _AT_MOST, key=hours)
        if count < len(found.batches) and not hours(count):
            count += 1
        return replace(found, batches=found.batches[:count])

    def _due(self, events: Sequence[SettledEvent]) -> Sequence[SettledEvent]:
        return [each for each in events if self._hours(each) or self._is_the_first(each)]

    def _hours(self, event: SettledEvent) -> tuple[str, ...]:
        return settled.hours_completed(event, since=self.since)

    def _count(self, event: SettledEvent) -> int:
        from airflow_eos.ops.settled import hours_between

        return len(hours_between(event, since=self.since))

    def _is_the_first(self, event: SettledEvent) -> bool:
        """Whether the event has the first watermark: it completes no hour, and starts the count."""
        return event.watermark_before_ms is None and event.watermark_ms is not None

    def _emit(self, context: Context, events: Sequence[SettledEvent]) -> None:
        from airflow_eos.core.checkpoint.progress import read_state_size

        outlet = context["outlet_events"][self.outlets[0]]
        size = read_state_size(checkpoint_of(self))
        late = None
        if size is not None:
            late = {
                "rows": size.late_rows,
                "counted_batches": size.late_counted,
                "up_to_batch": size.batch_id,
            }
        for event in events:
            hours = list(self._hours(event))
            outlet.extra = self._extra(event) | {"hours": hours, "late": late}
            if hours and hasattr(outlet, "add_partitions"):  # from Airflow 3.3 on
                outlet.add_partitions(hours)


def _stored_events(context: Context, asset: Asset, pipeline: str) -> list[Any]:
    """Return the stored events, back to where no newer one of the pipeline can be; some come twice.

    Airflow gives them by time stamp. A clock that is behind hides the newest event among older
    ones, so the search goes on past the newest by batch, by as much as clocks may differ.
    """
    stood = context["inlet_events"][asset]
    if not hasattr(stood, "ascending"):  # below Airflow 3.2, which gives all that stand at once
        return answered(list, stood)
    stand: list[Any] = []
    before, at_most = None, _LOOK_BACK
    while True:
        asked = stood.ascending(ascending=False).limit(at_most)
        page = answered(list, asked if before is None else asked.before(before.isoformat()))
        stand += page
        if len(page) < at_most:
            return stand
        newest = settled.newest_of(pipeline, [each.extra for each in stand])
        reached = min(each.timestamp for each in page)
        if newest is not None:
            told_at = [
                e.timestamp for e in stand if settled.newest_of(pipeline, [e.extra]) == newest
            ]
            if reached < min(told_at) - _SKEW:
                return stand
        # All of a page can have the stamp that it was asked for, which is included.
        at_most = at_most * 2 if reached == before else _LOOK_BACK
        before = reached


def _notes(context: Context, asset: Asset) -> Any:
    """Return Airflow's state store of an asset; None before Airflow 3.3, which has none."""
    stores: Any = context.get("asset_state_store")
    return None if stores is None else stores[asset]

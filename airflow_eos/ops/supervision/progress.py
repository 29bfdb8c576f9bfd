"""The looks and judgements of the sensors and their triggers; free of Airflow, so both share it."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pendulum

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, read_heartbeat
from airflow_eos.core.checkpoint.backend import HEARTBEAT
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.pipeline import PipelineIdentity
from airflow_eos.core.checkpoint.progress import (
    CheckpointState,
    SourceProgress,
    begun_sources,
    read_state,
)
from airflow_eos.core.checkpoint.snapshot import Snapshot, read_snapshot
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import OpenWork, one_line
from airflow_eos.core.protocol.participant import Participant, TellsTime
from airflow_eos.core.protocol.participant_group import alone
from airflow_eos.core.recovery.execute import watched
from airflow_eos.errors import KafkaUnavailableError, Remedy, TopicError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import LATEST, partitions_of, positions
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import BY_ROW, KIND, as_transaction
from airflow_eos.ops.blocked import (
    MARKER_MISSING,
    Blocked,
    BlockedPartition,
    find_blocked,
    next_step,
)
from airflow_eos.ops.tables import duration

log = Log(__name__)
_MARGIN_MS = 5_000
"""Time beyond the trigger interval for a batch to be planned before a stall is confirmed."""


class Health(enum.Enum):
    """The health of a pipeline, by the evidence of one look."""

    FRESH = "fresh"
    WORKING = "working"
    IDLE = "idle"
    SUSPECT = "suspect"
    STALLED = "stalled"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class ProgressReading:
    """One look at a checkpoint.

    Attributes:
        unread: how many offsets are still to be read; None where that is not known.
        now_ms: when the newest heartbeat was written, by the store's clock.
        alive: whether the heartbeat was seen to change; None where there was no second look.
    """

    state: CheckpointState
    heartbeat: Heartbeat | None
    unread: int | None
    now_ms: int
    alive: bool | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The health of a pipeline, and the reason in one sentence."""

    health: Health
    reason: str


def judge(
    seen: ProgressReading, *, max_age_ms: int, earlier: ProgressReading | None = None
) -> Finding:
    """Judge the health of the pipeline; ``earlier`` is the look that suspected a stall.

    Args:
        max_age_ms: how old a commit, a batch in flight or a start may be, in ms.
        earlier: an observation at least :func:`confirm_after_ms` older.
    """
    state, heartbeat = seen.state, seen.heartbeat
    if silent := why_not_at_work(seen):
        return Finding(Health.STALLED, f"{_last(seen)}: {silent}")
    assert heartbeat is not None  # noqa: S101 - no heartbeat is silence
    if seen.alive is None:
        return Finding(
            Health.UNKNOWN,
            f"{_last(seen)}: whether driver {heartbeat.application_id} is alive shows at a second "
            "look",
        )
    if state.committed_at_ms is not None and seen.now_ms - state.committed_at_ms <= max_age_ms:
        age = _age(seen, state.committed_at_ms)
        return Finding(Health.FRESH, f"batch {state.latest_commit} was committed {age} ago")
    since = _since(seen)
    started_ms = heartbeat.beat_at_ms - heartbeat.started_at_ms
    if started_ms <= max_age_ms:
        return Finding(Health.WORKING, f"the driver started {in_words(started_ms)} ago")
    if state.in_flight is not None and state.planned_at_ms is not None:
        age = _age(seen, state.planned_at_ms)
        young = seen.now_ms - state.planned_at_ms <= max_age_ms
        return Finding(
            Health.WORKING if young else Health.STALLED,
            f"{since}: batch {state.in_flight} is in flight for {age}, phase {heartbeat.phase!r}",
        )
    return _waiting(seen, since, earlier)


def confirm_after_ms(seen: ProgressReading) -> int:
    """Return how long a suspicion must last before it is a stall, in ms."""
    return _MARGIN_MS + (seen.heartbeat.trigger_ms if seen.heartbeat else 0)


def _waiting(seen: ProgressReading, since: str, earlier: ProgressReading | None) -> Finding:
    """Judge a living driver with no batch in flight by the offsets that are unread."""
    if not seen.unread:
        what = "nothing to read" if seen.unread == 0 else "nothing in flight"
        return Finding(Health.IDLE, f"{since}, with {what}")
    committed_ms = seen.state.committed_at_ms
    if committed_ms is not None and seen.now_ms - committed_ms <= confirm_after_ms(seen):
        return Finding(Health.WORKING, f"{since}: by its trigger no batch is overdue")
    reason = f"{since}, although {seen.unread} offsets are unread"
    unmoved = (
        earlier is not None
        and bool(earlier.unread)
        and earlier.state.latest_offsets == seen.state.latest_offsets
    )
    return Finding(Health.STALLED if unmoved else Health.SUSPECT, reason)


def why_not_at_work(seen: ProgressReading) -> str:
    """Return why the driver is not at work, by the last heartbeat; empty where it is."""
    heartbeat = seen.heartbeat
    if heartbeat is None:
        return "no driver has ever written a heartbeat"
    if heartbeat.phase == "failed":
        return "the driver failed" + _why(": ", heartbeat.reason)
    if heartbeat.phase == "stopped":
        who, reason = heartbeat.drained_by, heartbeat.reason or ""
        return "the driver stopped" + (
            "" if who is None else f", drained by {asked_by(who, reason)}"
        )
    if seen.alive is False:
        return (
            f"driver {heartbeat.application_id} on {heartbeat.host} has fallen silent in phase "
            f"{heartbeat.phase!r}"
        )
    return ""


_ASKED_AT = {"page": "on the page of pipelines", "cli": "at a command line"}
_NO_REASON = {"asked on the pipelines page", "asked by hand"}


def asked_by(who: str, reason: str) -> str:
    """Say who has asked a driver to stop, where and why; a heartbeat's reason begins with who."""
    tp, _, name = who.partition(" ")
    said = f"{name} {_ASKED_AT[tp]}" if tp in _ASKED_AT else who
    why = reason.removeprefix(f"{who}: ")
    return said if why in _NO_REASON or not why else f"{said}: {why}"


def _why(before: str, reason: str | None) -> str:
    return f"{before}{reason}" if reason else ""


def _last(seen: ProgressReading) -> str:
    """Name the last committed batch, without its age, which may not be known."""
    if seen.state.committed_at_ms is None:
        return "no batch was ever committed"
    return f"batch {seen.state.latest_commit} is its last"


def _since(seen: ProgressReading) -> str:
    if seen.state.committed_at_ms is None:
        return "no batch was ever committed"
    return f"no commit for {_age(seen, seen.state.committed_at_ms)}"


def _age(seen: ProgressReading, at_ms: int) -> str:
    return in_words(seen.now_ms - at_ms)


def in_words(span_ms: int) -> str:
    """Return a span of time in words, as "2 minutes 3 seconds"."""
    # Stores tell whole seconds.
    return pendulum.duration(seconds=max(1, round(span_ms / 1000))).in_words()


_TIMEOUT_S = 30.0


def unread_offsets(kafka: KafkaSettings, sources: Sequence[SourceProgress]) -> int | None:
    """Count the offsets between what was planned last and what a reader could read now.

    The end is the last stable offset: rows of a transaction that is still open upstream cannot be
    read, so they are no reason to call a pipeline stalled. An upper bound of rows. None where a
    source is not Kafka, or nothing was ever planned.

    Raises:
        KafkaUnavailableError: the cluster did not answer.
        TopicError: an input topic is gone, or ends before what was read of it.
    """
    if not sources or any(source.end is None for source in sources):
        return None
    with ConnectionPool(kafka) as wire:
        return sum(_unread(wire, source.end or {}) for source in sources)


def _unread(wire: ConnectionPool, read: dict[str, dict[int, int]]) -> int:
    partitions = partitions_of(wire, read)
    # A partition that the query has not seen yet counts from its beginning.
    at = {(topic, partition): read[topic].get(partition, 0) for topic, partition in partitions}
    ends = positions(wire, partitions, LATEST)
    past = [
        each for each in partitions if ends[each] < at[each]
    ]  # the query reads uncommitted rows
    for each, end in positions(wire, past, LATEST, committed_only=False).items():
        if end < at[each]:
            raise TopicError(
                f"Partition {each[1]} of input topic {each[0]!r} ends at offset {end}, and the "
                f"query has read it up to {at[each]}: the topic was deleted and made again, or has "
                "lost rows. How much is unread is not known.",
                Remedy(change="look at the app's last error, which says how to go on", start=True),
            )
    return sum(max(0, ends[each] - at[each]) for each in partitions)


_AGAIN_S = 1.0

HELD_UP_AFTER_MS = 60_000
"""The age from which a transaction counts: every running batch holds readers up for a while."""

_ENDS_BY = {
    "recover": "recover CHECKPOINT",
    "hanging": "hanging {topic}",
    "wait": "its timeout, in {left}",
    "ending": "its coordinator, once all its partitions have a leader",
    "ask": "its writer",
}


def held_up(
    kafka: KafkaSettings, store: CheckpointStore, *, deadline_s: float = _TIMEOUT_S
) -> Blocked:
    """Find the transactions that hold readers of a pipeline's input or output topics up.

    Raises:
        TopicError: a topic is gone, or may not be read.
        KafkaUnavailableError: some broker did not answer.
        CheckpointError: the checkpoint does not tell which topics these are.
    """
    found = read_snapshot(store)
    read = {topic for source in found.state.sources for topic in source.end or ()}
    with ConnectionPool(kafka) as wire:
        topics = read | _written(found, wire.cluster_id)
        if not topics:
            return Blocked(())
        return find_blocked(
            wire, topics, older_than_ms=HELD_UP_AFTER_MS, groups=False, deadline_s=deadline_s
        )


def _written(found: Snapshot, cluster_id: str) -> set[str]:
    """Return the topics of this cluster that the outputs, or else the newest decisions, name."""
    here = outputs_of(found.pipeline, cluster_id)
    decided = {
        written.topic
        for decision in found.decisions
        for work in decision.works
        if work.kind == KIND and work.participant in here
        for written in as_transaction(work).written
    }
    return decided | {topic for topic in here.values() if topic != BY_ROW}


def outputs_of(pipeline: PipelineIdentity | None, cluster_id: str) -> dict[str, str]:
    """Return the topic of each output of a pipeline on that cluster; ``BY_ROW``: its rows say."""
    return {
        each.name: each.target.removeprefix(f"{KIND}:")
        for each in (pipeline.participants if pipeline else ())
        if each.kind == KIND and each.address.get("cluster_id") == cluster_id
    }


def held_up_sentence(each: BlockedPartition) -> str:
    """Return a sentence on the transaction that holds the readers of a partition up."""
    name = each.transactional_id or f"of producer {each.producer_id}"
    owner = f" ({each.owner})" if each.owner else ""
    return one_line(
        f"readers of {each.topic}-{each.partition} stand at offset {each.stable:,}, "
        f"{each.end - each.stable:,} before its end, behind transaction {name}{owner}: "
        f"{each.standing}, {duration(each.age_ms)} old; what ends it: {ends_by(each)}"
    )


def ends_by(each: BlockedPartition) -> str:
    """Return what ends the transaction that holds the readers of a partition up."""
    left = duration(each.ends_in_ms)
    said = _ENDS_BY[next_step(each)].format(topic=each.topic, left=left)
    # Its coordinator has ended it: no need to wait until it is older than any other can become.
    return f"{said} --older-than 0" if each.state == MARKER_MISSING else said


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A sensor's conclusion from a look: done, failed (``error``), or neither: look again later.

    ``again_after_s`` asks for a second look, sooner than the sensor's own interval.
    """

    done: bool = False
    error: str | None = None
    value: Mapping[str, Any] = field(default_factory=dict)
    again_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProgressJudge:
    """The judge of one checkpoint by at most one target; without one, for any progress at all.

    Attributes:
        max_age_ms: see :func:`airflow_eos.ops.supervision.progress.judge`.
        batch_id: done once this batch is committed.
        since_batch: done once a later batch is committed, or the pipeline is idle.
        since_ms: done once a batch was committed after this time, or the pipeline is idle.
    """

    checkpoint: str
    max_age_ms: int
    batch_id: int | None = None
    since_batch: int | None = None
    since_ms: int | None = None

    def look(self, kafka: KafkaSettings, storage: Mapping[str, str]) -> ProgressReading:
        """Read the checkpoint, and the input topics' ends only where the pipeline seems idle.

        Whether the driver is alive takes a second look: after one of its intervals, or three.

        ``storage`` is for the checkpoint's store. It may hold secrets, so no watch keeps it.
        """
        store = CheckpointStore.open(self.checkpoint, storage_options=storage)
        alive = bool(signs_of_life(store))
        state, heartbeat, written = read_state(store), read_heartbeat(store), store.head(HEARTBEAT)
        seen = ProgressReading(
            state, heartbeat, None, written.modified_at_ms if written else 0, alive
        )
        if judge(seen, max_age_ms=self.max_age_ms).health is not Health.IDLE:
            return seen
        # A driver whose first plan hangs has planned nothing either: what it has to read tells.
        return replace(seen, unread=unread_offsets(kafka, state.sources or begun_sources(store)))

    def conclude(self, seen: ProgressReading, earlier: ProgressReading | None = None) -> Conclusion:
        """Compare an observation with the target."""
        finding = judge(seen, max_age_ms=self.max_age_ms, earlier=earlier)
        value = {
            "batch_id": seen.state.latest_commit,
            "committed_at_ms": seen.state.committed_at_ms,
            "health": finding.health.value,
            "reason": finding.reason,
            "alive": seen.alive,
        }
        if self._reached(seen, finding):
            return Conclusion(done=True, value=value)
        if finding.health is Health.STALLED:
            return Conclusion(error=f"{self.checkpoint} has stalled: {finding.reason}", value=value)
        suspect = finding.health is Health.SUSPECT
        again_after_s = confirm_after_ms(seen) / 1000 if suspect else None
        return Conclusion(value=value, again_after_s=again_after_s)

    def _reached(self, seen: ProgressReading, finding: Finding) -> bool:
        state = seen.state
        if self.batch_id is not None:
            return state.latest_commit is not None and state.latest_commit >= self.batch_id
        for target, reached in (
            (self.since_batch, state.latest_commit),
            (self.since_ms, state.committed_at_ms),
        ):
            if target is not None:
                is_later = reached is not None and reached > target
                return is_later or finding.health is Health.IDLE
        return finding.health in {Health.FRESH, Health.WORKING, Health.IDLE}


class SeenOpen:
    """The least age of open work: since when the reader saw it, by one clock of the reader's.

    Args:
        since: when earlier looks first saw open work, by its name.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        since: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._clock, self.since = clock, dict(since)
        self.needed: list[str] = []
        """The open work of the last look whose system does not tell its age."""

    def lasts_ms(self, listed: Sequence[OpenWork]) -> list[int]:
        """Return how long each listed work was seen, in ms; forget unlisted work: it ended."""
        now = self._clock()
        self.since = {name: self.since.get(name, now) for name in map(_name, listed)}
        return [round(1000 * (now - self.since[_name(each)])) for each in listed]


def _name(work: OpenWork) -> str:
    return f"{work.participant} {work.key}"


@dataclass(frozen=True, slots=True)
class TimeoutJudge:
    """The judge of open work that runs out of time.

    Attributes:
        prefix: prefix of the transactions, where the checkpoint does not name it.
        checkpoint: location; all its participants are looked at; None: ``prefix`` alone.
        part_left: work with less than this part (0 to 1) of its timeout left is found.
        max_age_ms: work older than this is found where its system ends nothing by itself.
    """

    prefix: str | None
    checkpoint: str | None
    part_left: float
    max_age_ms: int

    def look(
        self,
        kafka: KafkaSettings,
        storage: Mapping[str, str],
        reach: Mapping[str, Any] | None = None,
        seen: SeenOpen | None = None,
    ) -> list[dict[str, Any]]:
        """Return the open work that runs out of time or is too old, the most urgent first.

        The system that dated the work tells its age. Where a system does not tell its time, the
        work is as old as ``seen`` has seen it, and 0 at the first look.

        Raises:
            ConfigurationError: no prefix was given and the checkpoint names no participant, or
                nothing says how to reach one of them.
        """
        store = None
        if self.checkpoint is not None:
            store = CheckpointStore.open(self.checkpoint, storage_options=storage)
        with closing(watched(store, kafka, reach=reach, prefix=self.prefix)) as participant:
            told = [aged for each in alone(participant) for aged in _aged(each)]
        seen = seen or SeenOpen()
        lasts_ms = seen.lasts_ms([work for work, _ in told])
        seen.needed = [_name(work) for work, age_ms in told if age_ms is None]
        ages = [
            (work, least_ms if age_ms is None else age_ms)
            for (work, age_ms), least_ms in zip(told, lasts_ms, strict=True)
        ]
        found = [
            {
                "participant": work.participant,
                "key": work.key,
                "age_ms": age_ms,
                "timeout_ms": work.timeout_ms,
                "time_left_ms": self._left_ms(work, age_ms),
            }
            for work, age_ms in ages
            if self._left_ms(work, age_ms) < self.part_left * (work.timeout_ms or 0)
        ]
        return sorted(found, key=lambda each: each["time_left_ms"])

    def _left_ms(self, work: OpenWork, age_ms: int) -> int:
        """Return the ms until the system ends the work, or until ``max_age_ms`` where none does."""
        return (self.max_age_ms if work.timeout_ms is None else work.timeout_ms) - age_ms


def _aged(participant: Participant) -> list[tuple[OpenWork, int | None]]:
    """List a participant's open work with its age in ms, or None where the system tells no time."""
    listed = participant.open()
    if not listed or not hasattr(participant, "clock_ms"):
        return [(each, None) for each in listed]
    now_ms = cast("TellsTime", participant).clock_ms()
    return [(each, None if now_ms is None else now_ms - each.opened_at_ms) for each in listed]


@dataclass(frozen=True, slots=True)
class BlockedJudge:
    """The judge of transactions, of any program, that hold the readers of topics up.

    Attributes:
        max_age_ms: transactions older than this are found.
    """

    topics: tuple[str, ...]
    max_age_ms: int

    def look(self, kafka: KafkaSettings) -> list[dict[str, Any]]:
        """Return each partition that is held up, as ``airflow-eos blocked --json`` has it.

        Raises:
            TopicError: a topic does not exist, or may not be read.
            KafkaUnavailableError: some broker did not answer, or readers stand still behind what no
                broker names, and nothing else is found.
        """
        with ConnectionPool(kafka) as wire:
            found = self._found(wire)
            if found.unnamed and not found.partitions:
                time.sleep(_AGAIN_S)  # a transaction may just end
                stood, found = set(found.unnamed), self._found(wire)
                if not found.partitions and (unnamed := stood.intersection(found.unnamed)):
                    raise KafkaUnavailableError(
                        f"Nobody can tell {'; '.join(sorted(unnamed))}. Whether they are held up "
                        "for too long is not known.",
                        Remedy(change="look at the leader of the partition, and ask again"),
                    )
        for what in (*found.unnamed, *found.untold):
            log.warning("what_holds_readers_up_is_not_known", what=what)
        told: list[dict[str, Any]] = msgspec.to_builtins(found.partitions)
        return told

    def _found(self, wire: ConnectionPool) -> Blocked:
        return find_blocked(wire, set(self.topics), older_than_ms=self.max_age_ms)

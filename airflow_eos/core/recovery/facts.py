"""The planner's facts, read in the order on which the proof rests; and whether a driver lives.

First the open work is listed, then the checkpoint and the decisions are read. Work that was open at
the listing therefore belongs to the newest batch that is read afterwards, or to an older one, and
work that no decision names once the next attempt is sealed can never be named.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.backend import HEARTBEAT
from airflow_eos.core.checkpoint.heartbeat import ENDED, beat_interval, read_heartbeat
from airflow_eos.core.checkpoint.liveness import last_word
from airflow_eos.core.checkpoint.rulings import with_rulings
from airflow_eos.core.checkpoint.snapshot import admitted, lookalikes, read_snapshot
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.core.checkpoint.terms import newest_term
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.core.protocol.group import alone
from airflow_eos.core.protocol.promise import Promise, PromisedWork, named_by
from airflow_eos.errors import CheckpointFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_eos.core.checkpoint.heartbeat import Heartbeat
    from airflow_eos.core.checkpoint.pipeline import PipelineIdentity
    from airflow_eos.core.checkpoint.progress import CheckpointState
    from airflow_eos.core.checkpoint.rulings import Acceptance
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Decision, OpenWork, PreparedWork, WorkIdentity
    from airflow_eos.core.protocol.participant import Admission, Member, Participant

# --- driver liveness ------------------------------------------------------------------------------
# Is a driver still running this pipeline? Seen by the reader's own clock: yes, no, or not known.
#
# Times in a heartbeat and of a file are by the driver's clock and the store's; clocks of two
# machines differ. So no clock is compared with them: a driver lives whose heartbeat, or progress,
# was seen to change between two looks, and is dead once it was seen to stand still for three of its
# intervals. One look alone cannot tell, unless the driver has said itself that it ended.
#
# Evidence for people, sensors and the refusal of recovery. Nothing here is needed for correctness:
# a live pipeline that is recovered all the same loses its running attempt and never its rows.


MISSED_BEATS = 3
"""The number of its own intervals without a heartbeat after which a driver counts as dead."""

UNTOLD_INTERVAL_S = 2.0
"""The interval in which a driver is taken to beat whose heartbeat has not told one yet."""

_LOOK_S = 0.5
_RECENT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sign:
    """One look at all that changes while a driver runs: heartbeat, term, Spark's newest files."""

    heartbeat: Heartbeat | None
    term: int
    planned: int | None = None
    committed: int | None = None
    gone: str | None = None
    """The evidence that the driver's process is gone: see ``checkpoint.liveness``."""
    unread: bytes | None = None
    """What stands in the place of a heartbeat and cannot be read: damaged, or of another release.
    It says nothing, but that somebody lives where it is seen to change."""
    usual_s: float = UNTOLD_INTERVAL_S

    @property
    def current(self) -> Heartbeat | None:
        """The heartbeat, if it is the newest driver's: a former driver may go on beating."""
        beat = self.heartbeat
        return beat if beat is None or beat.term is None or beat.term >= self.term else None

    @property
    def is_over(self) -> bool:
        """Whether this look alone tells that no driver runs: none ever has, or the newest ended.

        A batch that is planned where no driver of ours has left a trace is another program's.
        """
        if self.heartbeat is None:
            return self.term == 0 and self.planned is None and self.unread is None
        return self.current is not None and self.current.phase in ENDED

    def is_as(self, other: Sign | None) -> bool:
        """Whether nothing that the newest driver would change has changed since ``other``."""
        return other is not None and self.own == other.own and not _is_written_anew(other, self)

    @property
    def own(self) -> tuple[object, ...]:
        """The values that only the newest driver changes."""
        return self.current, self.term, self.planned, self.committed

    @property
    def silent_after_s(self) -> float:
        """The seconds without a change after which the driver counts as dead."""
        untold_s = self.usual_s if self.term else UNTOLD_INTERVAL_S
        beat = self.heartbeat
        return MISSED_BEATS * (beat.interval_ms / 1000 if beat else untold_s)


def _is_written_anew(last: Sign, sign: Sign) -> bool:
    return None not in (last.unread, sign.unread) and last.unread != sign.unread


def read_sign(store: CheckpointStore) -> Sign:
    """Look at the checkpoint once for signs of a driver.

    Raises:
        StoreError: no answer, which says nothing of the driver.
        CheckpointFormatError: something foreign stands among terms, or in Spark's log.
    """
    log = SparkLog(store)
    planned, committed = log.newest("offsets"), log.newest("commits")
    beat, unread = None, None
    try:
        beat = read_heartbeat(store)
    except CheckpointFormatError:
        unread = store.get(HEARTBEAT)
    return Sign(
        heartbeat=beat,
        term=newest_term(store),
        planned=int(planned.name) if planned else None,
        committed=int(committed.name) if committed else None,
        unread=unread,
        usual_s=beat_interval(store.location).total_seconds(),
    )


def with_its_end(store: CheckpointStore, sign: Sign) -> Sign:
    """Return a look with the evidence that the newest driver's process is gone, if there is any."""
    if sign.current is None:
        return sign
    beat, gone = last_word(store, sign.current)
    return replace(sign, heartbeat=beat, gone=gone)


class LifeWatch:
    """A watch over one checkpoint's driver, which compares each look with the one before.

    Args:
        clock: returns seconds; need not be a time of day.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seen: Sign | None = None
        """The last look, with the newest heartbeat that could be read."""
        self._looked_at = 0.0
        self._signs: tuple[str, ...] = ()
        self.silent_s = 0.0
        """The seconds for which the driver was seen to stand still."""

    def hold(self, sign: Sign) -> tuple[str, ...] | None:
        """Return why the pipeline is alive, a sentence each; empty: it is not; None: not known."""
        now, last = self._clock(), self.seen
        if sign.heartbeat is None and last is not None and sign.term == last.term:
            # What is not there, or cannot be read, says nothing: silence is counted on.
            sign = replace(sign, heartbeat=last.heartbeat)
        gap_s, self.seen, self._looked_at = now - self._looked_at, sign, now
        if sign.is_over:
            self._signs, self.silent_s = _changes(last, sign), 0.0
            return self._signs
        if sign.gone is not None:
            self._signs, self.silent_s = (), 0.0
            return ()
        if last is None:
            return None
        if not sign.is_as(last):
            # A change at some time of a long pause says little of now.
            recent = gap_s <= max(_RECENT_S, sign.silent_after_s)
            self._signs, self.silent_s = _changes(last, sign) if recent else (), 0.0
            return self._signs or None
        # A watcher that slept has not seen the driver be silent meanwhile.
        self.silent_s += min(gap_s, sign.silent_after_s / MISSED_BEATS)
        if self.silent_s >= sign.silent_after_s:
            self._signs = ()
            return ()
        return self._signs or None


_FOUND_SILENT: dict[str, Sign] = {}
"""By location, the look that this process has seen to stand still for long enough. As long as a new
one equals it, nobody need wait again."""


def signs_of_life(
    store: CheckpointStore,
    *,
    within_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, ...] | None:
    """Look until it is known whether the pipeline is alive; return why, or nothing if it is dead.

    A live pipeline takes one of its intervals, a dead one three, and none where its process is seen
    from here to be gone.

    Args:
        store: the checkpoint.
        within_s: seconds after which None is returned if it is not known; None: look on.
        sleep: waits for so many seconds.
        clock: returns seconds.
    """
    watch, until = LifeWatch(clock), None if within_s is None else clock() + within_s
    while True:
        sign = with_its_end(store, read_sign(store))
        signs = () if sign.is_as(_FOUND_SILENT.get(store.location)) else watch.hold(sign)
        if signs == ():
            _FOUND_SILENT[store.location] = sign
        if signs is not None or (until is not None and clock() >= until):
            return signs
        sleep(max(_LOOK_S, sign.silent_after_s / (4 * MISSED_BEATS)))  # a store bills each look


def _changes(last: Sign | None, sign: Sign) -> tuple[str, ...]:
    """Return what was seen to change between two looks that only a driver changes."""
    if last is None:
        return ()
    beat, signs = sign.current, []
    if beat is not None and beat != last.current and beat.phase not in ENDED:
        signs.append(
            f"driver {beat.application_id} (process {beat.pid} on {beat.host}) gave a heartbeat "
            f"while it was looked at, phase {beat.phase!r}"
        )
    if _is_written_anew(last, sign):
        signs.append(f"{HEARTBEAT}, which cannot be read, was written while it was looked at")
    if sign.term > last.term and last.term:
        signs.append(f"a driver took term {sign.term} while it was looked at")
    for what, batch, before in (
        ("commits", sign.committed, last.committed),
        ("offsets", sign.planned, last.planned),
    ):
        if batch is not None and batch != before:
            signs.append(f"{what}/{batch} was written while it was looked at")
    return tuple(signs)


# --- facts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of the planner. Read in the protocol's order: ``listed`` before the rest.

    Attributes:
        location: The checkpoint, as the user gave it.
        asked: The participants that were asked. A name is none of the pipeline's where work was
            listed that no pipeline is known to own.
        pipeline: ``eos/pipeline.json``; None where the checkpoint has none.
        checkpoint: Spark's progress; None where there is no checkpoint at all.
        listed_batch: The newest batch at the moment just after the listing: nothing that was
            listed can belong to a later one. None before the first batch.
        decisions: The decisions of ``listed_batch``, by attempt.
        listed: The open work under the pipeline's name.
        outcomes: Of all work that a COMMIT decision of ``listed_batch`` names, while in flight.
        accepted: A person's ruling on ``listed_batch`` as a whole.
        lost_targets: Why work whose target was made again cannot be committed any more.
        admission: Whether a start is let in; None where only a name was asked for.
        heartbeat: ``eos/driver.json``; ``unheard``: why nobody can read it.
        now_ms: Milliseconds since the epoch.
        alive: Why the pipeline was seen to be alive; empty where it is not, or nobody asked.
    """

    location: str
    asked: tuple[Member, ...]
    pipeline: PipelineIdentity | None
    checkpoint: CheckpointState | None
    listed_batch: int | None
    decisions: tuple[Decision, ...]
    listed: tuple[OpenWork, ...]
    outcomes: Mapping[WorkIdentity, Outcome]
    heartbeat: Heartbeat | None
    now_ms: int
    accepted: Acceptance | None = None
    alive: tuple[str, ...] = ()
    unheard: str = ""
    admission: Admission | None = None
    lost_targets: Mapping[WorkIdentity, str] = field(default_factory=dict)

    @property
    def owned(self) -> bool:
        """Whether one asked participant is the pipeline's: else its heartbeat says nothing."""
        pipeline = self.pipeline
        return pipeline is not None and any(pipeline.member(each.name) for each in self.asked)

    @property
    def named(self) -> tuple[PromisedWork, ...]:
        """All work that a COMMIT decision of ``listed_batch`` names."""
        return named_by(self.decisions)

    @property
    def promise(self) -> Promise | None:
        """The promise of ``listed_batch``; None where no decision has promised it."""
        return Promise.of(self.decisions)

    @property
    def last_attempt(self) -> int:
        """The number of the newest decided attempt; 0 where none was decided."""
        return max((decision.attempt for decision in self.decisions), default=0)

    @property
    def in_flight(self) -> int | None:
        """The batch ``listed_batch``, if it is still in flight."""
        current = self.checkpoint.in_flight if self.checkpoint is not None else None
        return current if current == self.listed_batch else None

    @property
    def untold(self) -> set[WorkIdentity]:
        """Work whose outcome is UNKNOWN: even where a part is listed, no commit can end it."""
        return {each for each, became in self.outcomes.items() if became is Outcome.UNKNOWN}


def gather(
    store: CheckpointStore,
    participant: Participant,
    *,
    look: bool = False,
    admission: Admission | None = None,
) -> Facts:
    """List what is open at the participant, then read all the rest.

    Args:
        store: The checkpoint.
        participant: The one that is asked.
        look: See :func:`read_facts`.
        admission: See :func:`read_facts`.

    Raises:
        OwnershipError: The pipeline delivers to another address than the one asked.
        CheckpointError: The checkpoint cannot be read, or is an older copy.
        EosError: The participant cannot be reached or refuses.
    """
    listed = participant.open()
    failpoint("recovery-listed")
    facts = read_facts(store, participant, listed, look=look, admission=admission)
    if facts.pipeline is not None and facts.admission is not None and facts.admission.error is None:
        return facts
    # Nothing here is ours for certain: others' open work is shown, for a person to decide.
    return replace(facts, listed=(*facts.listed, *lookalikes(participant)))


def read_facts(
    store: CheckpointStore,
    participant: Participant,
    listed: Iterable[OpenWork],
    *,
    listed_batch: int | None = None,
    look: bool = False,
    admission: Admission | None = None,
) -> Facts:
    """Read all facts but the listing; callable again with the same listing as often as needed.

    Args:
        store: The checkpoint.
        participant: The one that was asked for the listing.
        listed: The work that was open there before this call.
        listed_batch: The newest batch when the listing was young; None when this is the first
            reading after it.
        look: Also look whether a driver is alive, which takes one of its intervals, or three.
        admission: What the gate has just answered; None: it is asked. Before anything is ended, it
            is asked again in any case.
    """
    found = read_snapshot(store, listed_batch)
    pipeline, batch, asked = found.pipeline, found.batch, participant.members
    ours = False
    if pipeline is not None:
        for each in asked:
            pipeline.require_own(each, store.location)
        ours = any(pipeline.member(each.name) for each in asked)
    named = named_by(found.decisions)
    if ours:
        participant.check([entry.work for entry in named])
    listed = tuple(listed)
    outcomes: Mapping[WorkIdentity, Outcome] = {}
    lost_targets: Mapping[WorkIdentity, str] = {}
    # A complete batch was settled before Spark completed it: its outcomes are not asked for, or an
    # idle pipeline would be ASKed about as soon as its rows pass retention.
    if ours and batch is not None and batch == found.state.in_flight:
        lost_targets = _lost_targets(participant, [entry.work for entry in named])
        # Listed work of a system that ends nothing by itself is asked for too: a part may be left,
        # and the outcome UNKNOWN. A system with timeouts keeps count of what is open.
        kept_count_of = {each.identity for each in listed if each.timeout_ms is not None}
        kept_count_of -= lost_targets.keys()
        decided = [entry.work for entry in named if entry.identity not in kept_count_of]
        outcomes = with_rulings(store, participant.outcome(decided)) if decided else {}
    return Facts(
        location=store.location,
        asked=asked,
        pipeline=pipeline,
        checkpoint=found.state,
        listed_batch=batch,
        decisions=found.decisions,
        listed=listed,
        outcomes=outcomes,
        accepted=found.accepted,
        admission=(admission or admitted(store, participant)[0]) if ours else None,
        heartbeat=found.heartbeat,
        unheard=found.unheard,
        lost_targets=lost_targets,
        now_ms=found.read_at_ms,
        alive=(signs_of_life(store) or ()) if ours and look and not found.unheard else (),
    )


def _lost_targets(
    participant: Participant, works: Sequence[PreparedWork]
) -> Mapping[WorkIdentity, str]:
    """Return why work can be committed no more, where its target was made again; see ``Kafka``."""
    found: dict[WorkIdentity, str] = {}
    for each in alone(participant):
        if (lost_targets := getattr(each, "lost_targets", None)) is not None:
            names = {member.name for member in each.members}
            found |= lost_targets([work for work in works if work.participant in names])
    return found

"""The planner's facts, read in the order on which the proof rests.

First the open work is listed, then the checkpoint and the decisions are read. Work that was open at
the listing therefore belongs to the newest batch that is read afterwards, or to an older one, and
work that no decision names once the next attempt is sealed can never be named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_eos.core.checkpoint.heartbeat import Heartbeat
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.pipeline import PipelineIdentity
from airflow_eos.core.checkpoint.progress import CheckpointState
from airflow_eos.core.checkpoint.rulings import Acceptance, with_rulings
from airflow_eos.core.checkpoint.snapshot import admitted, lookalikes, read_snapshot
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import (
    Decision,
    OpenWork,
    Outcome,
    PreparedWork,
    WorkIdentity,
)
from airflow_eos.core.protocol.participant import Admission, Member, Participant
from airflow_eos.core.protocol.participant_group import alone
from airflow_eos.core.protocol.promise import Promise, PromisedWork, named_by


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

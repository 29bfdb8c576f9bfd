"""What readers lack of a promised batch, for a person who may accept it as it is; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError, RecoveryError, Remedy
from airflow_eos.protocol.decision import Outcome
from airflow_eos.protocol.promise import Named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_eos.protocol.decision import PreparedWork, WorkIdentity
    from airflow_eos.recovery.facts import Facts


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A promise that is not kept.

    Attributes:
        batch_id: Spark's number of the batch.
        promise: The nonce of the decision that promised it.
        promised: How many rows it promised.
        missing: How many of them readers are not known to have, by participant; those that have
            all are left out.
        untold: How many of the missing rows readers may have all the same: nobody can tell.
        works: All work that a decision of the batch names, with its outcome.
    """

    batch_id: int
    promise: str
    promised: int
    missing: Mapping[str, int]
    untold: int
    works: tuple[tuple[Named, Outcome], ...]

    @property
    def given_up(self) -> tuple[WorkIdentity, ...]:
        """What could still be committed, and is never to be."""
        return tuple(each.identity for each, became in self.works if became is Outcome.OPEN)

    @property
    def rows(self) -> int:
        """How many rows are given up with it."""
        return sum(self.missing.values())

    @property
    def delivered(self) -> int:
        """How many rows readers have for certain."""
        return self.promised - self.rows


def shortfall(facts: Facts, batch_id: int, *, open_too: bool = False) -> Shortfall:
    """Count what is missing of batch ``batch_id``.

    Args:
        facts: All that a planner looks at.
        batch_id: Spark's number of the batch in flight.
        open_too: Count what could still be committed as missing, as where its system refuses it
            for ever.

    Raises:
        ConfigurationError: It is not in flight, was never promised, or nothing of it is missing.
        RecoveryError: Some of it can still be committed: a recovery comes first.
    """
    if facts.in_flight != batch_id:
        running = "none" if facts.in_flight is None else f"batch {facts.in_flight}"
        raise ConfigurationError(
            f"Batch {batch_id} is not in flight in {facts.location} ({running} is): only a batch "
            "that holds the pipeline up can be accepted.",
            Remedy(start=True),
        )
    promise = facts.promise
    if promise is None or not facts.named:
        raise ConfigurationError(
            f"Batch {batch_id} was never promised, so nothing of it is owed: the app writes it. If "
            "its input is past retention, see 'The input is gone' in docs/recovery.md.",
            Remedy(start=True),
        )
    became = _became(facts)
    can_be_committed = [each for each, outcome in became if outcome is Outcome.OPEN]
    if can_be_committed and not open_too:
        raise RecoveryError(
            f"Batch {batch_id}: {len(can_be_committed)} of its pieces of work "
            f"({sum(each.work.rows for each in can_be_committed)} rows) can still be "
            f"committed, first {can_be_committed[0].identity}; what is missing after that can be "
            "accepted. Where the system refuses it for ever, --give-up-open gives it up too.",
            Remedy(("airflow-eos recover CHECKPOINT",), start=True).at(facts.location),
        )
    outcomes = {each.identity: outcome for each, outcome in became}
    known = outcomes | promise.known(outcomes)
    owed = promise.owed(outcomes)
    found = Shortfall(
        batch_id=batch_id,
        promise=promise.nonce,
        promised=promise.rows,
        missing=_by_participant(owed),
        untold=sum(w.rows for w in owed if outcomes[w.identity] is Outcome.UNKNOWN),
        works=tuple((each, known[each.identity]) for each, _ in became),
    )
    if found.rows <= 0:
        raise ConfigurationError(
            f"Nothing is missing of batch {batch_id}: readers have all {found.promised} rows. If "
            "the query keeps state and its input is past retention, see 'The input is gone' in "
            "docs/recovery.md.",
            Remedy(start=True),
        )
    return found


def _became(facts: Facts) -> tuple[tuple[Named, Outcome], ...]:
    """What became of all work with rows that a decision names; UNKNOWN where nobody tells."""
    is_open = {each.identity for each in facts.listed} - facts.untold
    return tuple(
        (
            each,
            Outcome.OPEN
            if each.identity in is_open
            else facts.outcomes.get(each.identity, Outcome.UNKNOWN),
        )
        for each in facts.named
        if not each.work.follows
    )


def _by_participant(works: Sequence[PreparedWork]) -> Mapping[str, int]:
    rows = Counter[str]()
    for work in works:
        rows[work.participant] += work.rows
    return dict(rows)

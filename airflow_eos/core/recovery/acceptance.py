"""What a person gives up: missing rows of a promised batch, or offsets of the input; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_eos.core.protocol.decision import Outcome, WorkIdentity
from airflow_eos.core.protocol.participant import ANEW
from airflow_eos.core.protocol.promise import Promise, PromisedWork
from airflow_eos.errors import ConfigurationError, RecoveryError, Remedy

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.progress import CheckpointState
    from airflow_eos.core.recovery.facts import Facts


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The rows of a promised batch that readers lack.

    Attributes:
        promise: The nonce of the decision that promised the batch.
        promised: How many rows that decision promised.
        missing: How many of the rows readers are not known to have, by participant; participants
            whose readers have all are left out.
        untold: How many of the missing rows readers may have all the same: nobody can tell.
        works: All work that a decision of the batch names, with its outcome.
    """

    batch_id: int
    promise: str
    promised: int
    missing: Mapping[str, int]
    untold: int
    works: tuple[tuple[PromisedWork, Outcome], ...]

    @property
    def given_up(self) -> tuple[WorkIdentity, ...]:
        """The work that could still be committed, and is never to be."""
        return tuple(each.identity for each, became in self.works if became is Outcome.OPEN)

    @property
    def rows(self) -> int:
        """The number of rows that are given up with the batch."""
        return sum(self.missing.values())

    @property
    def delivered(self) -> int:
        """The number of rows that readers have for certain."""
        return self.promised - self.rows


def shortfall(facts: Facts, batch_id: int, *, open_too: bool = False) -> Shortfall:
    """Count the rows that are missing of batch ``batch_id``.

    Args:
        batch_id: Spark's number of the batch in flight.
        open_too: Count work that could still be committed as missing, as where its system refuses
            it for ever.

    Raises:
        ConfigurationError: The batch is not in flight, was never promised, or lacks nothing.
        RecoveryError: Some of its work can still be committed: a recovery comes first.
    """
    if facts.in_flight != batch_id:
        running = "none" if facts.in_flight is None else f"batch {facts.in_flight}"
        raise ConfigurationError(
            f"Batch {batch_id} is not in flight in {facts.location} ({running} is): only a batch "
            "that holds the pipeline up can be accepted.",
            Remedy(("airflow-eos status CHECKPOINT",)).at(facts.location),
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
            "accepted. If the system refuses it forever, --give-up-open gives it up too.",
            Remedy(("airflow-eos recover CHECKPOINT",), start=True).at(facts.location),
        )
    outcomes = {each.identity: outcome for each, outcome in became}
    known = outcomes | promise.known(outcomes)
    owed = promise.owed(outcomes)
    missing = Counter[str]()
    for work in owed:
        missing[work.participant] += work.rows
    found = Shortfall(
        batch_id=batch_id,
        promise=promise.nonce,
        promised=promise.rows,
        missing=missing,
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


def _became(facts: Facts) -> tuple[tuple[PromisedWork, Outcome], ...]:
    """Return the outcome of all work with rows that a decision names; UNKNOWN where none tells."""
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


# --- input ----------------------------------------------------------------------------------------
# Offsets of the input that nobody can read, and that hold the pipeline up.


@dataclass(frozen=True, slots=True)
class InputRange:
    """A range of one partition: offsets ``first`` to ``last``, both included."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.first}-{self.last}"

    @property
    def records(self) -> int:
        """The most records of the range: markers and compacted records take offsets too."""
        return self.last - self.first + 1

    @classmethod
    def of_text(cls, text: str) -> InputRange:
        """Parse ``TOPIC:PARTITION:FIRST-LAST``.

        Raises:
            ConfigurationError: ``text`` has another form.
        """
        found = _RANGE.fullmatch(text)
        if found is None or int(found[3]) > int(found[4]):
            raise ConfigurationError(
                f"--skip-input {text!r}: expected TOPIC:PARTITION:FIRST-LAST, both offsets "
                "included, as the error of the task names it."
            )
        return cls(found[1], *map(int, found.groups()[1:]))


_RANGE = re.compile(r"([A-Za-z0-9._-]{1,249}):([0-9]{1,10}):([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


def skippable(
    location: str, state: CheckpointState, promise: Promise | None, wanted: InputRange
) -> InputRange:
    """Return the part of ``wanted`` that can be stepped over, as it was not settled before.

    Args:
        promise: the batch in flight's, if it has one that no person has accepted as it is.
        wanted: the range that a person gives up.

    Raises:
        ConfigurationError: the range holds nothing up: no batch in flight begins to read it.
        RecoveryError: rows of the range are promised, or where the batch begins is not known.
    """
    batch = state.in_flight
    if batch is None:
        raise ConfigurationError(
            f"No batch is in flight in {location}: {wanted} does not hold it up. Nothing is given "
            "up.",
            Remedy(start=True),
        )
    read = {
        (topic, partition): ((source.start or {}).get(topic, {}).get(partition, 0), end)
        for source in state.sources
        for topic, partitions in (source.end or {}).items()
        for partition, end in partitions.items()
    }
    if (wanted.topic, wanted.partition) not in read:
        shown = ", ".join(f"{topic}:{partition}" for topic, partition in sorted(read))
        raise ConfigurationError(
            f"{location} does not read partition {wanted.partition} of topic {wanted.topic!r}: "
            f"batch {batch} reads {shown or 'no topic'}. Nothing is given up.",
            Remedy(change="name the range as the error of the task does"),
        )
    if any(wanted.topic in (each.end or {}) and each.start is None for each in state.sources):
        raise RecoveryError(
            f"Where batch {batch} of {location} begins is not known: the entry before it is gone. "
            "Nothing is given up.",
            Remedy(change="put that entry of offsets/ back, and run the command again"),
        )
    begins, ends = read[wanted.topic, wanted.partition]
    if wanted.last < begins or wanted.first >= ends:
        told = "is settled" if wanted.last < begins else "is not read yet"
        raise ConfigurationError(
            f"{wanted} {told}: batch {batch}, which is in flight, reads offsets {begins} to "
            f"{ends - 1} there. Nothing is given up.",
            Remedy(change="name the range as the error of the task does"),
        )
    if promise is not None:
        raise RecoveryError(
            f"Batch {batch} of {location} is promised, and rows of {wanted} with it: they were "
            "read then, and what is promised does not change. Nothing is given up.",
            Remedy(change="put the rows back, as by a replica whose copy is sound", start=True),
            Remedy(
                (
                    *promise.accepting("").commands,
                    f"airflow-eos accept CHECKPOINT --skip-input {wanted} --yes",
                ),
                start=True,
                costs="these records, and what readers lack of the batch and its input does not "
                "give again",
            ).at(location),
            replace(ANEW, change=f"where readers have all of it, {ANEW.change}"),
        )
    return replace(wanted, first=max(wanted.first, begins))

"""The port: all that the driver and recovery know of a participant, and the gate of a start.

The verbs of a participant need no Spark and may be repeated by any process at any time. What runs
inside Spark is the other half, :class:`airflow_eos.core.delivery.port.Sink`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, Self

import msgspec

from airflow_eos.core.protocol.decision import (
    Decision,
    OpenWork,
    Outcome,
    PreparedWork,
    WorkIdentity,
)
from airflow_eos.core.protocol.promise import OperatorRuling, Promise
from airflow_eos.errors import EosError, OwnershipError, Remedy


class Owner(msgspec.Struct, frozen=True):
    """A pipeline, by the random id of its ``eos/pipeline.json``, and its checkpoint's location."""

    pipeline: str
    location: str

    @classmethod
    def at(cls, pipeline: str, location: str) -> Self:
        """Return the owner, its location written alike for all schemes of one store."""
        return cls(pipeline, same_location(location))

    @property
    def text(self) -> str:
        """The owner as text for one column: ``pipeline location``; the id has no spaces."""
        return f"{self.pipeline} {self.location}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the owner that :attr:`text` was made of."""
        pipeline, _, location = text.partition(" ")
        return cls(pipeline, location)

    def __str__(self) -> str:
        return f"pipeline {self.pipeline or 'without an id'} at {self.location}"


class Note(msgspec.Struct, frozen=True, order=True):
    """A decision that was relied on: its batch, attempt and nonce, and the pipeline's id."""

    batch: int
    attempt: int
    decision: str
    pipeline: str

    @classmethod
    def of(cls, decision: Decision, owner: Owner) -> Self:
        """Return the note of ``owner``, who is going to rely on ``decision``."""
        return cls(decision.batch_id, decision.attempt, decision.nonce, owner.pipeline)


def superseded(known: Iterable[Note], by: Note) -> list[Note]:
    """Return the notes that may be removed once ``by`` is durable: older batches of its pipeline.

    So what is remembered stays small, and never becomes less. A note never changes: who removes one
    removes what he has read, and not what its writer has written since. A note goes only after a
    higher one of its pipeline stands, and that one after a still higher one: at each moment the
    highest that was ever durable stands, however long a driver sleeps before it removes. (With one
    note for each driver, which it replaced, a recovery that slept there took away the highest.)
    """
    return [each for each in known if each.pipeline == by.pipeline and each.batch < by.batch]


_NONE = Remedy()

ANEW = Remedy(
    change="begin on a new checkpoint location under another prefix, with startingOffsets of the "
    "end of the newest batch that readers have",
    start=True,
    costs="the state of a stateful query",
)
"""The remedy where the checkpoint no longer tells what was delivered: readers know."""


def decision_lost(batch: int) -> tuple[Remedy, ...]:
    """Return the remedies where batch ``batch`` was delivered, and its decision is gone."""
    return (Remedy(change=f"put eos/decisions/{batch} back, from a copy", start=True), ANEW)


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a system remembers of one name in it, such as a prefix.

    Attributes:
        called: the name as shown to people, such as "prefix 'etl'".
        owner: the pipeline whose claim is the earliest; None where nobody has a claim.
        notes: the notes of all drivers of all pipelines that have used the name.
        give_up: what a person does to let another pipeline have the name; all is forgotten.
        move: what a person does to let the owner's checkpoint be elsewhere; its notes stay.
        clear: what a person does to end what others have open under the name; ``CHECKPOINT``
            stands for the location.
        unreadable: what is remembered of this name and not understood.
        given_up: a person has said so; nobody has delivered under the name since.
        keys: the keys of all records that were read, but a person's word, by which they are
            forgotten.
    """

    called: str
    owner: Owner | None = None
    notes: tuple[Note, ...] = ()
    give_up: Remedy = _NONE
    move: Remedy = _NONE
    clear: Remedy = _NONE
    unreadable: tuple[str, ...] = ()
    given_up: bool = False
    keys: tuple[bytes, ...] = ()

    def newest(self, pipeline: str | None = None) -> Note | None:
        """Return the highest note of ``pipeline``; of the owner where None is given."""
        if pipeline is None:
            pipeline = self.owner.pipeline if self.owner is not None else ""
        theirs = (each for each in self.notes if pipeline and each.pipeline == pipeline)
        return max(theirs, default=None)

    def knows(self, pipeline: str) -> bool:
        """Whether ``pipeline`` has a claim or a note under this name."""
        claimed = self.owner is not None and self.owner.pipeline == pipeline
        return claimed or self.newest(pipeline) is not None

    def require(
        self,
        asking: Owner,
        *,
        newest_planned: int | None,
        newest_settled: int | None = None,
        decisions: Mapping[int, Sequence[Decision]],
    ) -> None:
        """Refuse another pipeline, the same pipeline elsewhere, and another copy of its checkpoint.

        Args:
            asking: the pipeline that wants to use the name.
            newest_planned: the newest batch of Spark's offset log at ``asking.location``.
            newest_settled: the newest promised batch there that is over, so that it was noted;
                None: none is known.
            decisions: the decisions that stand there, by batch; at least those of the noted batch.

        Raises:
            OwnershipError: with what was found and how to go on.
        """
        self.require_place(asking)
        note = self.newest(asking.pipeline)
        planned = -1 if newest_planned is None else newest_planned
        if note is None:
            return
        if planned > note.batch:
            self._require_last(asking, note, planned, newest_settled, decisions)
            return  # a later batch was planned on the noted one, which is over here
        # Where the batch is not even planned, its decision alone says nothing: a driver that was
        # alive when the copy was put back in place has written the decision there.
        decided = decisions.get(note.batch, ()) if planned == note.batch else ()
        if not any(each.nonce == note.decision for each in decided):
            raise OwnershipError(
                f"Checkpoint {asking.location} (newest batch {planned}) does not hold the decision "
                f"of batch {note.batch}, attempt {note.attempt}, which was delivered under the "
                f"{self.called}: it was lost, or restored from an older copy, and would deliver "
                "rows again.",
                Remedy(
                    change="restore the newest copy (offsets/, commits/ and eos/ together)",
                    start=True,
                ),
                _at_the_cost(
                    self.give_up, f"what was delivered after batch {planned} is delivered again"
                ),
            )

    def _require_last(
        self,
        asking: Owner,
        note: Note,
        newest_planned: int,
        newest_settled: int | None,
        decisions: Mapping[int, Sequence[Decision]],
    ) -> None:
        """Refuse a checkpoint whose newest settled batch was not noted last, or is lost.

        Each batch is noted before its first commit, and the highest note stays. So the memory was
        given up, and an older copy of this checkpoint, which has its id, has delivered since.
        """
        last = -1 if newest_settled is None else newest_settled
        found = decisions.get(note.batch, ())
        if note.batch == newest_planned - 1 and not found:
            raise OwnershipError(
                f"Checkpoint {asking.location} does not hold the decision of batch {note.batch}, "
                f"attempt {note.attempt}, which was delivered under the {self.called}, though its "
                f"next batch is planned: the decision was lost, and with it where batch "
                f"{newest_planned} begins.",
                *decision_lost(note.batch),
            )
        known = any(each.nonce == note.decision for each in found)
        if note.batch > last or (note.batch == last and known):
            return
        raise OwnershipError(
            f"Checkpoint {asking.location} has delivered batch {last}, but what was delivered last "
            f"under the {self.called} is another batch {note.batch} of the same pipeline (id "
            f"{asking.pipeline}): another copy of this checkpoint has gone on since, or what is "
            "remembered was set back. Rows that the other copy has delivered would come twice.",
            Remedy(change="go on with the copy that was started last", start=True),
            _at_the_cost(
                self.give_up,
                "the other copy can go on no more, and what it delivered is delivered again where "
                "this one reads the same rows",
            ),
        )

    def require_place(self, asking: Owner) -> None:
        """Refuse a name of another pipeline, and a pipeline whose checkpoint is elsewhere.

        Two copies of one checkpoint have one id: each would deliver what the other delivers. A copy
        at the claim's location is let in; whether the copy there is gone, only a person knows.

        Raises:
            OwnershipError: with the owner of the name and how to go on.
        """
        if self.unreadable:
            raise OwnershipError(
                f"What is remembered of the {self.called} cannot be understood: "
                f"{'; '.join(self.unreadable)}. Expected a claim or a note of this release: whose "
                "it is, and how far it was delivered, is not known.",
                Remedy(change="use the release that wrote it", start=True),
                _at_the_cost(self.give_up, "an older copy of the checkpoint is not noticed"),
            )
        if self.owner is None or self.owner == asking:
            return
        if self.owner.pipeline != asking.pipeline:
            raise OwnershipError(
                f"The {self.called} belongs to the checkpoint {self.owner.location}, not to "
                f"{asking.location}: another pipeline (id {self.owner.pipeline}, ours is "
                f"{asking.pipeline or 'not made yet'}){self._anew(asking)}.",
                Remedy(
                    change="use another prefix, with a checkpoint location of its own", start=True
                ),
                _at_the_cost(
                    self.give_up,
                    "the other pipeline can go on no more, and what it delivered is delivered "
                    "again where this one reads the same rows",
                ),
            )
        raise OwnershipError(
            f"The {self.called} belongs to the checkpoint {self.owner.location}, of which the one "
            f"at {asking.location} is a copy (both have the id {asking.pipeline}), or to where it "
            "was moved. Whether the other one is gone is not known from here, and two would both "
            "deliver.",
            Remedy(change=f"go on with {self.owner.location}", start=True),
            _at_the_cost(
                self.move, f"a pipeline that still runs at {self.owner.location} delivers rows too"
            ),
        )

    def _anew(self, asking: Owner) -> str:
        if self.owner is None or self.owner.location != asking.location:
            return ""
        return (
            ". Another checkpoint was at this place, and was lost, deleted, moved away or put "
            "back; or another output of this one uses the name"
        )


@dataclass(frozen=True, slots=True)
class StartFacts:
    """All facts that decide whether a start is let in.

    Attributes:
        asking: the pipeline that starts; its id is empty where the checkpoint has none yet.
        newest_planned: the newest batch of Spark's offset log.
        has_promised: whether a COMMIT decision of the newest batches stands in the checkpoint.
        newest_settled: of these, the newest batch that is over, so that it was noted.
        decisions: the decisions of the noted batches, by batch.
        names: what each system remembers of the names that the pipeline uses.
        open: open work under names like these, and its program by the form of the key.
        refused: the error of a system that refused by itself (it was set back, it is another one).
        unanswered: the error of a question that got no answer.
        torn: the error of damaged files with which nobody may go on, whoever owns the checkpoint.
        later: what was delivered after this checkpoint's newest promise, as a second witness tells
            where a name is forgotten; empty: nothing.
    """

    asking: Owner
    newest_planned: int | None = None
    has_promised: bool = False
    newest_settled: int | None = None
    decisions: Mapping[int, Sequence[Decision]] = field(default_factory=dict)
    names: tuple[Ownership, ...] = ()
    open: tuple[OpenWork, ...] = ()
    refused: EosError | None = None
    unanswered: EosError | None = None
    torn: EosError | None = None
    later: str = ""

    @property
    def owns_nothing(self) -> bool:
        """Whether no open work can be this pipeline's own.

        A pipeline's first task comes after its first batch is planned, and that after its claim.
        """
        unknown = not any(each.knows(self.asking.pipeline) for each in self.names)
        return self.newest_planned is None or (
            bool(self.names) and unknown and not self.has_promised
        )

    @property
    def forgotten(self) -> tuple[Ownership, ...]:
        """Names that the systems know nothing of, though the checkpoint has promised rows there."""
        return tuple(
            each
            for each in self.names
            if each.newest(self.asking.pipeline) is None
            and (self.newest_settled is not None or (self.has_promised and each.owner is None))
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer of the gate to a start: let in, refused, or not known.

    Attributes:
        error: the error that the start raises; None where it is let in.
        known: False where a question has no answer; ``error`` says which question.
        remarks: what a person must be told of a start that is let in.
    """

    error: EosError | None = None
    known: bool = True
    remarks: tuple[str, ...] = ()

    def require(self) -> None:
        """Raise the error that refuses the start, or leaves the answer unknown."""
        if self.error is not None:
            raise self.error


def admission(facts: StartFacts) -> Admission:
    """Decide whether a start is let in; start, recovery, plan, preflight, doctor and page ask."""
    if facts.refused is not None:
        return Admission(facts.refused)
    if facts.unanswered is not None:
        return Admission(facts.unanswered, known=False)
    try:
        for each in facts.names:
            each.require(
                facts.asking,
                newest_planned=facts.newest_planned,
                newest_settled=facts.newest_settled,
                decisions=facts.decisions,
            )
        if facts.owns_nothing and facts.open:
            raise _of_another_program(facts)
        if facts.later:
            raise _older_than_the_output(facts)
    except OwnershipError as error:
        return Admission(error)
    if facts.torn is not None:
        return Admission(facts.torn)
    return Admission(
        remarks=tuple(
            f"The {each.called} is nobody's, though {facts.asking.location} has promised rows "
            "under it: what was remembered is gone (a topic or a table was deleted, a cluster "
            "or a server made anew, a copy that lags took over). What it promised last is held "
            "against the output, and noted anew."
            for each in facts.forgotten
        )
    )


def _older_than_the_output(facts: StartFacts) -> OwnershipError:
    newest = "nothing" if facts.newest_planned is None else f"batch {facts.newest_planned}"
    return OwnershipError(
        f"Nothing remembers any more how far {facts.asking.location} has delivered, but what it "
        f"delivered to has gone on beyond its newest promise ({newest} is planned here): "
        f"{facts.later}. It is an older copy, and would deliver rows again. Nothing was started.",
        Remedy(change="restore the newest copy (offsets/, commits/ and eos/ together)", start=True),
        *(
            _at_the_cost(each.give_up, f"what was delivered after {newest} is delivered again")
            for each in facts.forgotten
            if each.give_up != _NONE
        ),
    )


def _of_another_program(facts: StartFacts) -> OwnershipError:
    names = " and ".join(each.called for each in facts.names) or "name"
    first = ", ".join(f"{each.key} ({each.whose or 'unknown'})" for each in facts.open[:3])
    more = f" and {len(facts.open) - 3} more" if len(facts.open) > 3 else ""
    since = min(each.opened_at_ms for each in facts.open)
    return OwnershipError(
        f"Under the {names} {len(facts.open)} pieces of work are open, and {facts.asking.location} "
        f"has delivered nothing there: they are another program's: {first}{more}, the oldest since "
        f"{_utc(since)}. Nothing was ended or claimed.",
        Remedy(change="choose another prefix for this pipeline", start=True),
        *(
            replace(
                each.clear.at(facts.asking.location),
                costs="the rows of that work, which its program can commit no more",
            )
            for each in facts.names
            if each.clear != _NONE
        ),
    )


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _at_the_cost(remedy: Remedy, costs: str) -> Remedy:
    return replace(remedy, costs=costs)


def same_location(location: str) -> str:
    """Return ``location``, alike for the schemes by which Hadoop and others name one store."""
    scheme, found, rest = location.partition("://")
    aliases = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs"}
    return f"{aliases.get(scheme, scheme)}://{rest}" if found else location


# --- participant ----------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint remembers of a participant, without secrets.

    Attributes:
        name: the name that the user gave.
        kind: ``kafka``, ``files``, …
        address: what must never change under this name, such as a cluster's id.
        target: where the rows go, as shown to people; it may change.
    """

    name: str
    kind: str
    address: dict[str, str]
    target: str = ""

    def is_at(self, other: Member) -> bool:
        """Whether both members are the same participant at the same address."""
        return (self.name, self.kind, self.address) == (other.name, other.kind, other.address)

    def __str__(self) -> str:
        at = ", ".join(f"{what} {value!r}" for what, value in sorted(self.address.items()))
        return f"{self.kind} {self.name!r} ({at})"


class SupportsHandover(Protocol):
    """A participant under whose name a new checkpoint may go on from where an older one ended."""

    def inherit(self, owner: Owner) -> None:
        """Forget how far the name has delivered, and make ``owner`` its owner."""
        ...


class SharesNames(Protocol):
    """A participant in whose system other programs can use names like its own."""

    def lookalikes(self) -> tuple[OpenWork, ...]:
        """Return open work under names like ours, and whose by form; only a person ends it."""
        ...


class SeesDeliveries(Protocol):
    """A participant that sees in its system how far its name has delivered: a second witness."""

    def later_than(self, promises: Sequence[Promise]) -> str:
        """Return what was delivered after ``promises``, in their order, for people; or empty.

        Raises:
            EosError: it is not known; with the question that has no answer.
        """
        ...


class Deciding(Protocol):
    """A participant that can refuse a decision about prepared work."""

    def require_decidable(self, works: Sequence[PreparedWork]) -> None:
        """Refuse, before it is decided, work whose commit would show more than its rows, or less.

        Raises:
            DeliveryError: with the obstacle; nothing was changed.
        """
        ...


class TellsTime(Protocol):
    """A participant whose system tells its time, so that the age of its open work is known."""

    def clock_ms(self) -> int | None:
        """Return the clock that dates open work, ms since the epoch; None: it does not tell."""
        ...


class Participant(Protocol):
    """One system under one name, as one process reaches it; or several systems as one.

    Each work goes to the participant that it names; see
    :class:`~airflow_eos.core.protocol.participant_group.ParticipantGroup`, which asks each in a
    thread of its own: one call of a participant at a time, from changing threads.
    """

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, asked of the system itself where that is possible; several of a group."""
        ...

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that this kind does not understand, before any of it is acted upon.

        Raises:
            CheckpointFormatError: a decision names work that nobody can commit.
        """
        ...

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Make each work visible and return its outcome; never returns OPEN."""
        ...

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove each work; False where it had ended before. Never touches another's work."""
        ...

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove promised work that a person has given up, though it could still be committed.

        It is never committed afterwards. Work that was made visible before stays so, and is False.
        """
        ...

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Return the outcome of each work by its witness, without touching the work."""
        ...

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """Return all prepared work under the pipeline's name that has not ended, of any preparer.

        Work in ``except_known`` is left out, which makes asking cheaper.
        """
        ...

    def claim(self, owner: Owner) -> None:
        """Own the name in that system if nobody owns it.

        A checkpoint cannot know that another one uses the same name, or that it is an older copy;
        a system that can remember the owner does so, for :meth:`ownership` to tell.
        """
        ...

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return what the system remembers of the name; nothing of a system that cannot remember.

        Raises:
            OwnershipError: the system itself was set back.
        """
        ...

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Refuse a system that has lost delivered rows, where the system can tell.

        Nobody delivers the rows again. A backup was put back, or a standby took over that lagged.

        Args:
            promise: of a batch that was settled: a newer one was planned, or Spark completed it.

        Raises:
            OwnershipError: with what is gone and how to go on without it.
        """
        ...

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note, outside the checkpoint, a decision that ``owner`` is going to rely on."""
        ...

    def close(self) -> None:
        """Close connections; never ends prepared work."""
        ...

"""All participants of a pipeline as one: each work goes to the participant that it names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from airflow_eos.core.protocol.decision import (
    Decision,
    OpenWork,
    Outcome,
    PreparedWork,
    WorkIdentity,
)
from airflow_eos.core.protocol.participant import Member, Owner, Ownership, Participant
from airflow_eos.core.protocol.promise import OperatorRuling, Promise
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, DeliveryError

Answer = TypeVar("Answer")


def in_turn(acts: Iterable[Callable[[], object]]) -> None:
    """Call each act, also where one before it has failed.

    Raises:
        Exception: the first error of an act, with the errors of the others as its notes.
    """
    failed: list[Exception] = []
    for act in acts:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised below, once the others had their turn
            failed.append(error)
    if failed:
        for other in failed[1:]:
            failed[0].add_note(f"And then {type(other).__name__}: {other}")
        raise failed[0]


def side_by_side(acts: Iterable[Callable[[], Answer]]) -> list[Answer]:
    """Call all acts at once, each in a thread of its own; return their answers, in their order.

    Raises:
        Exception: as :func:`in_turn`, once all of them are over.
    """
    given = list(acts)
    if len(given) < 2:
        return [act() for act in given]
    with ThreadPoolExecutor(len(given), thread_name_prefix="airflow-eos-participant") as threads:
        answers = [threads.submit(act) for act in given]
        in_turn(answer.result for answer in answers)
    return [answer.result() for answer in answers]


def collect_all(
    acts: Iterable[Callable[[], Mapping[WorkIdentity, Answer]]],
) -> dict[WorkIdentity, Answer]:
    """Call each act as :func:`in_turn` does; return all their answers in one mapping."""
    answers: dict[WorkIdentity, Answer] = {}

    def keep(act: Callable[[], Mapping[WorkIdentity, Answer]]) -> Callable[[], None]:
        return lambda: answers.update(act())

    in_turn(map(keep, acts))
    return answers


def committed(
    participant: Participant, works: Sequence[PreparedWork]
) -> dict[WorkIdentity, Outcome]:
    """Commit each work and return what became of every one.

    Raises:
        DeliveryError: a kind says nothing of a work, or that it is open. That is no loss: its rows
            would be written again.
    """
    told = dict(participant.commit(works))
    for work in works:
        if told.get(work.identity, Outcome.OPEN) is Outcome.OPEN:
            raise DeliveryError(
                f"{work.identity} was to be committed, and its kind does not say what became of "
                "it: expected committed, aborted or unknown. Nothing was concluded, and nothing is "
                "written again."
            )
    return told


Work = TypeVar("Work", PreparedWork, WorkIdentity)


class ParticipantGroup:
    """Several participants as one :class:`~airflow_eos.core.protocol.participant.Participant`.

    Args:
        participants: each with its own names, in the order in which they are asked.

    Raises:
        ConfigurationError: two of them are at one address.
    """

    def __init__(self, participants: Sequence[Participant]) -> None:
        self._participants = participants
        self._of = {member.name: each for each in participants for member in each.members}
        _require_apart(self.members)

    @property
    def each(self) -> tuple[Participant, ...]:
        """The single participants of this group, also those of a group within it."""
        return tuple(one for participant in self._participants for one in alone(participant))

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of all participants."""
        return tuple(member for each in self._participants for member in each.members)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Let each participant check its own work; see :meth:`Participant.check`."""
        for participant, own in self._shared_out(works):
            participant.check(own)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Let each participant commit its own work, all at once: one holds up no other."""
        return self._answers("commit", works)

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Let each participant abort its own work."""
        return self._answers("abort", works)

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Let each participant abandon its own work."""
        return self._answers("abandon", works)

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask each participant for the outcomes of its own work."""
        return self._answers("outcome", works)

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List the open work of all participants."""

        def listed(participant: Participant) -> tuple[OpenWork, ...]:
            names = {member.name for member in participant.members}
            known = [work for work in except_known if work.participant in names]
            return participant.open(except_known=known)

        found = side_by_side(partial(listed, each) for each in self._participants)
        return tuple(work for works in found for work in works)

    def claim(self, owner: Owner) -> None:
        """Claim all names; the first name that belongs to another pipeline refuses the claim."""
        for each in self._participants:
            each.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return what each participant's system remembers."""
        return tuple(found for each in self._participants for found in each.ownership(asking))

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Ask each participant; any of them may refuse."""
        for each in self._participants:
            each.require_settled(promise, said)

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision with all: each alone must be able to refuse an older copy."""
        side_by_side(partial(each.note, decision, owner) for each in self._participants)

    def close(self) -> None:
        """Close all participants, whatever one of them raises."""
        with ExitStack() as closing:
            for each in self._participants:
                closing.callback(each.close)

    def _answers(self, verb: str, works: Iterable[Work]) -> dict[WorkIdentity, Any]:
        """Ask each participant about its own work; an error comes once all have answered."""
        shares = self._shared_out(works)
        answers = side_by_side(partial(getattr(each, verb), own) for each, own in shares)
        return {work: told for answer in answers for work, told in answer.items()}

    def _shared_out(self, works: Iterable[Work]) -> Iterable[tuple[Participant, list[Work]]]:
        shares: defaultdict[str, list[Work]] = defaultdict(list)
        for work in works:
            name = work.participant
            if name not in self._of:
                raise CheckpointFormatError(
                    f"Work {work.key!r} is of {work.kind} {name!r}, and only "
                    f"{', '.join(map(repr, self._of))} can be asked here. Nothing was done "
                    "with it. Was the checkpoint written by a newer release? Then use that one."
                )
            shares[name].append(work)
        return [(self._of[name], own) for name, own in shares.items()]


def reach_all(ways: Iterable[Callable[[], Participant]]) -> Participant:
    """Reach every participant and return them as one; where one fails, none is left open."""
    with ExitStack() as reached:
        participants = []
        for way in ways:
            participants.append(way())
            reached.callback(participants[-1].close)
        together = participants[0] if len(participants) == 1 else ParticipantGroup(participants)
        reached.pop_all()
    return together


def alone(participant: Participant) -> tuple[Participant, ...]:
    """Return the single participants of ``participant``: itself, or all of a group.

    Asked by the attribute: a group is one also behind an object that tells what it does (figures).
    """
    found = getattr(participant, "each", None)
    return found if isinstance(found, tuple) else (participant,)


def _require_apart(members: Sequence[Member]) -> None:
    """Refuse two members of one kind at one address: they could not tell their work apart.

    One name in a system has one witness and one listing. Of two outputs to one Delta table under
    one application id the second would read the witness of the first, and its rows would be lost;
    of two under one transactional id prefix each would abort the other's transactions.
    """
    for number, one in enumerate(members):
        for other in members[number + 1 :]:
            if (one.kind, one.address) == (other.kind, other.address):
                raise ConfigurationError(
                    f"Outputs {one.name!r} and {other.name!r} are both {one}: expected each under "
                    "a name of its own there. Give each another transactional_id_prefix, "
                    "gid_prefix or application_id."
                )

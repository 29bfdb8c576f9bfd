"""A recovery plan as a frozen value that prints, travels as JSON and can be looked at in peace."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.errors import ConfigurationError, OwnershipError
from airflow_eos.protocol.participant import Member
from airflow_eos.protocol.work import OpenWork, WorkIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT_VERSION = 4


class Action(enum.Enum):
    """What a step does. What needs nothing has no step."""

    COMMIT = "commit"
    ABORT = "abort"
    REPLAY = "replay"
    """Nothing for recovery to do: the app replays the rows when it resumes."""
    ASK = "ask"
    """A person must say what became of it; see ``airflow_eos.checkpoint.rulings``."""
    ORPHAN = "orphan"
    """Open under a name that the checkpoint does not know; aborted if asked."""


class Seal(msgspec.Struct, frozen=True):
    """The attempt that is taken, as an ABORT decision, before anything is aborted."""

    batch_id: int
    attempt: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the plan. Times in milliseconds; ``time_left_ms`` below 0 is due any moment.

    ``work`` is None for REPLAY, which speaks of ``works`` pieces of a batch, all of one
    ``participant``. Where a system ends nothing by itself, there is no time left. ``rows`` is None
    where no decision tells it.
    """

    action: Action
    reason: str
    work: WorkIdentity | None = None
    works: int = 1
    participant: str | None = None
    rows: int | None = None
    batch_id: int | None = None
    attempt: int | None = None
    age_ms: int | None = None
    time_left_ms: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery would do, why, and on which listing of its participants that rests.

    Execution acts only on ``listed``, by identity, and reads everything else again, so that a
    plan may be stale without being dangerous. ``batch_id`` is the newest batch when it was made,
    ``in_flight`` the same if that batch was not complete. ``refusal`` is what a start on this
    checkpoint is refused with, or why that is not known; ``remarks`` what one is told.
    """

    format_version: int = FORMAT_VERSION
    made_at_ms: int
    location: str
    participants: tuple[Member, ...]
    batch_id: int | None
    in_flight: int | None
    seal: Seal | None
    steps: tuple[Step, ...]
    alive: tuple[str, ...]
    listed: tuple[OpenWork, ...]
    refusal: str | None = None
    remarks: tuple[str, ...] = ()

    def require_made_for(self, location: str, members: Sequence[Member]) -> None:
        """Refuse to be carried out elsewhere.

        Raises:
            OwnershipError: the plan was made for another checkpoint or other participants.
        """
        found_at = {each.name: each for each in members}
        same_members = len(members) == len(self.participants) and all(
            each.name in found_at and each.is_at(found_at[each.name]) for each in self.participants
        )
        for planned, found, same in (
            (_named(self.participants), _named(members), same_members),
            (self.location, location, self.location == location),
        ):
            if not same:
                raise OwnershipError(
                    f"The plan was made for {planned}, but is to be executed on {found}. Nothing "
                    "was done: make a plan for this one."
                )

    def count(self, *actions: Action) -> int:
        """How many steps have one of these actions."""
        return sum(step.action in actions for step in self.steps)

    @property
    def needs_person(self) -> bool:
        """Whether a step, or a start, waits for a decision that no program may take."""
        return self.refusal is not None or self.count(Action.ASK, Action.ORPHAN) > 0

    def to_json(self) -> bytes:
        """Indented JSON, the same for the same plan; holds no secret."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)

    @classmethod
    def from_json(cls, data: bytes | str) -> Plan:
        """Read what ``to_json`` wrote.

        Raises:
            ConfigurationError: It is no plan, or one of another format version.
        """
        try:
            plan = msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"This is not a recovery plan: {error}. Make one with `airflow-eos plan --out`."
            ) from error
        if plan.format_version != FORMAT_VERSION:
            raise ConfigurationError(
                f"The plan has format version {plan.format_version}, this version of airflow-eos "
                f"reads {FORMAT_VERSION}. Make the plan again."
            )
        return plan


def _named(members: Sequence[Member]) -> str:
    return " and ".join(map(str, members))

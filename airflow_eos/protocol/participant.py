"""The port: all that the driver and recovery know of a system that takes part in decisions.

Its verbs need no Spark and may be repeated by any process at any time. What runs inside Spark is
the other half, :class:`airflow_eos.sinks.port.Sink`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from airflow_eos.protocol.decision import Decision
from airflow_eos.protocol.ownership import Owner, Ownership
from airflow_eos.protocol.promise import Promise, Said
from airflow_eos.protocol.work import OpenWork, Outcome, PreparedWork, WorkIdentity


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who takes part: what a checkpoint remembers of a participant, without secrets.

    Attributes:
        name: the name that the user gave.
        kind: ``kafka``, ``files``, …
        address: what must never change under this name, such as a cluster's id.
        target: where the rows go, for people; it may change.
    """

    name: str
    kind: str
    address: dict[str, str]
    target: str = ""

    def is_at(self, other: Member) -> bool:
        """Whether both are the same participant at the same address."""
        return (self.name, self.kind, self.address) == (other.name, other.kind, other.address)

    def __str__(self) -> str:
        at = ", ".join(f"{what} {value!r}" for what, value in sorted(self.address.items()))
        return f"{self.kind} {self.name!r} ({at})"


class Heir(Protocol):
    """A participant under whose name a new checkpoint may go on from where an older one ended."""

    def inherit(self, owner: Owner) -> None:
        """Forget how far the name delivered, and own it for ``owner``."""
        ...


class SharesNames(Protocol):
    """A participant in whose system other programs can use names like its own."""

    def lookalikes(self) -> tuple[OpenWork, ...]:
        """Open work under such names, and whose by their form; never ended but by a person."""
        ...


class Mixing(Protocol):
    """A participant in whose system the end of one work can be the end of an older one as well."""

    def require_unmixed(self, works: Sequence[PreparedWork]) -> None:
        """Refuse, before it is decided, work whose commit would show more than its own rows.

        Raises:
            DeliveryError: with what is in its way; nothing was changed.
        """
        ...


class Participant(Protocol):
    """One system under one name, as one process reaches it; or several as one.

    Work is given to the participant that it names. See :class:`~airflow_eos.protocol.group.Group`.
    """

    @property
    def members(self) -> tuple[Member, ...]:
        """Who it is, asked of the system itself where that is possible; several of a group."""
        ...

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that this kind does not understand, before any of it is acted upon.

        Raises:
            CheckpointFormatError: a decision names what nobody can commit.
        """
        ...

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Make each visible and say what became of it; never returns OPEN."""
        ...

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove each; False where it had ended before. Never touches what another prepared."""
        ...

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove promised work that a person has given up, though it could still be committed.

        It is never committed afterwards. What was made visible before stays so, and is False.
        """
        ...

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask the witness what became of each, without touching it."""
        ...

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """All prepared work under the pipeline's name that has not ended, whoever prepared it.

        ``besides`` are left out, which makes asking cheaper.
        """
        ...

    def claim(self, owner: Owner) -> None:
        """Own the name in that system if nobody does.

        A checkpoint cannot know that another one uses the same name, or that it is an older copy;
        a system that can remember it does, for :meth:`ownership` to tell.
        """
        ...

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """What the system remembers of the name; nothing of one that cannot remember.

        Args:
            asking: who wants to know.

        Raises:
            OwnershipError: the system itself was set back.
        """
        ...

    def require_settled(self, promise: Promise, said: Said) -> None:
        """Refuse a system that has lost what it had, where it can tell: nobody delivers it again.

        A backup was put back, or a standby took over that lagged.

        Args:
            promise: of a batch that was settled: a newer one was planned, or Spark completed it.
            said: what a person said of it.

        Raises:
            OwnershipError: with what is gone and how to go on without it.
        """
        ...

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remember, outside the checkpoint, a decision that ``owner`` is going to rely on."""
        ...

    def close(self) -> None:
        """Let go of connections; never ends prepared work."""
        ...

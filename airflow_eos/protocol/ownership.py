"""Who owns a name in a system, and how far its owner has delivered; pure.

A checkpoint cannot know that another one uses the same name, or that it was restored from an older
copy: both would take away what is promised elsewhere, or deliver again. So the system that is
delivered to remembers it: who claimed the name first, and for each driver the newest decision that
it relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from airflow_eos.errors import OwnershipError
from airflow_eos.protocol.decision import Decision


class Note(msgspec.Struct, frozen=True, order=True):
    """A decision that was relied on: its batch, attempt and nonce."""

    batch: int
    attempt: int
    decision: str


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a system remembers of one name.

    Attributes:
        owner: the location of the checkpoint whose claim is the earliest; None where none is.
        newest: the highest note of all drivers; None where no batch was delivered yet.
        keys: of what was read, to forget it by.
    """

    owner: str | None
    newest: Note | None
    keys: tuple[bytes, ...] = ()

    def require(
        self,
        location: str,
        *,
        called: str,
        give_up: str,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """Refuse a name of another checkpoint, and a checkpoint older than what it delivered.

        Args:
            location: of the checkpoint that wants to use it.
            called: the name for people, such as "prefix 'etl'".
            give_up: what a person does to let another checkpoint have it.
            newest_planned: the newest batch of Spark's offset log there.
            decisions_of: the decisions of a batch there.

        Raises:
            OwnershipError: with what was found and how to go on.
        """
        self.require_place(location, called=called, give_up=give_up)
        note = self.newest
        planned = -1 if newest_planned is None else newest_planned
        if note is None or planned > note.batch:
            return  # a later batch was planned on it, so it has seen this one through
        # Its decision alone says nothing where the batch is not even planned: a driver that was
        # alive when the copy was put back in place has written it there.
        decided = decisions_of(note.batch) if planned == note.batch else ()
        if not any(each.nonce == note.decision for each in decided):
            raise OwnershipError(
                f"Checkpoint {location} (newest batch {planned}) does not hold the decision of "
                f"batch {note.batch}, attempt {note.attempt}, which was delivered under the "
                f"{called}: it was lost, or restored from an older copy, and would deliver rows "
                "again. Restore the newest copy (offsets/, commits/ and eos/ together). To start "
                f"anew knowingly, use a new name, or: {give_up}."
            )

    def require_place(self, location: str, *, called: str, give_up: str) -> None:
        """Refuse a name of another checkpoint; the arguments are those of :meth:`require`.

        Raises:
            OwnershipError: with who owns it and how to go on.
        """
        if self.owner is not None and self.owner != same_place(location):
            raise OwnershipError(
                f"The {called} belongs to the checkpoint {self.owner}, not to {location}. Choose "
                f"another one. If you moved the checkpoint on purpose: {give_up}, then start again."
            )


def same_place(location: str) -> str:
    """The location, alike for the schemes by which Hadoop and others name one store."""
    scheme, found, rest = location.partition("://")
    aliases = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs"}
    return f"{aliases.get(scheme, scheme)}://{rest}" if found else location

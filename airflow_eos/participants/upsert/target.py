"""What an upsert asks of a system, and how its rows are told apart; pure.

Each row in the target carries the version that wrote it, and a row is written only where no newer
version stands: so a driver that is late can never put an older value over a newer one, and applying
again changes nothing. A version is text of a fixed width that sorts as it counts:

- the epoch: given by the target, in one step, to each checkpoint that comes to own it, always a
  greater one; batch numbers of a new checkpoint begin at 0 again;
- the batch;
- the task: where a key comes twice in a batch, the last row of the highest task stays. What is
  applied is what was decided, never a second evaluation, so that is always the same row. Attempts
  at a batch need no place: they deliver the same rows, which their fingerprints prove.

The target keeps who owns it and how far that one has come (see
:mod:`airflow_eos.protocol.participant`); one pipeline, and one participant of it, writes there. And
it counts what was written: one that counts less than the checkpoint has marked was set back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from airflow_eos.errors import OwnershipError, StoreError
from airflow_eos.participants.kept.rows import batch_of, task_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.protocol.participant import Note

_ABOUT = b"eos.upsert"
_TASK_DIGITS = 10


class About(msgspec.Struct, frozen=True):
    """What kept rows say of themselves: ``key`` columns, and the column that tells of deletes."""

    key: tuple[str, ...]
    deleted: str | None = None

    def metadata(self) -> dict[str, str]:
        """For the schema of the rows."""
        return {_ABOUT.decode(): msgspec.json.encode(self).decode()}

    @classmethod
    def of(cls, rows: pa.Table, where: str) -> About:
        """As the rows tell it.

        Raises:
            StoreError: they do not.
        """
        try:
            return msgspec.json.decode((rows.schema.metadata or {})[_ABOUT], type=cls)
        except (KeyError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"{where}: the rows do not tell which columns are their key: no rows of an upsert. "
                "Nothing was applied."
            ) from error


class Owner(msgspec.Struct, frozen=True):
    """Whose the target is: the location of a checkpoint, its random id, and its epoch."""

    location: str
    checkpoint: str
    epoch: int


class Target(Protocol):
    """One table, or one prefix of keys, as one process reaches it."""

    @property
    def address(self) -> Mapping[str, str]:
        """What never changes, without secrets: ``system`` and ``target``."""
        ...

    @property
    def give_up(self) -> str:
        """What a person does to let another checkpoint have it."""
        ...

    def check(self) -> None:
        """Refuse a system that cannot keep what is promised (ConfigurationError)."""

    def marked(self) -> str:
        """The random id of the target, created where there is none yet."""
        ...

    def mark(self) -> str | None:
        """The random id of the target; None where there is none."""
        ...

    def claim(self, location: str, checkpoint: str) -> None:
        """Own the target if nobody does, with a new epoch, in one step."""

    def owner(self) -> Owner | None:
        """Whose it is."""
        ...

    def note(self, note: Note, checkpoint: str) -> None:
        """Remember the highest note, of the owner alone (OwnershipError)."""

    def newest(self) -> Note | None:
        """The highest note, which is the owner's."""
        ...

    def life(self) -> str:
        """Another text once another server answers, which may lack what this one acknowledged."""
        ...

    def tally(self) -> int:
        """What :meth:`count` has counted to; 0 where nothing is there."""
        ...

    def count(self, known: int) -> int | None:
        """One more, in one step; None where it is below ``known`` by now, and nothing is counted.

        Whoever has written rows counts afterwards, and keeps the number elsewhere: a system that
        was set back to a time before has not counted so far, and cannot come to it unseen.
        """
        ...

    def go_on(self, tally: int) -> str:
        """What a person does to go on with a target that was set back, though it lacks rows."""
        ...

    def apply(self, rows: pa.Table, about: About, checkpoint: str, order: str) -> int:
        """Write each row that is not older than what stands, if the checkpoint is the owner's.

        Args:
            rows: each key once.
            about: its columns.
            checkpoint: its random id.
            order: what comes after the epoch in the version; see :func:`order_of`.

        Returns:
            How many rows were older than what stands.

        Raises:
            OwnershipError: it is not, and nothing was written.
            DeliveryError: the system refused or did not answer; some may be written.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""


class Reached(Protocol):
    """How a user names a target: a value."""

    def open(self, *, timeout_s: float) -> Target:
        """Reach it."""
        ...


@dataclass(frozen=True)
class Lacking:
    """The message where the library of a system is missing."""

    system: str
    package: str

    def __str__(self) -> str:
        return (
            f"An upsert into {self.system} needs the package {self.package}, which is not "
            f"installed here: pip install 'airflow-provider-eos[{self.system}]'."
        )


def epoch_text(epoch: int) -> str:
    """The first part of a version."""
    return f"{epoch:016d}"


def order_of(key: str) -> str:
    """The rest of a version, from the key of the work."""
    return f"{batch_of(key):019d}{task_of(key):0{_TASK_DIGITS}d}"


def batch_and_task(order: str) -> tuple[int, int]:
    """What :func:`order_of` has written, as numbers."""
    return int(order[:-_TASK_DIGITS]), int(order[-_TASK_DIGITS:])


def not_ours(called: str, owner: Owner | None, give_up: str) -> OwnershipError:
    """The error of who would write what belongs to another."""
    whose = f"belongs to the checkpoint {owner.location}" if owner else "belongs to nobody"
    return OwnershipError(
        f"{called} {whose} by now, and not to this one (or to another checkpoint at its place, or "
        "another participant of its pipeline). Nothing was written. If its data was lost or "
        f"removed, restore it. To let this checkpoint have it: {give_up}, then start the query."
    )


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    at = pa.array(np.arange(rows.num_rows))
    keys = rows.select(list(key)).append_column("__eos_at", at)
    last = keys.group_by(list(key), use_threads=False).aggregate([("__eos_at", "max")])
    if last.num_rows == rows.num_rows:
        return rows
    return rows.take(pc.take(last["__eos_at_max"], pc.sort_indices(last["__eos_at_max"])))


def one_of_each_number(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last of the rows whose keys are one number to SQL; the others are told apart already.

    To Arrow 0 and -0 are two keys, and so are two forms of NaN.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = [name for name in key if pa.types.is_floating(rows.schema.field(name).type)]
    for name in numbers:
        kind = rows.schema.field(name).type
        zero, nan = pa.scalar(0.0, kind), pa.scalar(float("nan"), kind)
        alike = pc.if_else(pc.is_nan(rows[name]), nan, pc.add(rows[name], zero))
        rows = rows.set_column(rows.schema.get_field_index(name), name, alike)
    return last_of_each(rows, key) if numbers else rows

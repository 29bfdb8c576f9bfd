"""What an upsert asks of a system, and how its rows are told apart; pure.

Each row in the target carries the version that wrote it, and a row is written only where no newer
version stands: so a driver that is late can never put an older value over a newer one, and applying
again changes nothing. A version is text of a fixed width that sorts as it counts:

- the epoch: given by the target, in one step, to each checkpoint that comes to own it, always one
  above all that stand; batch numbers of a new checkpoint begin at 0 again. A row of a greater one
  was put there by somebody else;
- the batch;
- the task: where a key comes twice in a batch, the last row of the highest task stays. What is
  applied is what was decided, never a second evaluation, so that is always the same row. Attempts
  at a batch need no place: they deliver the same rows, which their fingerprints prove.

The target keeps who owns it and how far that one has come (see
:mod:`airflow_eos.protocol.participant`); one pipeline, and one participant of it, writes there. And
it counts what was written: one that counts less than the checkpoint has marked was set back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.errors import ConfigurationError, OwnershipError, Remedy, StoreError
from airflow_eos.kinds.spill.participant import batch_of, task_of
from airflow_eos.protocol.participant import Note

_ABOUT = b"eos.upsert"
_TASK_DIGITS = 10


class RowSchema(msgspec.Struct, frozen=True):
    """What kept rows say of themselves: ``key`` columns, and the column that tells of deletes."""

    key: tuple[str, ...]
    deleted: str | None = None

    def __str__(self) -> str:
        """For people."""
        deletes = f", deletes by {self.deleted}" if self.deleted is not None else ""
        return f"key {', '.join(self.key)}{deletes}"

    def metadata(self) -> dict[str, str]:
        """For the schema of the rows."""
        return {_ABOUT.decode(): msgspec.json.encode(self).decode()}

    @classmethod
    def of(cls, rows: pa.Table, where: str) -> RowSchema:
        """As the rows tell it (StoreError: they do not)."""
        try:
            return msgspec.json.decode((rows.schema.metadata or {})[_ABOUT], type=cls)
        except (KeyError, msgspec.MsgspecError, RecursionError) as error:
            raise StoreError(
                f"{where}: the rows do not tell which columns are their key: no rows of an upsert. "
                "Nothing was applied."
            ) from error


class TargetOwner(msgspec.Struct, frozen=True):
    """Whose the target is: the location of a checkpoint, its random id, and its epoch."""

    location: str
    checkpoint: str
    epoch: int


class UpsertConnection(Protocol):
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

    def owner(self) -> TargetOwner | None:
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

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """Write each row that is not older than what stands, if the checkpoint is the owner's.

        Args:
            rows: each key once.
            about: its columns.
            checkpoint: its random id.
            order: what comes after the epoch in the version; see :func:`order_of`.

        Returns:
            How many rows were older than what stands.

        Raises:
            OwnershipError: it is not, or rows of a greater epoch stand.
            DeliveryError: the system refused or did not answer; some may be written.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""


class TargetSpec(Protocol):
    """How a user names a target: a value."""

    def open(self, *, timeout_s: float) -> UpsertConnection:
        """Reach it."""
        ...


def lacking(system: str, package: str) -> ConfigurationError:
    """The error where the library of a system is missing."""
    return ConfigurationError(
        f"An upsert into {system} needs the package {package}, which is not installed here: "
        f"pip install 'airflow-provider-eos[{system}]'."
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


def not_ours(called: str, owner: TargetOwner | None, give_up: str) -> OwnershipError:
    """The error of who would write what belongs to another."""
    whose = f"belongs to the checkpoint {owner.location}" if owner else "belongs to nobody"
    return OwnershipError(
        f"{called} {whose} by now, and not to this one (or to another checkpoint at its place, or "
        "another participant of its pipeline). Nothing was written. If its data was lost or "
        f"removed, restore it. To let this checkpoint have it: {give_up}, then start the query."
    )


def outranked(called: str, give_up: str, *others: Remedy) -> OwnershipError:
    """The error of who would leave out what is promised: an epoch is above all that stood."""
    return OwnershipError(
        f"{called} has rows of a greater epoch than this checkpoint's: somebody has put them there "
        "since, as from a copy of another table. What is promised would be left out for older; it "
        "stays promised.",
        Remedy(change=give_up, start=True),
        *others,
    )


# --- tables ---------------------------------------------------------------------------------------
# What a target in SQL keeps of itself: its row in a small table of ours, beside it.


OURS = "airflow_eos_upserts"
"""Stands for our table in all that is asked."""
_GIVE_UP = """
UPDATE airflow_eos_upserts SET owner_location = NULL, owner_checkpoint = NULL, owner_epoch = NULL,
note_batch = NULL, note_attempt = NULL, note_decision = NULL WHERE target = '{}'
""".strip().replace("\n", " ")
_GO_ON = """
UPDATE airflow_eos_upserts SET tally = {}, note_batch = NULL, note_attempt = NULL,
note_decision = NULL WHERE target = '{}'
""".strip().replace("\n", " ")
_MARK_OF = "SELECT mark FROM airflow_eos_upserts WHERE target = %s"
OWNER = """
SELECT owner_location, owner_checkpoint, owner_epoch FROM airflow_eos_upserts
WHERE target = %s AND owner_location IS NOT NULL
"""
_NEWEST = """
SELECT note_batch, note_attempt, note_decision FROM airflow_eos_upserts
WHERE target = %s AND note_batch IS NOT NULL
"""
_TALLY = "SELECT tally FROM airflow_eos_upserts WHERE target = %s"


IDLE_S = 10.0
"""After so long nothing is asked before it is known that the connection still stands: its server,
or what is between, may have closed it."""


class TableSession(ABC):
    """The database of a target, and our table in it.

    Args:
        client: the module of its client.
        timeout_s: seconds to connect.
    """

    def __init__(self, client: Any, *, timeout_s: float) -> None:
        self.client = client
        self.connected: Any = None
        self._timeout_s = timeout_s
        self._used_at = time.monotonic()

    @property
    @abstractmethod
    def table(self) -> str:
        """The target's: one table has one name."""

    @property
    @abstractmethod
    def ours(self) -> str:
        """Our own table, beside it."""

    @abstractmethod
    def rows(self, doing: str, statement: str, *given: object) -> list[Any]:
        """The answer (DeliveryError: there was none)."""

    @abstractmethod
    def has_ours(self, doing: str) -> bool:
        """Whether our table is there."""

    def close(self) -> None:
        """Close the connection, which rolls back what was not committed."""
        if self.connected is not None:
            with suppress(self.client.Error):
                self.connected.close()
            self.connected = None

    @abstractmethod
    def _ping(self) -> None:
        """Ask the server for nothing."""

    def _let_go_if_lost(self) -> None:
        before, self._used_at = self._used_at, time.monotonic()
        if self._used_at - before > IDLE_S and self.connected is not None:
            try:
                self._ping()
            except self.client.Error:
                self.close()


class TableTarget:
    """Most of an :class:`UpsertConnection` to a table."""

    system: ClassVar[tuple[str, str]]
    """Its name in addresses, and for people."""
    _session: TableSession

    @property
    def address(self) -> Mapping[str, str]:
        """See :attr:`UpsertConnection.address`."""
        return {"system": self.system[0], "target": self._session.table}

    @property
    def give_up(self) -> str:
        """Keeps the mark and the last epoch."""
        return _GIVE_UP.format(self._session.table).replace(OURS, self._session.ours)

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`."""
        return _GO_ON.format(tally, self._session.table).replace(OURS, self._session.ours)

    def mark(self) -> str | None:
        """See :meth:`UpsertConnection.mark`."""
        doing = "reading the mark of the target"
        if not self._session.has_ours(doing):
            return None
        found = self._session.rows(doing, _MARK_OF, self._session.table)
        return found[0][0] if found else None

    def owner(self) -> TargetOwner | None:
        """See :meth:`UpsertConnection.owner`."""
        doing = "reading whose the target is"
        found = self._session.rows(doing, OWNER, self._session.table)
        return TargetOwner(*found[0]) if found else None

    def newest(self) -> Note | None:
        """See :meth:`UpsertConnection.newest`."""
        doing = "reading how far the target has come"
        found = self._session.rows(doing, _NEWEST, self._session.table)
        if not found:
            return None
        [(batch, attempt, decision)] = found
        return Note(batch, attempt, decision, "")

    def tally(self) -> int:
        """See :meth:`UpsertConnection.tally`."""
        doing = "reading how far the target has counted"
        found = self._session.rows(doing, _TALLY, self._session.table)
        return int(found[0][0]) if found else 0

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def not_ours(self, owner: TargetOwner | None) -> OwnershipError:
        """The error of who would write what belongs to another."""
        return not_ours(self._called, owner, self.give_up)

    def outranked(self) -> OwnershipError:
        """See :func:`outranked`."""
        no_number = "where eos_version of a row is no number, set it to NULL"
        return outranked(self._called, self.give_up, Remedy(change=no_number, start=True))

    @property
    def _called(self) -> str:
        return f"Table {self._session.table!r} in {self.system[1]}"


# --- rows -----------------------------------------------------------------------------------------


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    import numpy as np

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
    numbers = [name for name in key if pa.types.is_floating(rows.schema.field(name).type)]
    for name in numbers:
        kind = rows.schema.field(name).type
        zero, nan = pa.scalar(0.0, kind), pa.scalar(float("nan"), kind)
        alike = pc.if_else(pc.is_nan(rows[name]), nan, pc.add(rows[name], zero))
        rows = rows.set_column(rows.schema.get_field_index(name), name, alike)
    return last_of_each(rows, key) if numbers else rows


# --- arguments ------------------------------------------------------------------------------------
# Rows as text as Arrow writes it, bytes as they are: for systems whose values have no types.


_PLAIN = """
    boolean tinyint smallint int bigint float double decimal string binary date timestamp
    timestamp_ntz
"""
PLAIN = frozenset(_PLAIN.split())
"""Spark's types whose values are text, without their precision."""


def require_plain(columns: Mapping[str, str], system: str, *, ours: str, which: str) -> None:
    """Refuse columns (names and Spark's types) whose values are no text.

    Args:
        columns: of the rows.
        system: for the message.
        ours: the name that none of them may have.
        which: says what that name is for.

    Raises:
        ConfigurationError: which columns, and what was expected.
    """
    others = [name for name, kind in columns.items() if kind.partition("(")[0] not in PLAIN]
    if others or ours in columns:
        raise ConfigurationError(
            f"Columns {', '.join(others) or ours} cannot go to {system}: expected plain values "
            f"(to_json makes text of others), and {ours} {which}."
        )


def keys_of(rows: pa.Table, key: tuple[str, ...], prefix: str) -> list[bytes]:
    """The keys of the rows, see :func:`joined_keys`, each with the prefix."""
    return [prefix.encode() + each for each in joined_keys(rows, key).to_pylist()]


def joined_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    """The keys of the rows; several columns are joined so that no two rows ever meet."""
    parts = [text_of(rows[name]) for name in key]
    if len(parts) > 1:
        for mark, instead in ((b"%", b"%25"), (b":", b"%3A")):
            parts = [pc.replace_substring(part, mark, instead) for part in parts]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.binary()))


def flags_of(rows: pa.Table, deleted: str | None) -> list[bytes]:
    """Whether each row is deleted: ``1`` or ``0``."""
    if deleted is None:
        return [b"0"] * rows.num_rows
    return [b"1" if each else b"0" for each in rows[deleted].to_pylist()]


def with_tombstones(rows: pa.Table, about: RowSchema) -> pa.Table:
    """The same rows, of which a deleted one has its key and its flag alone."""
    if about.deleted is None:
        return rows
    gone = pc.fill_null(rows[about.deleted], False)  # noqa: FBT003
    for place, name in enumerate(rows.column_names):
        if name == about.deleted:
            rows = rows.set_column(place, name, gone)
        elif name not in about.key:
            column = pc.if_else(gone, pa.scalar(None, rows[name].type), rows[name])
            rows = rows.set_column(place, name, column)
    return rows


def values_of(column: pa.ChunkedArray) -> list[bytes]:
    """``+`` and the value, or ``-`` for a null."""
    plus, none = pa.scalar(b"+", pa.binary()), pa.scalar(b"", pa.binary())
    return list(
        pc.fill_null(pc.binary_join_element_wise(plus, text_of(column), none), b"-").to_pylist()
    )


def text_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as bytes: those of its text, in UTC where it is an instant."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # One text for an instant, whatever the zone of the session is: it may be a key.
        column = column.cast(pa.timestamp("us", "UTC"))
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if is_bytes else column.cast(pa.string())).cast(pa.binary())

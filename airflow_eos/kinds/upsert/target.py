"""The port of an upsert target, the versions of its rows, and the base of targets in SQL.

Each row in the target carries the version that wrote it, and a row is written only where no newer
version stands: so a late driver can never put an older value over a newer one, and applying again
changes nothing. A version is text of a fixed width that sorts as its numbers do:

- the epoch: given by the target, in one step, to each checkpoint that comes to own it, always one
  above all that stand; batch numbers of a new checkpoint begin at 0 again. A row of a greater
  epoch was put there by somebody else;
- the batch;
- the task: where a key comes twice in a batch, the last row of the highest task stays. Decided rows
  are applied, never a second evaluation, so that is always the same row. Attempts at a batch are
  not in it: they deliver the same rows, which their fingerprints prove.

The target keeps its owner and the owner's newest note (see
:mod:`airflow_eos.core.protocol.participant`); one pipeline, and one participant of it, writes
there. And it counts writes: a target that counts less than the checkpoint has marked was set back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_eos.core.protocol.participant import Note
from airflow_eos.errors import ConfigurationError, OwnershipError, Remedy, StoreError
from airflow_eos.kinds.spill.participant import batch_of, task_of

_ABOUT = b"eos.upsert"
_TASK_DIGITS = 10
LAST_ORDER = "9" * (19 + _TASK_DIGITS)
"""The rest of the version that a trial writes: it replaces every row of its epoch."""


class RowSchema(msgspec.Struct, frozen=True):
    """The schema metadata of kept rows: their ``key`` columns, and the column of deletes."""

    key: tuple[str, ...]
    deleted: str | None = None

    def __str__(self) -> str:
        """Return the schema as text for errors."""
        deletes = f", deletes by {self.deleted}" if self.deleted is not None else ""
        return f"key {', '.join(self.key)}{deletes}"

    def metadata(self) -> dict[str, str]:
        """Return the metadata for the Arrow schema of the rows."""
        return {_ABOUT.decode(): msgspec.json.encode(self).decode()}

    @classmethod
    def of(cls, rows: pa.Table, where: str) -> RowSchema:
        """Read the metadata from the rows' Arrow schema (StoreError: it is not there)."""
        try:
            return msgspec.json.decode((rows.schema.metadata or {})[_ABOUT], type=cls)
        except (KeyError, msgspec.MsgspecError, RecursionError) as error:
            raise StoreError(
                f"{where}: the rows do not tell which columns are their key: no rows of an upsert. "
                "Nothing was applied."
            ) from error


class TargetOwner(msgspec.Struct, frozen=True):
    """The owner of a target: the location of a checkpoint, its random id, and its epoch."""

    location: str
    checkpoint: str
    epoch: int


class UpsertConnection(Protocol):
    """A connection to one upsert target: one table, or one prefix of keys."""

    @property
    def address(self) -> Mapping[str, str]:
        """The target's constant address, without secrets: ``system`` and ``target``."""
        ...

    @property
    def give_up(self) -> str:
        """The command by which a person lets another checkpoint own the target."""
        ...

    def check(self) -> None:
        """Refuse a system that could lose or refuse promised rows (ConfigurationError)."""

    def ensure_instance_id(self) -> str:
        """Return the random id of the target; create one where there is none."""
        ...

    def instance_id(self) -> str | None:
        """Return the random id of the target; None where there is none."""
        ...

    def claim(self, location: str, checkpoint: str) -> None:
        """Write the checkpoint as owner, with a new epoch, if there is no owner; in one step."""

    def owner(self) -> TargetOwner | None:
        """Return the owner of the target; None where it has none."""
        ...

    def note(self, note: Note, checkpoint: str) -> None:
        """Write the note if it is the highest; refuse all but the owner (OwnershipError)."""

    def newest(self) -> Note | None:
        """Return the highest note, which is the owner's; None where there is none."""
        ...

    def life(self) -> str:
        """Return a text that differs for another server, which may lack acknowledged rows."""
        ...

    def tally(self) -> int:
        """Return the number that :meth:`count` has come to; 0 where there is none."""
        ...

    def count(self, known: int) -> int | None:
        """Add one to the tally in one step and return it; None, unchanged, if below ``known``.

        A process counts after it has written rows, and keeps the number elsewhere: a system that
        was set back to a time before has a lower tally, and cannot reach that number unseen.
        """
        ...

    def go_on(self, tally: int) -> str:
        """Return the command by which a person goes on with a target that was set back."""
        ...

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """Write each row unless a newer version of it stands; refuse all but the owner.

        Args:
            rows: the rows, each key once.
            about: the columns of their key, and of deletes.
            checkpoint: the checkpoint's random id.
            order: the part of the version after the epoch; see :func:`order_of`.

        Returns:
            How many rows were older than those in the target.

        Raises:
            OwnershipError: another checkpoint is the owner, or rows of a greater epoch stand.
            DeliveryError: the system refused or did not answer; some rows may be written.
        """
        ...

    def tried(self, rows: pa.Table, about: RowSchema) -> None:
        """Refuse rows that the target does not take, in a task, before they are decided.

        Where a system has transactions all is done that :meth:`apply` does to them, over whatever
        stands, and one row is replaced; and all is rolled back.

        Raises:
            DeliveryError: the system refused, or did not answer; nothing was written.
            OwnershipError: the target belongs to nobody, or has rows of a greater epoch.
        """

    def close(self) -> None:
        """Close the connections."""


class TargetSpec(Protocol):
    """A target as a user gives it: a value that can be opened."""

    def open(self, *, timeout_s: float) -> UpsertConnection:
        """Return a connection to the target."""
        ...


def lacking(system: str, package: str) -> ConfigurationError:
    """Return the error for a missing client library."""
    return ConfigurationError(
        f"An upsert into {system} needs the package {package}, which is not installed here: "
        f"pip install 'airflow-provider-eos[{system}]'."
    )


TRYING = "trying rows before they are decided"
"""What a task does, in errors; see :meth:`UpsertConnection.tried`."""


def left_by(doing: str) -> str:
    """Return what an error has left behind in the target, and what to do."""
    if doing == TRYING:
        return "Nothing of its batch was written: put that right, then start the query again."
    return (
        "What was written is not known, and writing it again is harmless: put that right, then "
        "start the query again or run a recovery."
    )


def epoch_text(epoch: int) -> str:
    """Return the first part of a version."""
    return f"{epoch:016d}"


def order_of(key: str) -> str:
    """Return the rest of a version, batch and task, from the key of the work."""
    return f"{batch_of(key):019d}{task_of(key):0{_TASK_DIGITS}d}"


def batch_and_task(order: str) -> tuple[int, int]:
    """Return batch and task from the text that :func:`order_of` has made."""
    return int(order[:-_TASK_DIGITS]), int(order[-_TASK_DIGITS:])


def not_ours(called: str, owner: TargetOwner | None, give_up: str) -> OwnershipError:
    """Return the error for a target that belongs to another checkpoint, or to nobody."""
    whose = f"belongs to the checkpoint {owner.location}" if owner else "belongs to nobody"
    return OwnershipError(
        f"{called} {whose} by now, and not to this one (or to another checkpoint at its place, or "
        "another participant of its pipeline). Nothing was written. If its data was lost or "
        f"removed, restore it. To let this checkpoint have it: {give_up}, then start the query."
    )


def outranked(called: str, give_up: str, *others: Remedy) -> OwnershipError:
    """Return the error for rows of a greater epoch, which would keep promised rows out."""
    return OwnershipError(
        f"{called} has rows of a greater epoch than this checkpoint's: somebody has put them there "
        "since, as from a copy of another table. What is promised would be left out for older; it "
        "stays promised.",
        Remedy(change=give_up, start=True),
        *others,
    )


# --- tables ---------------------------------------------------------------------------------------
# The base of targets in SQL, whose owner, note and tally are a row in a small table of ours.


OURS = "airflow_eos_upserts"
"""The name of our table in statements, which a session may replace by a qualified one."""
_GIVE_UP = """
UPDATE airflow_eos_upserts SET owner_location = NULL, owner_checkpoint = NULL, owner_epoch = NULL,
note_batch = NULL, note_attempt = NULL, note_decision = NULL WHERE target = '{}'
""".strip().replace("\n", " ")
_GO_ON = """
UPDATE airflow_eos_upserts SET tally = {}, note_batch = NULL, note_attempt = NULL,
note_decision = NULL WHERE target = '{}'
""".strip().replace("\n", " ")
_INSTANCE_ID_OF = "SELECT mark FROM airflow_eos_upserts WHERE target = %s"
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
"""The idle time after which a connection is tried before it is used: its server, or a proxy in
between, may have closed it."""


class TableSession(ABC):
    """A connection to a target's database, which has our own table, too.

    Args:
        client: the module of the client library.
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
        """The target's table, by the one name that it has in our table."""

    @property
    @abstractmethod
    def ours(self) -> str:
        """Our own table, beside the target's."""

    @abstractmethod
    def rows(self, doing: str, statement: str, *given: object) -> list[Any]:
        """Run a statement and return the rows of its answer (DeliveryError: there was none)."""

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
        """Send a request without effect, to see whether the connection still stands."""

    def _let_go_if_lost(self) -> None:
        before, self._used_at = self._used_at, time.monotonic()
        if self._used_at - before > IDLE_S and self.connected is not None:
            try:
                self._ping()
            except self.client.Error:
                self.close()


class TableTarget:
    """The base of each :class:`UpsertConnection` to a table in SQL."""

    system: ClassVar[tuple[str, str]]
    """The system's name in addresses, and in errors."""
    _session: TableSession

    @property
    def address(self) -> Mapping[str, str]:
        """See :attr:`UpsertConnection.address`."""
        return {"system": self.system[0], "target": self._session.table}

    @property
    def give_up(self) -> str:
        """See :attr:`UpsertConnection.give_up`; mark and last epoch stay."""
        return _GIVE_UP.format(self._row).replace(OURS, self._session.ours)

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`."""
        return _GO_ON.format(tally, self._row).replace(OURS, self._session.ours)

    def instance_id(self) -> str | None:
        """See :meth:`UpsertConnection.instance_id`."""
        doing = "reading the mark of the target"
        if not self._session.has_ours(doing):
            return None
        found = self._session.rows(doing, _INSTANCE_ID_OF, self._session.table)
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
        """Return the error for a table that belongs to another checkpoint, or to nobody."""
        return not_ours(self._called, owner, self.give_up)

    def outranked(self) -> OwnershipError:
        """See :func:`outranked`."""
        no_number = "where eos_version of a row is no number, set it to NULL"
        return outranked(self._called, self.give_up, Remedy(change=no_number, start=True))

    @property
    def _row(self) -> str:
        """The name of the target's row in our table, as a text in a statement for a person."""
        return self._session.table.replace("'", "''")

    @property
    def _called(self) -> str:
        return f"Table {self._session.table!r} in {self.system[1]}"


# --- rows -----------------------------------------------------------------------------------------


_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of the rows.

    Texts and bytes become large ones: a task may have more of them than the 2 GiB that a column of
    the others holds once it is sorted.
    """
    kinds = [each.with_type(_LARGE.get(each.type, each.type)) for each in rows.schema]
    rows = rows.cast(pa.schema(kinds, metadata=rows.schema.metadata))
    at = pa.array(np.arange(rows.num_rows))
    keys = rows.select(list(key)).append_column("__eos_at", at)
    last = keys.group_by(list(key), use_threads=False).aggregate([("__eos_at", "max")])
    if last.num_rows == rows.num_rows:
        return rows
    stays = np.zeros(rows.num_rows, dtype=bool)
    stays[last["__eos_at_max"].to_numpy()] = True
    return rows.filter(pa.array(stays))


def one_of_each_number(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last of rows whose keys are equal numbers to SQL, though not to Arrow.

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
# Rows as text, as Arrow writes it, and bytes unchanged: for systems whose values have no types.


_PLAIN = """
    boolean tinyint smallint int bigint float double decimal string binary date timestamp
    timestamp_ntz
"""
PLAIN = frozenset(_PLAIN.split())
"""The Spark types, without precision, whose values can be written as text."""


def require_plain(columns: Mapping[str, str], system: str, *, ours: str, which: str) -> None:
    """Refuse columns (names and Spark's types) whose values cannot be written as text.

    Args:
        columns: of the rows.
        system: for the message.
        ours: the name that no column may have.
        which: the use of that name, for the message.

    Raises:
        ConfigurationError: with the columns, and what was expected.
    """
    others = [name for name, kind in columns.items() if kind.partition("(")[0] not in PLAIN]
    if others or ours in columns:
        raise ConfigurationError(
            f"Columns {', '.join(others) or ours} cannot go to {system}: expected plain values "
            f"(to_json makes text of others), and {ours} {which}."
        )


def keys_of(rows: pa.Table, key: tuple[str, ...], prefix: str) -> list[bytes]:
    """Return the keys of the rows, each with the prefix; see :func:`joined_keys`."""
    return [prefix.encode() + each for each in joined_keys(rows, key).to_pylist()]


def joined_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    """Return the keys of the rows; several columns are joined so that different keys differ."""
    parts = [text_of(rows[name]) for name in key]
    if len(parts) > 1:
        for mark, instead in ((b"%", b"%25"), (b":", b"%3A")):
            parts = [pc.replace_substring(part, mark, instead) for part in parts]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.large_binary()))


def flags_of(rows: pa.Table, deleted: str | None) -> list[bytes]:
    """Return for each row whether it is deleted: ``1`` or ``0``."""
    if deleted is None:
        return [b"0"] * rows.num_rows
    return [b"1" if each else b"0" for each in rows[deleted].to_pylist()]


def with_tombstones(rows: pa.Table, about: RowSchema) -> pa.Table:
    """Return the rows with all values of deleted ones null, but for key and flag."""
    if about.deleted is None:
        return rows
    gone = pc.fill_null(rows[about.deleted], False)  # noqa: FBT003
    for index, name in enumerate(rows.column_names):
        if name == about.deleted:
            rows = rows.set_column(index, name, gone)
        elif name not in about.key:
            column = pc.if_else(gone, pa.scalar(None, rows[name].type), rows[name])
            rows = rows.set_column(index, name, column)
    return rows


def values_of(column: pa.ChunkedArray) -> list[bytes]:
    """Return each value after a ``+``, or ``-`` for a null."""
    plus, none = (pa.scalar(each, pa.large_binary()) for each in (b"+", b""))
    return list(
        pc.fill_null(pc.binary_join_element_wise(plus, text_of(column), none), b"-").to_pylist()
    )


def text_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return each value as the bytes of its text, in UTC where it is an instant."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # An instant may be a key: it has one text, whatever the zone of the session is.
        column = column.cast(pa.timestamp("us", "UTC"))
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if is_bytes else column.cast(pa.large_string())).cast(pa.large_binary())

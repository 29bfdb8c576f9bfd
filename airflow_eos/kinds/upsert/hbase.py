"""Upserts into a column family of HBase, through its REST server.

==========================  =====================================================================
``<table>``                 a row for each key, a cell in the family for each other column, all of
                            them with one timestamp: the version that wrote them
``<family>:_eos``           the columns that are null, as a list of JSON: their cells are empty
``airflow_eos_upserts``     a small table of ours in the same namespace, a row for each target: its
                            mark, its owner with the newest note, its last epoch, its tally
==========================  =====================================================================

The guard is HBase's own: of two cells it shows the one with the greater timestamp, whichever came
last, and equal ones are the same row. A put is one step for its row, and writes every column.

Nothing is ever deleted in HBase: a null is an empty cell, and a deleted row one of which all cells
are empty but its flag. For HBase's own delete hides older cells only until a major compaction has
removed it; a late row would then come back.

Only rows are guarded in one step. Whose the target is, is looked at before each request, of some
megabytes; what a former owner sends after that look has the older epoch, and so stays below.

Several key columns are joined by ``:`` (their own ``%`` and ``:`` as ``%25`` and ``%3A``). Values
are text as Arrow writes them, times in UTC, and binary as it is.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import ConfigurationError, DeliveryError, OwnershipError, Remedy
from airflow_eos.kinds.upsert.columns import refuse_cells, refuse_times, refused
from airflow_eos.kinds.upsert.hbase_rest import (
    LAST_EPOCH,
    NEWEST,
    NULLS,
    Rest,
    epoch_in,
    requests_of,
    version_of,
)
from airflow_eos.kinds.upsert.target import (
    TargetOwner,
    batch_and_task,
    joined_keys,
    not_ours,
    require_plain,
)
from airflow_eos.protocol.participant import Note

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.kinds.upsert.target import RowSchema

_FOREVER = 2147483647  # seconds
_UNSAFE = ("SKIP_WAL", "ASYNC_WAL")


def refuse_schema(table: str, family: str, schema: Mapping[str, Any] | None) -> None:
    """Refuse a table that is not there, or could forget rows; ``schema`` as the REST server says.

    Raises:
        ConfigurationError: all that is wrong, and what was expected.
    """
    if schema is None:
        raise ConfigurationError(
            f"There is no table {table!r} for this user: create it (in the HBase shell: "
            f"create '{table}', '{family}')."
        )
    families = {each["name"]: each for each in schema.get("ColumnSchema", ())}
    if family not in families:
        raise ConfigurationError(
            f"Table {table!r} has no column family {family!r}: it has "
            f"{', '.join(sorted(families))}. Create it (alter '{table}', '{family}'), or give one "
            "of these."
        )
    wrong = []
    if int(families[family].get("TTL", _FOREVER)) != _FOREVER:
        wrong.append(
            f"has a TTL of {families[family]['TTL']} s on {family}, and timestamps that are "
            "versions tell no age: expected none "
            f"(alter '{table}', {{NAME => '{family}', TTL => 'FOREVER'}})"
        )
    if schema.get("DURABILITY") in _UNSAFE:
        wrong.append(
            f"has the durability {schema['DURABILITY']}, which loses what was acknowledged: "
            f"expected SYNC_WAL (alter '{table}', DURABILITY => 'SYNC_WAL')"
        )
    if str(schema.get("READONLY", "false")).lower() == "true":
        wrong.append(f"is read-only (alter '{table}', READONLY => 'false')")
    if wrong:
        raise ConfigurationError(f"Table {table!r} {'; '.join(wrong)}.")


# --- hbase_target ---------------------------------------------------------------------------------
# What an upsert asks of HBase: see :mod:`.hbase` for what lies there.


_OURS, _FAMILY = "airflow_eos_upserts", "m"
_MARK, _OWNER, _EPOCH, _PROBE, _TALLY = (
    f"{_FAMILY}:{name}" for name in ("mark", "owner", "epoch", "probe", "tally")
)


class _Owned(msgspec.Struct, frozen=True):
    """The cell that tells whose the target is, and how far that one has come."""

    owner: TargetOwner
    note: Note | None = None


class HBaseTarget:
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    def __init__(self, url: str, target: str, *, timeout_s: float) -> None:
        self._rest = Rest(url, timeout_s=timeout_s)
        self._target = target
        self._table, _, self._family = target.partition("/")
        namespace, colon, _ = self._table.rpartition(":")
        self._ours = f"{namespace}{colon}{_OURS}"
        self._row = f"{self._table}:{self._family}"

    @property
    def address(self) -> Mapping[str, str]:
        """The table, with its family."""
        return {"system": "hbase", "target": self._target}

    @property
    def give_up(self) -> str:
        """Keeps the mark and the last epoch."""
        return f"put '{self._ours}', '{self._row}', '{_OWNER}', '' (in the HBase shell)"

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`; the note is in the cell of the owner."""
        return f"put '{self._ours}', '{self._row}', '{_TALLY}', '{tally}' and {self.give_up}"

    def check(self) -> None:
        """It forgets nothing and may be written to, and our table is there."""
        refuse_schema(self._table, self._family, self._rest.schema(self._table))
        if self._rest.schema(self._ours) is None:
            self._rest.create(self._ours, _FAMILY)
        # Never written, since nothing has that value: but whoever may not write is told so.
        column, never = f"{self._family}:{NULLS}", uuid.uuid4().bytes
        self._rest.swap(self._table, self._row, {column: never}, column, never)
        # A server can be told to refuse timestamps that are no time of today.
        self._rest.put(self._ours, self._row, _PROBE, NEWEST)

    def marked(self) -> str:
        """See :meth:`UpsertConnection.marked`."""
        mark = {_MARK: uuid.uuid4().hex.encode()}
        self._rest.swap(self._ours, self._row, mark, _MARK, b"")
        return self.mark() or ""

    def mark(self) -> str | None:
        """See :meth:`UpsertConnection.mark`."""
        found = self._rest.row(self._ours, self._row).get(_MARK)
        return None if found is None else found.decode()

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        cells = self._rest.row(self._ours, self._row)
        if cells.get(_OWNER):
            return
        epoch = self._next_epoch(int(cells.get(_EPOCH, b"0")))
        owned = _Owned(TargetOwner(location, checkpoint, epoch))
        claimed = {_OWNER: msgspec.json.encode(owned), _EPOCH: str(epoch).encode()}
        # Whoever claims changes the epoch, so nobody has meanwhile, nor has and given it up again.
        self._rest.swap(self._ours, self._row, claimed, _EPOCH, cells.get(_EPOCH, b""))

    def owner(self) -> TargetOwner | None:
        """See :meth:`UpsertConnection.owner`."""
        owned, _ = self._owned()
        return None if owned is None else owned.owner

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.note`."""
        while True:
            owned, stands = self._owned_by(checkpoint)
            last = owned.note
            if last is not None and (note.batch, note.attempt) < (last.batch, last.attempt):
                return
            noted = msgspec.json.encode(_Owned(owned.owner, note))
            if self._rest.swap(self._ours, self._row, {_OWNER: noted}, _OWNER, stands):
                return

    def newest(self) -> Note | None:
        """See :meth:`UpsertConnection.newest`."""
        owned, _ = self._owned()
        return None if owned is None else owned.note

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`: any server has what HBase acknowledged."""
        return ""

    def tally(self) -> int:
        """See :meth:`UpsertConnection.tally`."""
        return int(self._tally() or 0)

    def count(self, known: int) -> int | None:
        """See :meth:`UpsertConnection.count`."""
        while True:
            stands = self._tally()
            number = int(stands or 0) + 1
            if number <= known:
                return None
            counted = {_TALLY: str(number).encode()}
            if self._rest.swap(self._ours, self._row, counted, _TALLY, stands):
                return number

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`; HBase does not tell how many rows were older: 0."""
        owned, _ = self._owned_by(checkpoint)
        version = version_of(owned.owner.epoch, *batch_and_task(order))
        for at, body in enumerate(requests_of(rows, about, self._family, version)):
            if at:
                self._owned_by(checkpoint)
            self._rest.put_all(self._table, body)
        return 0

    def close(self) -> None:
        """Close the connection."""
        self._rest.close()

    def _tally(self) -> bytes:
        return self._rest.row(self._ours, self._row).get(_TALLY, b"")

    def _owned_by(self, checkpoint: str) -> tuple[_Owned, bytes]:
        """The same as :meth:`_owned`, if it is this checkpoint's (OwnershipError)."""
        owned, stands = self._owned()
        if owned is None or owned.owner.checkpoint != checkpoint:
            owner = None if owned is None else owned.owner
            raise not_ours(f"Family {self._target!r} in HBase", owner, self.give_up)
        return owned, stands

    def _owned(self) -> tuple[_Owned | None, bytes]:
        """Whose it is, and the cell that says it."""
        stands = self._rest.row(self._ours, self._row).get(_OWNER, b"")
        try:
            return (msgspec.json.decode(stands, type=_Owned) if stands else None), stands
        except (msgspec.MsgspecError, RecursionError) as error:
            raise OwnershipError(
                f"The cell {_OWNER} of row {self._row!r} in HBase's table {self._ours!r} cannot be "
                f"read: {error}. It says who delivers into {self._target}. Nothing was guessed.",
                Remedy(change="put the cell back as it was", start=True),
                Remedy(
                    change=f"where nobody else delivers there: {self.give_up}",
                    start=True,
                    costs="an older copy of a checkpoint would not be noticed",
                ),
            ) from error

    def _next_epoch(self, last: int) -> int:
        """Greater than the last one, and than all in the table, also where our row was removed.

        Files without such a timestamp are not read for it.
        """
        epoch = last + 1
        while epoch <= LAST_EPOCH:
            newest = self._rest.newest_since(self._table, self._family, version_of(epoch, 0, 0))
            if newest is None:
                return epoch
            epoch = epoch_in(newest) + 1
        raise DeliveryError(
            f"Table {self._table!r} has cells with timestamps above every version, or "
            f"{LAST_EPOCH} checkpoints have owned it: use a new table."
        )


# --- hbase ----------------------------------------------------------------------------------------
# Upserts into a column family of HBase, through its REST server.
#
# ==========================  =====================================================================
# ``<table>``                 a row for each key, a cell in the family for each other column, all of
#                             them with one timestamp: the version that wrote them
# ``<family>:_eos``           the columns that are null, as a list of JSON: their cells are empty
# ``airflow_eos_upserts``     a small table of ours in the same namespace, a row for each target:
# its
#                             mark, its owner with the newest note, its last epoch, its tally
# ==========================  =====================================================================
#
# The guard is HBase's own: of two cells it shows the one with the greater timestamp, whichever came
# last, and equal ones are the same row. A put is one step for its row, and writes every column.
#
# Nothing is ever deleted in HBase: a null is an empty cell, and a deleted row one of which all
# cells
# are empty but its flag. For HBase's own delete hides older cells only until a major compaction has
# removed it; a late row would then come back.
#
# Only rows are guarded in one step. Whose the target is, is looked at before each request, of some
# megabytes; what a former owner sends after that look has the older epoch, and so stays below.
#
# Several key columns are joined by ``:`` (their own ``%`` and ``:`` as ``%25`` and ``%3A``). Values
# are text as Arrow writes them, times in UTC, and binary as it is.


_TARGET = re.compile(r"((?:[\w.-]+:)?[\w.-]+)/([\w.-]+)", re.ASCII)
_LONGEST_KEY = 32767  # bytes
_LONGEST_CELL = (10 << 20) - (1 << 16)  # bytes; hbase.client.keyvalue.maxsize, less key and names


@dataclass(frozen=True)
class HBaseUpsert:
    """A column family of one table.

    Attributes:
        url: of HBase's REST server, such as ``http://host:8080``, or
            ``https://user:password@host/path``; a password in percent-encoding.
        target: ``table/family``, or ``namespace:table/family``.
    """

    url: str = field(repr=False)
    target: str

    def __post_init__(self) -> None:
        if _TARGET.fullmatch(self.target) is None:
            raise ConfigurationError(
                f"target {self.target!r}: expected a table and a column family of it, such as "
                "'totals/f' or 'shop:totals/f'."
            )

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse what no cell can hold; ``columns`` are names and Spark's types.

        Raises:
            ConfigurationError: which columns, and what was expected.
        """
        del key, deleted
        require_plain(columns, "HBase", ours=NULLS, which="tells which columns are null")

    def told(self) -> HBaseUpsert:
        """See :meth:`UpsertTarget.told`: a cell takes whatever is plain."""
        return self

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse keys and values that no row can hold."""
        import pyarrow as pa
        import pyarrow.compute as pc

        refuse_times(rows, "text")
        refuse_cells(rows, _LONGEST_CELL, "HBase")
        keys = joined_keys(pa.Table.from_batches([rows]), tuple(key))
        found = pc.min_max(pc.binary_length(keys)).as_py()
        if found["min"] == 0 or (found["max"] or 0) > _LONGEST_KEY:
            raise refused(
                f"A key ({', '.join(key)}) is empty or longer than {_LONGEST_KEY} bytes, which no "
                "row of HBase can have",
                "Filter such rows out, or use another key, such as a hash of it (sha2)",
            )

    def open(self, *, timeout_s: float) -> HBaseTarget:
        """Reach it; nothing is asked yet."""
        return HBaseTarget(self.url, self.target, timeout_s=timeout_s)

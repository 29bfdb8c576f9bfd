"""Upserts into a column family of HBase, through its REST server.

==========================  =====================================================================
``<table>``                 a row for each key, a cell in the family for each other column, all
                            cells with one timestamp: the version that wrote them
``<family>:_eos``           the columns that are null, as a list of JSON: their cells are empty
``airflow_eos_upserts``     a small table of ours in the same namespace, a row for each target: its
                            mark, its owner with the newest note, its last epoch, its tally
==========================  =====================================================================

HBase itself guards rows: of two cells it shows the one with the greater timestamp, whichever came
last, and equal ones are of the same row. A put is one step for its row, and writes every column.

Nothing is ever deleted in HBase: a null is an empty cell, and all cells of a deleted row are empty
but its flag. HBase's own delete would hide older cells only until a major compaction removes it; a
late row would then come back.

Only rows are guarded in one step. The owner is looked at before each request, of some megabytes;
rows that a former owner sends after that look have the older epoch, and so stay hidden.

Several key columns are joined by ``:`` (their own ``%`` and ``:`` as ``%25`` and ``%3A``). Values
are text as Arrow writes them, times in UTC, and binary as it is.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.core.arguments import take_fields
from airflow_eos.core.protocol.participant import Note
from airflow_eos.errors import ConfigurationError, DeliveryError, OwnershipError, Remedy
from airflow_eos.kinds.sql.columns import refuse_cells, refuse_times, refused
from airflow_eos.kinds.upsert.target import (
    TargetOwner,
    batch_and_task,
    joined_keys,
    not_ours,
    require_plain,
    text_of,
    with_tombstones,
)

if TYPE_CHECKING:
    from airflow_eos.kinds.upsert.target import RowSchema

T = TypeVar("T")

_JSON = "application/json"
_MESSAGE = "application/x-protobuf"
_THROWN = re.compile(r"\b\w+(?:Exception|Error)\b")
_NAMED = 4  # the most exceptions to name of an answer, in which each has a cause


_NO_TABLE = b"TableNotFoundException"


@dataclass(frozen=True)
class Answer:
    """An answer of the REST server.

    Attributes:
        status: the HTTP status.
        body: the bytes of the body.
    """

    status: int
    body: bytes

    @property
    def thrown(self) -> str:
        """The status and the exceptions' names; no messages, which may hold keys and values."""
        names = dict.fromkeys(_THROWN.findall(self.body.decode(errors="replace")))
        return ", ".join([str(self.status), *list(names)[:_NAMED]])


class _Cell(msgspec.Struct, frozen=True):
    """A cell, as the REST server tells it."""

    column: bytes
    timestamp: int
    value: bytes = msgspec.field(name="$")


class _Row(msgspec.Struct, frozen=True):
    cells: list[_Cell] = msgspec.field(name="Cell")


class _Rows(msgspec.Struct, frozen=True):
    """The answer to a scan."""

    rows: list[_Row] = msgspec.field(name="Row")


class HBaseHttp:
    """A client of HBase's REST server: tables, rows and cells.

    Args:
        url: ``http[s]://[user:password@]host[:port][/path]``.
        timeout_s: seconds that an answer may take.

    Raises:
        ConfigurationError: the URL cannot be read.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _unread() from None  # the cause may quote the password
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise _unread()
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=timeout_s)
        self._root = parts.path.rstrip("/")
        self._headers = {"Accept": _JSON}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"

    def schema(self, table: str) -> dict[str, Any] | None:
        """Return the schema of a table; None where there is no such table."""
        found = self._ask("GET", f"{_table(table)}/schema")
        if found.status == HTTPStatus.NOT_FOUND and _NO_TABLE in found.body:
            return None
        told = _told(found, f"looking at {table}", dict[str, Any])
        if "ColumnSchema" not in told:
            raise _foreign(found, f"looking at {table}")
        return told

    def create(self, table: str, family: str) -> None:
        """Create a table with one column family; no error where another did so meanwhile."""
        schema = {"name": table, "ColumnSchema": [{"name": family}]}
        _is_done(self._put(f"{_table(table)}/schema", schema), f"creating the table {table}")

    def row(self, table: str, key: str) -> dict[str, bytes]:
        """Return the newest cells of a row, by column; none where row or table is missing.

        By a scan: asked for a row, the gateway answers 404 also where HBase does not answer
        it (``RowResultGenerator`` logs the exception and goes on without a row).
        """
        only = quote(key, safe="")
        found = self._ask("GET", f"{_table(table)}/*?startrow={only}&endrow={only}%00&limit=1")
        if found.status != HTTPStatus.OK and self.schema(table) is None:
            return {}
        told = _told(found, f"reading {table}", _Rows)
        return {cell.column.decode(): cell.value for row in told.rows for cell in row.cells}

    def newest_since(self, table: str, family: str, timestamp: int) -> int | None:
        """Return the newest timestamp of any one row with a cell since ``timestamp``; else None."""
        query = f"limit=1&starttime={timestamp}&column={quote(family, safe='')}"
        found = self._ask("GET", f"{_table(table)}/*?{query}")
        told = _told(found, f"looking for versions in {table}", _Rows)
        return max((cell.timestamp for row in told.rows for cell in row.cells), default=None)

    def swap(
        self, table: str, key: str, cells: Mapping[str, bytes], column: str, current: bytes
    ) -> bool:
        """Write cells if ``column``, one of them, has the value ``current`` (b"" for no cell)."""
        given = [*cells.items(), (column, current)]
        body = {"Row": [{"key": _base64(key.encode()), "Cell": [_cell(*each) for each in given]}]}
        return _is_done(self._put(f"{_table(table)}/row?check=put", body), f"writing to {table}")

    def put(self, table: str, key: str, column: str, timestamp: int) -> None:
        """Write an empty cell with a timestamp."""
        cell = {**_cell(column, b""), "timestamp": timestamp}
        body = {"Row": [{"key": _base64(key.encode()), "Cell": [cell]}]}
        _require_done(self._put(f"{_table(table)}/row", body), f"writing to {table}")

    def put_all(self, table: str, body: pa.Buffer) -> None:
        """Write the rows of a ``CellSet``; where it is refused, some of them may be written."""
        answer = self._ask("PUT", f"{_table(table)}/rows", memoryview(body), _MESSAGE)
        _require_done(answer, f"writing rows to {table}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _put(self, path: str, body: object) -> Answer:
        return self._ask("PUT", path, json.dumps(body).encode(), _JSON)

    def _ask(
        self, method: str, path: str, body: bytes | memoryview | None = None, kind: str = _JSON
    ) -> Answer:
        headers = {**self._headers, "Content-Type": kind}
        # The server may have closed a kept connection meanwhile; every request here may be sent
        # twice.
        for left in (1, 0):
            fresh = self._connection.sock is None
            try:
                self._connection.request(method, f"{self._root}/{path}", body, headers)
                answer = self._connection.getresponse()
                return Answer(answer.status, answer.read())
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if fresh or not left or isinstance(error, TimeoutError):
                    raise _failed(f"asking {path}", f"{type(error).__name__}: {error}") from error
        raise AssertionError(path)


def _told(answer: Answer, doing: str, kind: type[T]) -> T:
    """Return what the server has told, as a ``kind``; DeliveryError for any other answer."""
    if answer.status != HTTPStatus.OK:
        raise _failed(doing, answer.thrown)
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _foreign(answer, doing) from error


def _is_done(answer: Answer, doing: str) -> bool:
    """Whether the server has written; False where it says that it did not have to."""
    if answer.status == HTTPStatus.NOT_MODIFIED:
        return False
    _require_done(answer, doing)
    return True


def _require_done(answer: Answer, doing: str) -> None:
    """Refuse any answer but that of a write, to which HBase has nothing to add."""
    if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
        raise _failed(doing, answer.thrown)
    if answer.body:
        raise _foreign(answer, doing)


def _foreign(answer: Answer, doing: str) -> DeliveryError:
    return _failed(
        doing,
        f"{answer.status} with {len(answer.body)} bytes that HBase's REST server does not send, as "
        "a proxy's page for a login (is the URL the server's own?)",
    )


def _failed(doing: str, said: str) -> DeliveryError:
    return DeliveryError(
        f"HBase refused or did not answer while {doing}: {said}. What was written is not known, "
        "and writing it again is harmless: put that right, then start the query again or run a "
        "recovery."
    )


def _unread() -> ConfigurationError:
    return ConfigurationError(
        "The URL of HBase's REST server cannot be read: expected http://host:8080, or "
        "https://user:password@host/path with a password in percent-encoding."
    )


def _table(name: str) -> str:
    return quote(name, safe=":")


def _cell(column: str, value: bytes) -> dict[str, Any]:
    return {"column": _base64(column.encode()), "$": _base64(value)}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- hbase cells ----------------------------------------------------------------------------------
# Rows as HBase cells, in the form that its REST server reads; pure, and by whole columns.
#
# A request is a ``CellSet`` of Protocol Buffers: rows, each a key and its cells, each a column, a
# timestamp and a value. Here all rows of a work have one timestamp, which is their version::
#
#     bits  62 … 51   50 … 20   19 … 0
#           epoch     batch     task
#
# A version is greater than any clock's milliseconds from the first epoch on, and less than the
# greatest number, which HBase takes for *now*.


NULLS = "_eos"
"""The column of a cell that every row has: the names of the columns that are null, as JSON."""
LAST_EPOCH = (1 << 12) - 2
NEWEST = (1 << 63) - 2
"""A timestamp that no version exceeds."""

_BATCH_BITS, _TASK_BITS = 31, 20
_ROWS = 50_000  # rows encoded at once
_REQUEST = 4 << 20  # bytes of a request, or one row if that is longer
_BYTES = pa.large_binary()
_KEY, _CELL, _ROW = b"\x0a", b"\x12", b"\x0a"  # Protocol Buffers tags: a field's number and kind
_COLUMN, _TIMESTAMP, _DATA = b"\x12", b"\x18", b"\x22"


def version_of(epoch: int, batch: int, task: int) -> int:
    """Return the version of rows as a timestamp (DeliveryError: a part does not fit)."""
    if epoch > LAST_EPOCH or batch >> _BATCH_BITS or task >> _TASK_BITS:
        raise DeliveryError(
            f"A timestamp of HBase holds epochs to {LAST_EPOCH}, batches below 2^{_BATCH_BITS} and "
            f"tasks below 2^{_TASK_BITS}: epoch {epoch}, batch {batch}, task {task} is beyond "
            "that. Nothing of it was written. Use a new table, or fewer partitions."
        )
    return (epoch << _BATCH_BITS | batch) << _TASK_BITS | task


def epoch_in(timestamp: int) -> int:
    """Return the epoch of a version."""
    return timestamp >> (_BATCH_BITS + _TASK_BITS)


def requests_of(rows: pa.Table, about: RowSchema, family: str, version: int) -> Iterator[pa.Buffer]:
    """Yield the bodies of requests that write the rows, some megabytes each."""
    for at in range(0, rows.num_rows, _ROWS):
        some = rows.slice(at, _ROWS)
        yield from _cut(_encoded(_keys(some, about), _cells(some, about), family, version))


def _keys(rows: pa.Table, about: RowSchema) -> pa.Array:
    return _bytes(joined_keys(rows, about.key))


def _cells(rows: pa.Table, about: RowSchema) -> dict[str, pa.Array]:
    """Return the cells' values by column; a null is empty, and named in the cell ``NULLS``."""
    rows = with_tombstones(rows, about)
    cells, nulls = {}, []
    for name in rows.column_names:
        if name in about.key:
            continue
        column = rows[name]
        cells[name] = _bytes(pc.fill_null(text_of(column), b""))
        named, nothing = pa.scalar(f"{json.dumps(name)},".encode(), _BYTES), pa.scalar(b"", _BYTES)
        nulls.append(pc.if_else(_whole(pc.is_null(column)), named, nothing))
    cells[NULLS] = _list(nulls) if nulls else pa.repeat(pa.scalar(b"[]", _BYTES), rows.num_rows)
    return cells


def _list(names: list[pa.Array]) -> pa.Array:
    """Join each row's names, which end with a comma, to a JSON list."""
    joined = _joined([pa.scalar(b"[", _BYTES), *names, pa.scalar(b"]", _BYTES)])
    return pc.replace_substring_regex(joined, pattern=r",\]$", replacement="]")


def _encoded(
    keys: pa.Array, cells: dict[str, pa.Array], family: str, version: int
) -> pa.LargeBinaryArray:
    """Encode each row as a field of the message."""
    row = [_field(_KEY, keys)]
    for name, values in cells.items():
        column = f"{family}:{name}".encode()
        head = _COLUMN + _varint(len(column)) + column + _TIMESTAMP + _varint(version)
        row.append(_field(_CELL, _joined([pa.scalar(head, _BYTES), _field(_DATA, values)])))
    return _field(_ROW, _joined(row))


def _field(tag: bytes, content: pa.Array) -> pa.Array:
    lengths = pc.binary_length(content).to_numpy(zero_copy_only=False)
    return _joined([pa.scalar(tag, _BYTES), _varints(lengths), content])


def _joined(parts: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def _varints(numbers: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Encode numbers below 2^35: seven bits a byte, lowest first; the top bit: more bytes come."""
    shifts = np.arange(0, 35, 7)
    width = 1 + (numbers[:, None] >= (1 << shifts[1:])).sum(axis=1)
    byte = np.arange(len(shifts))
    codes = (numbers[:, None] >> shifts) & 0x7F
    codes[byte < (width - 1)[:, None]] |= 0x80
    data = codes[byte < width[:, None]].astype(np.uint8)
    offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    return pa.LargeBinaryArray.from_buffers(
        _BYTES, len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _cut(rows: pa.LargeBinaryArray) -> Iterator[pa.Buffer]:
    """Yield pieces of the encoded rows' buffer, each of whole rows."""
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
    at = 0
    while at < len(rows):
        until = int(np.searchsorted(ends, ends[at] + _REQUEST, side="right")) - 1
        until = max(until, at + 1)
        yield data.slice(int(ends[at]), int(ends[until] - ends[at]))
        at = until


def _bytes(column: pa.ChunkedArray) -> pa.Array:
    return _whole(column).cast(_BYTES)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


_FOREVER = 2147483647  # seconds
_UNSAFE = ("SKIP_WAL", "ASYNC_WAL")


def refuse_schema(table: str, family: str, schema: Mapping[str, Any] | None) -> None:
    """Refuse a table that is missing, or could forget rows; ``schema`` is the REST server's.

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


# --- hbase target ---------------------------------------------------------------------------------
# The target in HBase; for its cells see the docstring of the module.


_OURS, _FAMILY = "airflow_eos_upserts", "m"
_INSTANCE_ID, _OWNER, _EPOCH, _PROBE, _TALLY = (
    f"{_FAMILY}:{name}" for name in ("mark", "owner", "epoch", "probe", "tally")
)


class _Owned(msgspec.Struct, frozen=True):
    """The cell of the target's owner and its newest note."""

    owner: TargetOwner
    note: Note | None = None


class HBaseTarget:
    """See :class:`~airflow_eos.kinds.upsert.target.UpsertConnection`."""

    def __init__(self, url: str, target: str, *, timeout_s: float) -> None:
        self._http = HBaseHttp(url, timeout_s=timeout_s)
        self._target = target
        self._table, _, self._family = target.partition("/")
        namespace, colon, _ = self._table.rpartition(":")
        self._ours = f"{namespace}{colon}{_OURS}"
        self._row = f"{self._table}:{self._family}"

    @property
    def address(self) -> Mapping[str, str]:
        """See :attr:`UpsertConnection.address`: the table, with its family."""
        return {"system": "hbase", "target": self._target}

    @property
    def give_up(self) -> str:
        """See :attr:`UpsertConnection.give_up`; mark and last epoch stay."""
        return f"put '{self._ours}', '{self._row}', '{_OWNER}', '' (in the HBase shell)"

    def go_on(self, tally: int) -> str:
        """See :meth:`UpsertConnection.go_on`; the owner goes too, since its cell has the note."""
        return f"put '{self._ours}', '{self._row}', '{_TALLY}', '{tally}' and {self.give_up}"

    def check(self) -> None:
        """Refuse a table that could forget rows or may not be written; create our own table."""
        refuse_schema(self._table, self._family, self._http.schema(self._table))
        if self._http.schema(self._ours) is None:
            self._http.create(self._ours, _FAMILY)
        self._try_write()
        # A server can be configured to refuse timestamps that are far from today.
        self._http.put(self._ours, self._row, _PROBE, NEWEST)

    def ensure_instance_id(self) -> str:
        """See :meth:`UpsertConnection.ensure_instance_id`."""
        instance_id = {_INSTANCE_ID: uuid.uuid4().hex.encode()}
        self._http.swap(self._ours, self._row, instance_id, _INSTANCE_ID, b"")
        return self.instance_id() or ""

    def instance_id(self) -> str | None:
        """See :meth:`UpsertConnection.instance_id`."""
        found = self._http.row(self._ours, self._row).get(_INSTANCE_ID)
        return None if found is None else found.decode()

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`UpsertConnection.claim`."""
        cells = self._http.row(self._ours, self._row)
        if cells.get(_OWNER):
            return
        epoch = self._next_epoch(int(cells.get(_EPOCH, b"0")))
        owned = _Owned(TargetOwner(location, checkpoint, epoch))
        claimed = {_OWNER: msgspec.json.encode(owned), _EPOCH: str(epoch).encode()}
        # Each claim changes the epoch: while it stands, none has claimed, nor claimed and gave up.
        self._http.swap(self._ours, self._row, claimed, _EPOCH, cells.get(_EPOCH, b""))

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
            if self._http.swap(self._ours, self._row, {_OWNER: noted}, _OWNER, stands):
                return

    def newest(self) -> Note | None:
        """See :meth:`UpsertConnection.newest`."""
        owned, _ = self._owned()
        return None if owned is None else owned.note

    def life(self) -> str:
        """See :meth:`UpsertConnection.life`: constant, as any server has all acknowledged rows."""
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
            if self._http.swap(self._ours, self._row, counted, _TALLY, stands):
                return number

    def apply(self, rows: pa.Table, about: RowSchema, checkpoint: str, order: str) -> int:
        """See :meth:`UpsertConnection.apply`; returns 0, since HBase does not count older rows."""
        owned, _ = self._owned_by(checkpoint)
        version = version_of(owned.owner.epoch, *batch_and_task(order))
        for at, body in enumerate(requests_of(rows, about, self._family, version)):
            if at:
                self._owned_by(checkpoint)
            self._http.put_all(self._table, body)
        return 0

    def tried(self, rows: pa.Table, about: RowSchema) -> None:
        """See :meth:`UpsertConnection.tried`: HBase rolls nothing back, so nothing is written."""
        del rows, about
        self._try_write()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _try_write(self) -> None:
        # No cell has that value, so nothing is written; but a user that may not write is refused.
        column, never = f"{self._family}:{NULLS}", uuid.uuid4().bytes
        self._http.swap(self._table, self._row, {column: never}, column, never)

    def _tally(self) -> bytes:
        return self._http.row(self._ours, self._row).get(_TALLY, b"")

    def _owned_by(self, checkpoint: str) -> tuple[_Owned, bytes]:
        """Return :meth:`_owned`; refuse a target that is not this checkpoint's (OwnershipError)."""
        owned, stands = self._owned()
        if owned is None or owned.owner.checkpoint != checkpoint:
            owner = None if owned is None else owned.owner
            raise not_ours(f"Family {self._target!r} in HBase", owner, self.give_up)
        return owned, stands

    def _owned(self) -> tuple[_Owned | None, bytes]:
        """Return the owner with its note, and the value of their cell."""
        stands = self._http.row(self._ours, self._row).get(_OWNER, b"")
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
        """Return an epoch above the last one and, in case our row was removed, all in the table.

        HBase does not read files without such timestamps for it.
        """
        epoch = last + 1
        while epoch <= LAST_EPOCH:
            newest = self._http.newest_since(self._table, self._family, version_of(epoch, 0, 0))
            if newest is None:
                return epoch
            epoch = epoch_in(newest) + 1
        raise DeliveryError(
            f"Table {self._table!r} has cells with timestamps above every version, or "
            f"{LAST_EPOCH} checkpoints have owned it: use a new table."
        )


# --- hbase ----------------------------------------------------------------------------------------


_TARGET = re.compile(r"((?:[\w.-]+:)?[\w.-]+)/([\w.-]+)", re.ASCII)
_LONGEST_KEY = 32767  # bytes
_LONGEST_CELL = (10 << 20) - (1 << 16)  # bytes; hbase.client.keyvalue.maxsize, less key and names


@dataclass(frozen=True)
class HBaseUpsert:
    """An upsert target: a column family of one HBase table.

    Attributes:
        url: of HBase's REST server, such as ``http://host:8080``, or
            ``https://user:password@host/path``; a password in percent-encoding.
        target: ``table/family``, or ``namespace:table/family``.
    """

    url: str = field(repr=False)
    target: str

    def __post_init__(self) -> None:
        take_fields(self)
        if _TARGET.fullmatch(self.target) is None:
            raise ConfigurationError(
                f"target {self.target!r}: expected a table and a column family of it, such as "
                "'totals/f' or 'shop:totals/f'."
            )

    def refuse(self, columns: Mapping[str, str], key: tuple[str, ...], deleted: str | None) -> None:
        """Refuse columns whose values no cell can hold; ``columns``: names and Spark's types.

        Raises:
            ConfigurationError: with the columns, and what was expected.
        """
        del key, deleted
        require_plain(columns, "HBase", ours=NULLS, which="tells which columns are null")

    def with_limits(self) -> HBaseUpsert:
        """See :meth:`UpsertTarget.told`: nothing is asked, since a cell takes any plain value."""
        return self

    def refuse_rows(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        """Refuse keys and values that no row can hold."""
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
        """Return a connection to the target; no request is sent yet."""
        return HBaseTarget(self.url, self.target, timeout_s=timeout_s)

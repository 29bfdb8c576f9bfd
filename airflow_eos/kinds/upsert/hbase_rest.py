"""One connection to the REST server of HBase, and its answers in our words."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.upsert.target import joined_keys, text_of

if TYPE_CHECKING:
    from airflow_eos.kinds.upsert.target import RowSchema

_JSON = "application/json"
_MESSAGE = "application/x-protobuf"
_THROWN = re.compile(r"\b\w+(?:Exception|Error)\b")
_NAMED = 4  # exceptions of an answer; each has a cause


_NO_TABLE = b"TableNotFoundException"


@dataclass(frozen=True)
class Answer:
    """What the server said.

    Attributes:
        status: of HTTP.
        body: as it came.
    """

    status: int
    body: bytes

    @property
    def thrown(self) -> str:
        """The names of the exceptions in it; their messages may hold keys and values."""
        names = dict.fromkeys(_THROWN.findall(self.body.decode(errors="replace")))
        return ", ".join([str(self.status), *list(names)[:_NAMED]])


class Rest:
    """Tables as the REST server gives them.

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
            raise _unread() from None  # it may quote the password
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
        """What the table is like; None where there is none."""
        found = self._ask("GET", f"{_table(table)}/schema")
        if found.status == HTTPStatus.NOT_FOUND and _NO_TABLE in found.body:
            return None
        answer: dict[str, Any] = json.loads(self._required(found, f"looking at {table}").body)
        return answer

    def create(self, table: str, family: str) -> None:
        """Create it, if nobody has meanwhile."""
        schema = {"name": table, "ColumnSchema": [{"name": family}]}
        self._required(self._put(f"{_table(table)}/schema", schema), f"creating the table {table}")

    def row(self, table: str, key: str) -> dict[str, bytes]:
        """The newest cells of a row, by column; none where it has none, nor the table.

        Looked for by a scan: asked for a row, the gateway says 404 also where HBase does not
        answer it (``RowResultGenerator`` logs the exception and goes on without a row).
        """
        only = quote(key, safe="")
        found = self._ask("GET", f"{_table(table)}/*?startrow={only}&endrow={only}%00&limit=1")
        if found.status != HTTPStatus.OK and self.schema(table) is None:
            return {}
        rows = json.loads(self._required(found, f"reading {table}").body)["Row"]
        return {
            _plain(cell["column"]).decode(): _plain(cell["$"])
            for row in rows
            for cell in row["Cell"]
        }

    def newest_since(self, table: str, family: str, timestamp: int) -> int | None:
        """The newest timestamp of some row that has one not before ``timestamp``."""
        query = f"limit=1&starttime={timestamp}&column={quote(family, safe='')}"
        found = self._ask("GET", f"{_table(table)}/*?{query}")
        rows = json.loads(self._required(found, f"looking for versions in {table}").body)["Row"]
        return max((cell["timestamp"] for row in rows for cell in row["Cell"]), default=None)

    def swap(
        self, table: str, key: str, cells: Mapping[str, bytes], column: str, stands: bytes
    ) -> bool:
        """Write the cells if ``column``, one of them, has the value ``stands`` (nothing: b"")."""
        given = [*cells.items(), (column, stands)]
        body = {"Row": [{"key": _base64(key.encode()), "Cell": [_cell(*each) for each in given]}]}
        answer = self._put(f"{_table(table)}/row?check=put", body)
        return self._required(answer, f"writing to {table}").status != HTTPStatus.NOT_MODIFIED

    def put(self, table: str, key: str, column: str, timestamp: int) -> None:
        """Write an empty cell with a timestamp."""
        cell = {**_cell(column, b""), "timestamp": timestamp}
        body = {"Row": [{"key": _base64(key.encode()), "Cell": [cell]}]}
        self._required(self._put(f"{_table(table)}/row", body), f"writing to {table}")

    def put_all(self, table: str, body: pa.Buffer) -> None:
        """Write a ``CellSet``; some rows of it may be written where it is refused."""
        answer = self._ask("PUT", f"{_table(table)}/rows", memoryview(body), _MESSAGE)
        self._required(answer, f"writing rows to {table}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _put(self, path: str, body: object) -> Answer:
        return self._ask("PUT", path, json.dumps(body).encode(), _JSON)

    def _ask(
        self, method: str, path: str, body: bytes | memoryview | None = None, kind: str = _JSON
    ) -> Answer:
        headers = {**self._headers, "Content-Type": kind}
        # A connection that was kept may have been closed meanwhile; all that is asked may be asked
        # again.
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

    def _required(self, answer: Answer, doing: str) -> Answer:
        if answer.status in (200, 201, HTTPStatus.NOT_MODIFIED):
            return answer
        raise _failed(doing, answer.thrown)


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


def _plain(value: str) -> bytes:
    return base64.b64decode(value)


# --- hbase_cells ----------------------------------------------------------------------------------
# Rows as the cells of HBase, in the form that its REST server reads; pure, and by whole columns.
#
# A request is a ``CellSet`` of Protocol Buffers: rows, each a key and its cells, each a column, a
# timestamp and a value. Here every row of a work has one timestamp, which is its version::
#
#     bits  62 … 51   50 … 20   19 … 0
#           epoch     batch     task
#
# Greater than any clock's milliseconds from the first epoch on, and less than the greatest number,
# which HBase takes for *now*.


NULLS = "_eos"
"""The cell that every row has: the names of the columns that are null, as JSON."""
LAST_EPOCH = (1 << 12) - 2
NEWEST = (1 << 63) - 2
"""A timestamp that no version exceeds."""

_BATCH_BITS, _TASK_BITS = 31, 20
_ROWS = 50_000  # encoded at once
_REQUEST = 4 << 20  # bytes, or one row
_BYTES = pa.large_binary()
_KEY, _CELL, _ROW = b"\x0a", b"\x12", b"\x0a"  # a field's number and kind, of its message
_COLUMN, _TIMESTAMP, _DATA = b"\x12", b"\x18", b"\x22"


def version_of(epoch: int, batch: int, task: int) -> int:
    """The timestamp of a row.

    Raises:
        DeliveryError: no timestamp can hold it.
    """
    if epoch > LAST_EPOCH or batch >> _BATCH_BITS or task >> _TASK_BITS:
        raise DeliveryError(
            f"A timestamp of HBase holds epochs to {LAST_EPOCH}, batches below 2^{_BATCH_BITS} and "
            f"tasks below 2^{_TASK_BITS}: epoch {epoch}, batch {batch}, task {task} is beyond "
            "that. Nothing of it was written. Use a new table, or fewer partitions."
        )
    return (epoch << _BATCH_BITS | batch) << _TASK_BITS | task


def epoch_in(timestamp: int) -> int:
    """The epoch of a version."""
    return timestamp >> (_BATCH_BITS + _TASK_BITS)


def requests_of(rows: pa.Table, about: RowSchema, family: str, version: int) -> Iterator[pa.Buffer]:
    """Bodies of requests that write the rows, some megabytes each."""
    for at in range(0, rows.num_rows, _ROWS):
        some = rows.slice(at, _ROWS)
        yield from _cut(_encoded(_keys(some, about), _cells(some, about), family, version))


def _keys(rows: pa.Table, about: RowSchema) -> pa.Array:
    return _bytes(joined_keys(rows, about.key))


def _cells(rows: pa.Table, about: RowSchema) -> dict[str, pa.Array]:
    """Values by column; a null is empty, and named in one more cell."""
    gone = None
    if about.deleted is not None:
        gone = pc.fill_null(rows[about.deleted], False)  # noqa: FBT003
    cells, nulls = {}, []
    for name in rows.column_names:
        if name in about.key:
            continue
        column = gone if name == about.deleted and gone is not None else rows[name]
        if gone is not None and name != about.deleted:
            column = pc.if_else(gone, pa.scalar(None, column.type), column)
        cells[name] = _bytes(pc.fill_null(text_of(column), b""))
        named, nothing = pa.scalar(f"{json.dumps(name)},".encode(), _BYTES), pa.scalar(b"", _BYTES)
        nulls.append(pc.if_else(_whole(pc.is_null(column)), named, nothing))
    cells[NULLS] = _list(nulls) if nulls else pa.repeat(pa.scalar(b"[]", _BYTES), rows.num_rows)
    return cells


def _list(names: list[pa.Array]) -> pa.Array:
    """Of each row those that are there, as a list of JSON; each ends with a comma so far."""
    joined = _joined([pa.scalar(b"[", _BYTES), *names, pa.scalar(b"]", _BYTES)])
    return pc.replace_substring_regex(joined, pattern=r",\]$", replacement="]")


def _encoded(
    keys: pa.Array, cells: dict[str, pa.Array], family: str, version: int
) -> pa.LargeBinaryArray:
    """Each row as a field of the message."""
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
    """Numbers below 2^35, seven bits a byte, lowest first; the top bit says that more come."""
    shifts = np.arange(0, 35, 7)
    width = 1 + (numbers[:, None] >= (1 << shifts[1:])).sum(axis=1)
    place = np.arange(len(shifts))
    codes = (numbers[:, None] >> shifts) & 0x7F
    codes[place < (width - 1)[:, None]] |= 0x80
    data = codes[place < width[:, None]].astype(np.uint8)
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
    """What lies one after the other, in pieces of whole rows."""
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

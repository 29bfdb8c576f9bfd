"""One connection to the REST server of HBase, and its answers in our words."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from airflow_eos.errors import ConfigurationError, DeliveryError

if TYPE_CHECKING:
    import pyarrow as pa

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

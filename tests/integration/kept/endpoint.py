"""An HTTP endpoint that remembers tokens, as a process of its own; and the callable that posts.

``python -m tests.integration.kept.endpoint FILE``: rows and tokens are in one SQLite file, a post
is one transaction. The path ``/dying`` commits and dies before it answers, once.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

ROOT = Path(__file__).parents[3]


def post(token: str, rows: pa.Table, *, reach: dict[str, Any]) -> None:
    """Deliver rows: ``reach`` is ``{"port": …}``."""
    body = [[each["key"].decode(), each["value"].decode()] for each in rows.to_pylist()]
    connection = http.client.HTTPConnection("127.0.0.1", reach["port"], timeout=30)
    with contextlib.closing(connection):
        connection.request(
            "POST", reach.get("path", "/"), msgspec.json.encode(body), {"Token": token}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"the endpoint answered {answer.status}")


class Handler(BaseHTTPRequestHandler):
    file: Path

    def do_POST(self) -> None:
        rows = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        with contextlib.closing(sqlite3.connect(self.file, timeout=30)) as base, base:
            base.execute("BEGIN IMMEDIATE")
            base.execute("INSERT INTO posts VALUES (?)", (self.headers["Token"],))
            with contextlib.suppress(sqlite3.IntegrityError):
                base.execute("INSERT INTO tokens VALUES (?)", (self.headers["Token"],))
                base.executemany("INSERT INTO rows VALUES (?, ?)", rows)
        if self.path == "/dying":
            with contextlib.suppress(FileExistsError):
                self.file.with_suffix(".died").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Endpoint:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "endpoint.sqlite"
        with contextlib.closing(sqlite3.connect(self.file)) as base, base:
            base.execute("CREATE TABLE posts (token TEXT)")
            base.execute("CREATE TABLE tokens (token TEXT PRIMARY KEY)")
            base.execute("CREATE TABLE rows (key TEXT, value TEXT)")
        self.port = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self.file), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def rows(self) -> Counter[tuple[str, str]]:
        return Counter(self._all("SELECT key, value FROM rows"))

    def posts(self) -> Counter[str]:
        """How often each token came."""
        return Counter(token for (token,) in self._all("SELECT token FROM posts"))

    def _all(self, query: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.file, timeout=30)) as base:
            return base.execute(query).fetchall()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(folder)
    try:
        yield endpoint
    finally:
        endpoint.close()


if __name__ == "__main__":
    Handler.file = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until who started it has ended, however that was

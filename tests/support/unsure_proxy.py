"""An HTTP proxy before a catalog of Iceberg, which does to a commit what networks do."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DROPPED, TWICE, REFUSED, EXPIRED = "dropped", "twice", "409", "401"
FAULTS = (DROPPED, TWICE, REFUSED, EXPIRED, "419", "500", "502", "503", "504")
"""The reply of a commit is lost; the request is repeated on its way, so that the reply is of the
second; the commit is refused before it came, as its token is by 401 and 419; or the commit is done,
and the reply says it was not.
"""
_BEFORE = {REFUSED, EXPIRED, "419"}


class UnsureProxy:
    """Passes requests on; each commit of a table meets the next of ``faults``, if there is one.

    Attributes:
        faults: what is still to come, of :data:`FAULTS`.
        met: what came.
    """

    def __init__(self, host: str, port: int) -> None:
        self.faults: deque[str] = deque()
        self.met: list[str] = []
        self._server = ThreadingHTTPServer((host, 0), _Handler)
        self._server.daemon_threads = True
        self._server.told = self, host, port  # type: ignore[attr-defined]
        self.uri = f"http://{host}:{self._server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[UnsureProxy]:
        """Serve until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def _passed_on(self) -> None:
        proxy, host, port = self.server.told  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_commit = self.command == "POST" and "/tables/" in self.path
        fault = proxy.faults.popleft() if is_commit and proxy.faults else None
        if fault is not None:
            proxy.met.append(fault)
        if fault in _BEFORE:
            return self._answered(int(fault), b"{}")
        status, answer = self._sent(host, port, body)
        if fault == TWICE:
            status, answer = self._sent(host, port, body)
        if fault == DROPPED:
            self.close_connection = True
            return None
        if fault is not None and fault != TWICE:
            status, answer = int(fault), b"{}"
        return self._answered(status, answer)

    do_GET = do_POST = do_HEAD = do_DELETE = _passed_on  # noqa: N815

    def _sent(self, host: str, port: int, body: bytes) -> tuple[int, bytes]:
        headers = {name: value for name, value in self.headers.items() if name != "Accept-Encoding"}
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def _answered(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

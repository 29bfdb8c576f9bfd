"""A TCP proxy that loses one reply of PostgreSQL, or the request before it arrives."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class LosingProxy:
    """On ``port``; see :meth:`lose`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pattern: bytes | None = None
        self._after = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0

    def lose(self, pattern: bytes, *, after: bool) -> None:
        """Cut the connection that next sends ``pattern``: ``after`` the server has answered it."""
        self._after = after
        self._pattern = pattern

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        cut = threading.Event()
        replies = threading.Thread(target=self._replies, args=(client, server, cut), daemon=True)
        replies.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._pattern is not None and self._pattern in data:
                    self._pattern = None
                    self.lost += 1
                    cut.set()
                    if self._after:
                        server.sendall(data)
                        replies.join(10)  # it ends with the reply
                    break
                server.sendall(data)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _replies(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if cut.is_set():
                    return
                client.sendall(data)

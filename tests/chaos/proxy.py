"""A TCP proxy between clients and the broker that loses replies on purpose.

A rule names a pipeline (its prefix stands in every request: of an id, or of a topic), a request
by its api key and the how-manieth it is, and what becomes of it:

``drop-reply``  the broker does what was asked; the reply is dropped and the connection is cut
``cut``         the connection is cut before the broker hears of the request
``delay``       the request waits
``half-open``   from here on nothing comes back, and the connection stays open
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

API_KEYS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "FindCoordinator": 10,
    "ApiVersions": 18,
    "InitProducerId": 22,
    "EndTxn": 26,
    "DescribeConfigs": 32,
    "DescribeProducers": 61,
    "DescribeTransactions": 65,
    "ListTransactions": 66,
}
"""What every driver asks a broker (https://kafka.apache.org/protocol, "API keys")."""
_NAMELESS = {API_KEYS[name] for name in ("Metadata", "ApiVersions", "DescribeConfigs")}
_HEAD_BYTES = 400  # the transactional id stands near the start of a request
_DELAY_S = 0.7
_HALF_OPEN_S = 4.0


@dataclass
class Rule:
    prefix: str
    api: str
    nth: int
    action: str
    hit: bool = False


@dataclass
class _Link:
    """One client connection, with the correlation ids whose replies are to be dropped."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    dropped: set[bytes] = field(default_factory=set)
    silent: bool = False

    def cut(self) -> None:
        for writer in (self.client, self.broker):
            with contextlib.suppress(Exception):
                writer.transport.abort()


class Proxy:
    """Runs an event loop on a thread of its own; a context manager."""

    def __init__(self, port: int, broker_port: int) -> None:
        self._port = port
        self._broker_port = broker_port
        self._rules: list[Rule] = []
        self._seen: Counter[tuple[str, int]] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._connected, "127.0.0.1", self._port)
        asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def add(self, rule: Rule) -> Rule:
        self._rules.append(rule)
        return rule

    def forget(self, prefix: str) -> None:
        self._rules = [rule for rule in self._rules if rule.prefix != prefix]

    async def _connected(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            to_client.transport.abort()
            return
        link = _Link(to_client, to_broker)
        try:
            await asyncio.gather(
                self._requests(from_client, link), self._replies(from_broker, link)
            )
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            link.cut()

    async def _requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while True:
            frame = await _frame(reader)
            rule = self._rule_for(frame)
            if rule is not None:
                rule.hit = True
                if rule.action == "cut":
                    raise ConnectionResetError
                if rule.action == "delay":
                    await asyncio.sleep(_DELAY_S)
                elif rule.action == "drop-reply":
                    link.dropped.add(frame[4:8])
                elif rule.action == "half-open":
                    link.silent = True
            link.broker.write(struct.pack(">i", len(frame)) + frame)
            await link.broker.drain()

    async def _replies(self, reader: asyncio.StreamReader, link: _Link) -> None:
        while True:
            frame = await _frame(reader)
            if frame[:4] in link.dropped:
                raise ConnectionResetError
            if link.silent:
                await asyncio.sleep(_HALF_OPEN_S)
                raise ConnectionResetError
            link.client.write(struct.pack(">i", len(frame)) + frame)
            await link.client.drain()

    def _rule_for(self, frame: bytes) -> Rule | None:
        """The rule that this request triggers; every request of a watched pipeline counts.

        So does each of those that need not name one.
        """
        api = int.from_bytes(frame[:2], "big")
        head = frame[:_HEAD_BYTES]
        for rule in self._rules:
            named = api in _NAMELESS or rule.prefix.encode() + b"-" in head
            if API_KEYS[rule.api] == api and named:
                self._seen[rule.prefix, api] += 1
                if not rule.hit and self._seen[rule.prefix, api] >= rule.nth:
                    return rule
        return None


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)

"""Order and back pressure between a ``Wire`` and kafka-python's connections.

Requests to one broker leave in the order in which they were submitted, at most five unanswered
at a time. Where a connection breaks, everything queued behind it fails with it, so nothing
overtakes a request that was lost; who submitted decides what to repeat.

Hazards met in kafka-python 3.0.12, and how they are kept away: ``send`` refuses when five are in
flight instead of queueing (:class:`BrokerQueue` counts; the library's own limit is out of reach);
reconnecting backs off up to 30 s (1 s here); a request keeps the version in which it was sent
first, whoever gets it next (a copy is sent); a request that times out closes its connection (what
waits behind it fails with it). Those of its private parts: see :mod:`.manager`.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from airflow_eos.kafka.client.manager import Manager
    from airflow_eos.kafka.client.messages import NetworkSelector

MAX_IN_FLIGHT = 5
"""Unanswered requests a connection: as many as an idempotent producer may have (KIP-185)."""
_THROTTLE_RECHECK_S = 0.005


class Call:
    """One request on its way, and the future that its caller holds."""

    __slots__ = ("future", "message", "timeout_ms")

    def __init__(self, message: Any, future: Future[Any], timeout_ms: float) -> None:
        self.message = message
        self.future = future
        self.timeout_ms = timeout_ms

    def fail(self, error: BaseException) -> None:
        """Give the error to whoever waits, unless the call was cancelled."""
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class BrokerQueue:
    """The requests to one broker, in order. All but ``waiting.append`` runs on the I/O thread."""

    def __init__(
        self,
        node_id: int,
        net: NetworkSelector,
        manager: Manager,
        translated: Callable[[BaseException], BaseException],
    ) -> None:
        self._node_id = node_id
        self._net = net
        self._manager = manager
        self._translated = translated
        self._in_flight = 0
        self._rechecking = False
        self.waiting: deque[Call] = deque()

    def pump(self) -> None:
        """Send what may be sent now."""
        while self.waiting and self._in_flight < MAX_IN_FLIGHT:
            if self._manager.is_paused(self._node_id):
                self._recheck_later()
                return
            call = self.waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                self._send(call)

    def _recheck_later(self) -> None:
        # kafka-python refuses to send while throttled; wait instead.
        if not self._rechecking:
            self._rechecking = True
            self._net.call_later(_THROTTLE_RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        self._rechecking = False
        self.pump()

    def _send(self, call: Call) -> None:
        self._in_flight += 1
        try:
            # A copy: kafka-python notes in the request the version that this broker speaks, and
            # keeps to it when the same request goes to another one, which may be older.
            sent = self._manager.send(
                copy(call.message), node_id=self._node_id, request_timeout_ms=call.timeout_ms
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            self._failed(call, error)
            return
        sent.add_callback(lambda response: self._answered(call, response))
        sent.add_errback(lambda error: self._failed(call, error))

    def _answered(self, call: Call, response: Any) -> None:
        self._in_flight -= 1
        call.future.set_result(response)
        self.pump()

    def _failed(self, call: Call, error: BaseException) -> None:
        self._in_flight -= 1
        ours = self._translated(error)
        call.fail(ours)
        if isinstance(ours, KafkaUnavailableError):
            self.fail(ours)
        else:
            self._net.call_soon(self.pump)

    def fail(self, error: BaseException) -> None:
        """Fail what is queued: nothing may overtake a request that was lost."""
        while self.waiting:
            self.waiting.popleft().fail(error)


class KnownBrokers:
    """The brokers that the cluster has named to us."""

    def __init__(self, net: NetworkSelector, manager: Manager) -> None:
        self._net = net
        self._cluster = manager.cluster

    def refresh(self) -> None:
        """Learn of brokers that have joined or moved; failures show in the next request."""
        with suppress(Exception):
            self._net.run(self._cluster.refresh_metadata)

    def has(self, node_id: int) -> bool:
        """Whether we know where that broker is."""
        return self._cluster.broker_metadata(node_id) is not None

    def ids(self) -> list[int]:
        """Of all of them, in order."""
        return sorted(broker.node_id for broker in self._cluster.brokers())


class _NoPayloads(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


def keep_secrets_out_of_logs() -> None:
    """kafka-python logs every frame at DEBUG, SASL passwords and rows included: drop those."""
    for name in ("kafka.protocol.parser", "kafka.net.connection"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, _NoPayloads) for known in logger.filters):
            logger.addFilter(_NoPayloads())

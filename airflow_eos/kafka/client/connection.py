"""Connections to a Kafka cluster, with order and back pressure, over kafka-python's connections.

Requests to one broker leave in the order in which they were submitted, at most five unanswered
at a time. Where a connection breaks, every request queued behind it fails too, so no request
overtakes one that was lost; the caller decides what to repeat.

Hazards met in kafka-python 3.0.12, and how they are kept away: ``send`` refuses when five are in
flight instead of queueing (:class:`BrokerQueue` counts; the library's own limit is out of reach);
reconnecting backs off up to 30 s (1 s here); a request keeps the version in which it was sent
first, whichever broker gets it next (a copy is sent); a request that times out closes its
connection (requests waiting behind it fail too). Hazards of its private parts: see "manager" below.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import ClusterView, KnownBrokers
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.messages import (
    KafkaConnectionManager,
    KafkaTCPTransport,
    NetworkSelector,
)
from airflow_eos.kafka.client.settings import KafkaSettings

MAX_IN_FLIGHT = 5
"""Most unanswered requests per connection: what an idempotent producer may have (KIP-185)."""
_THROTTLE_RECHECK_S = 0.005


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way, and the future that its caller holds."""

    message: Any
    future: Future[Any]
    timeout_ms: float

    def fail(self, error: BaseException) -> None:
        """Set the error as the future's outcome, unless the future was cancelled."""
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def _name(message: Any) -> str:
    """Return the request's name as Kafka's documentation has it, as in "EndTxn"."""
    return type(message).__name__.removesuffix("Request")


class BrokerQueue:
    """Queue of requests to one broker. All but ``waiting.append`` runs on the I/O thread."""

    def __init__(
        self,
        node_id: int,
        net: NetworkSelector,
        manager: ConnectionManager,
        translated: Callable[[BaseException, str], BaseException],
    ) -> None:
        self._node_id = node_id
        self._net = net
        self._manager = manager
        self._translated = translated
        self._in_flight = 0
        self._rechecking = False
        self.waiting: deque[Call] = deque()

    def pump(self) -> None:
        """Send waiting requests until the limit is reached or a quota pauses the broker."""
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
            # keeps it when that request goes to another broker, which may be older.
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
        ours = self._translated(error, _name(call.message))
        call.fail(ours)
        if isinstance(ours, KafkaUnavailableError):
            self.fail(ours)
        else:
            self._net.call_soon(self.pump)

    def fail(self, error: BaseException) -> None:
        """Fail all queued requests: none may overtake a request that was lost."""
        while self.waiting:
            self.waiting.popleft().fail(error)


class _NoPayloads(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


def keep_secrets_out_of_logs() -> None:
    """Drop kafka-python's DEBUG log of every frame, which has SASL passwords and rows in it."""
    for name in ("kafka.protocol.parser", "kafka.net.connection"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, _NoPayloads) for known in logger.filters):
            logger.addFilter(_NoPayloads())


# --- manager --------------------------------------------------------------------------------------
# kafka-python's connection manager, mended: the one place that touches its private parts.
#
# Hazards met in 3.0.12: a refused login is tried again until the deadline (remembered here until
# reported); bytes that arrive together with the end of a connection are dropped, and with them the
# broker's "wrong password" (kept here); whether a quota throttles a connection is nowhere public;
# it reads 4 kB at a time, and copies more often than the senders do (read in large pieces here);
# it has one TLS context for good (made anew here, where a certificate was renewed in its file).


Received = Callable[[], tuple[Any, BaseException | None]]
"""A function that returns the bytes received since its last call, and why no more come, if so."""

RECEIVED_BYTES = 256 * 1024
"""Most bytes received at a time; the size of each connection's buffer."""


class ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's manager, also keeping why the last connection failed (the library logs it).

    Args:
        settings: the settings whose TLS files are read again for each new connection.
    """

    def __init__(self, *args: Any, settings: KafkaSettings, **kwargs: Any) -> None:
        self.last_error: BaseException | None = None
        self._settings = settings
        self._files = settings.files()
        self._refusals: dict[Any, BaseException] = {}
        super().__init__(*args, **kwargs)

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a broker's connection, as the base class; keep its failure in ``last_error``."""
        known = node_id in self._conns
        if not known:
            self._take_up_renewed_files()
        if node_id in self._refusals:
            raise self._refusals[node_id]
        connection = super().get_connection(node_id, *args, **kwargs)
        if not known:
            connection.init_future.add_errback(lambda error: self._remember(node_id, error))
        return connection

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = await super()._build_transport(*args, **kwargs)
        # No public hook. TLS buffers bytes itself, so its socket cannot be read directly.
        if type(transport) is KafkaTCPTransport:
            transport._sock_recv = in_large_pieces(transport._sock)  # noqa: SLF001
        else:
            transport._sock_recv = data_before_end(transport._sock_recv)  # noqa: SLF001
        return transport

    def _take_up_renewed_files(self) -> None:
        """Make the TLS context anew where a file has other content than when it was made.

        Between a certificate and its key the two do not fit: the context before stays meanwhile.
        """
        found = self._settings.files()
        if found == self._files:
            return
        with suppress(ConfigurationError):
            self.config |= self._settings.kafka_python()
            self._files = found
            self.forget_refusals()

    def _remember(self, node_id: Any, error: BaseException) -> None:
        self.last_error = error
        if faults.is_authentication(error):
            # Stop at once, not at the deadline, as the library means to but forgets.
            self._refusals[node_id] = error

    @property
    def refusal(self) -> BaseException | None:
        """With which error a broker has refused a login, not yet reported; None: none has."""
        return next(iter(self._refusals.values()), None)

    def forget_refusals(self) -> None:
        """Let the next request try to log in again."""
        self._refusals.clear()
        self._auth_failures.clear()

    def is_paused(self, node_id: int) -> bool:
        """Whether a quota of the broker throttles the connection just now."""
        connection = self._conns.get(node_id)
        return connection is not None and bool(connection.paused)


def in_large_pieces(sock: Any) -> Received:
    """Return a receiver for a plain socket; the bytes it returns are valid until its next call.

    That is long enough: the library copies them into the response that they belong to.
    """
    buffer = memoryview(bytearray(RECEIVED_BYTES))

    def receive() -> tuple[Any, BaseException | None]:
        try:
            count = sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", faults.connection_lost(error)
        ended = None if count else faults.connection_lost("socket disconnected")
        return buffer[:count], ended

    return receive


def data_before_end(receive: Received) -> Received:
    """Wrap a receiver so that bytes that arrive with a connection's end are returned first."""

    def kept() -> tuple[Any, BaseException | None]:
        data, error = receive()
        return (data, None) if data else (data, error)  # the next read meets the end again

    return kept


# --- wire -----------------------------------------------------------------------------------------
# Kafka's protocol, one request and one response, over kafka-python's connections.
#
# kafka-python (3.0, pinned below 3.1) carries every message class and drives the sockets on a
# thread of its own, but its public clients have no EndTxn and no raw Produce or Fetch. So a
# :class:`ConnectionPool` drives its connection manager directly: only this module and ``messages``
# know the inside of kafka-python. Errors are the package's own, and no secret reaches a log.


MAX_RESPONSE_BYTES = 512 * 1024 * 1024
"""Largest response accepted; a fetch asks for far less, but one huge batch may exceed that."""


class ConnectionPool:
    """Connections to one Kafka cluster; thread-safe; holds no transaction state of its own.

    ``cluster`` answers questions about the cluster itself, and caches the answers.

    Args:
        client_id: shown in the broker's logs and quotas; ``client.id`` of the settings wins.
        timeout_s: how long to look for a first broker.

    Raises:
        KafkaUnavailableError: no bootstrap server answered within ``timeout_s``.
        KafkaError: the cluster does not accept these credentials.
    """

    def __init__(
        self, settings: KafkaSettings, *, client_id: str = "airflow-eos", timeout_s: float = 30.0
    ) -> None:
        keep_secrets_out_of_logs()
        options: dict[str, Any] = {"client_id": client_id, "reconnect_backoff_max_ms": 1000}
        options |= settings.kafka_python()
        self.settings = settings
        self._servers = settings.bootstrap_servers
        self._request_timeout_s = options.get("request_timeout_ms", 30_000) / 1000
        self._pid = os.getpid()
        self._queues: dict[int, BrokerQueue] = {}
        self._closed = False
        # 0: no warning of "slow" tasks (0.1 s by default), as encoding a huge record set may be.
        self._net = NetworkSelector(client_id=options["client_id"], slow_task_threshold_secs=0)
        self._manager = ConnectionManager(
            self._net,
            settings=settings,
            receive_message_max_bytes=MAX_RESPONSE_BYTES,
            max_in_flight_requests_per_connection=1 << 30,
            **options,
        )
        known = KnownBrokers(self._net, self._manager.cluster, self._refusal)
        self.cluster = ClusterView(self, known)
        self._net.start()
        try:
            self._manager.bootstrap(timeout_s * 1000)
        except BaseException as error:
            cause = self._manager.last_error or error
            self.close()
            if isinstance(error, Exception):
                raise self._translated(cause) from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Wire({self._servers!r})"

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called: nothing is sent any more."""
        return self._closed

    def close(self) -> None:
        """Close the connections; idempotent. Never ends a transaction: no message is sent."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        with suppress(Exception):
            self._net.run(self._manager.close)
        with suppress(Exception):
            self._net.stop(timeout_ms=5000)
        with suppress(Exception):
            self._net.close()
        for queue in self._queues.values():
            queue.fail(KafkaUnavailableError(f"The connection to {self._servers} was closed."))

    def submit(
        self, message: Any, *, node_id: int | None, timeout_s: float | None = None
    ) -> Future[Any]:
        """Send one request to one broker (``None``: any) and return at once.

        The future holds the response, or a :class:`KafkaUnavailableError` where the connection
        failed before the answer: whether the broker acted is then unknown. Error codes inside
        the response are the caller's to read. No request is repeated here. One unanswered for
        ``timeout_s`` (the settings' ``socket.timeout.ms``, 30 s) counts as a broken connection.
        """
        if self._closed:
            raise KafkaError(f"This connection to {self._servers} is closed; open another Wire.")
        if self._pid != os.getpid():
            raise KafkaError(
                "A Wire does not survive a fork: its I/O thread stayed in the parent process. "
                "Open one in the process that uses it."
            )
        call = Call(message, Future(), (timeout_s or self._request_timeout_s) * 1000)
        if node_id is None:
            self._net.call_soon_threadsafe(lambda: self._to_any(call))
        else:
            queue = self._queue(node_id)
            queue.waiting.append(call)
            self._net.call_soon_threadsafe(queue.pump)
        return call.future

    def request(self, message: Any, *, node_id: int | None = None, timeout_s: float = 30.0) -> Any:
        """Send one request and return the response, repeating it as :meth:`request_many` does."""
        return self.request_many([(message, node_id)], timeout_s=timeout_s)[0]

    def request_many(
        self, requests: Sequence[tuple[Any, int | None]], *, timeout_s: float = 30.0
    ) -> list[Any]:
        """Send all requests together and return their responses in the order of the requests.

        A request whose connection failed is repeated with bounded backoff until ``timeout_s``.
        That is only right for messages that may be repeated, as all that go this way may:
        queries, InitProducerId (a second one raises the epoch once more), EndTxn (a second one
        gets the same answer). Produce goes through :meth:`submit`.

        Raises:
            KafkaUnavailableError: some request had no answer within ``timeout_s``.
        """
        deadline = Deadline(timeout_s)
        answers: list[Any] = [None] * len(requests)
        left = list(range(len(requests)))
        while True:
            per_try = min(deadline.remaining, self._request_timeout_s)
            futures = [
                (i, self.submit(requests[i][0], node_id=requests[i][1], timeout_s=per_try))
                for i in left
            ]
            left, failure = self._gather(futures, answers, requests, deadline)
            if failure is None:
                return answers
            if not deadline.pause():
                raise failure

    def highest_version(self, message_class: Any) -> int:
        """Return the highest version of a message that the broker and kafka-python both speak."""
        return int(self._manager.broker_version_data.api_version(message_class))

    def _gather(
        self,
        futures: list[tuple[int, Future[Any]]],
        answers: list[Any],
        requests: Sequence[tuple[Any, int | None]],
        deadline: Deadline,
    ) -> tuple[list[int], KafkaUnavailableError | None]:
        left: list[int] = []
        failure: KafkaUnavailableError | None = None
        for i, future in futures:
            try:
                answers[i] = future.result(deadline.remaining)
            except TimeoutError as error:
                future.cancel()
                left.append(i)
                message, node_id = requests[i]
                # A throttled request waits in this client (KIP-219); a slow broker pauses nothing.
                slow = node_id is None or not self._manager.is_paused(node_id)
                why = "no answer within the time allowed" if slow else "a quota throttles us"
                failure = faults.unavailable(self._servers, why, _name(message))
                failure.__cause__ = self._manager.last_error or error
            except KafkaUnavailableError as error:
                left.append(i)
                failure = error
        return left, failure

    def _queue(self, node_id: int) -> BrokerQueue:
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues.setdefault(
                node_id, BrokerQueue(node_id, self._net, self._manager, self._translated)
            )
        return queue

    def _to_any(self, call: Call) -> None:
        node_id = self._manager.least_loaded_node()
        if node_id is None:
            # All brokers known are backing off, or none is known.
            call.fail(faults.unavailable(self._servers, "every known broker refuses connections"))
            return
        queue = self._queue(node_id)
        queue.waiting.append(call)
        queue.pump()

    def _refusal(self) -> BaseException | None:
        refused = self._manager.refusal
        return None if refused is None else self._translated(refused)

    def _translated(self, error: BaseException, message: str = "") -> BaseException:
        if faults.is_authentication(error):
            self._manager.forget_refusals()
        return faults.translated(error, self._servers, message)

    @property
    def cluster_id(self) -> str:
        """The cluster's id, set when it was formatted; the same whichever broker answers."""
        return str(self._manager.cluster.cluster_id)

"""Kafka's protocol, one request and one answer, over kafka-python's connections.

kafka-python (3.0, pinned below 3.1) carries every message class and drives the sockets on a
thread of its own, but its public clients have no EndTxn and no raw Produce or Fetch. So a
:class:`Wire` drives its connection manager directly, through ``connections``: only these two
modules know the inside of kafka-python. Errors are the package's own, and no secret reaches a log.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from airflow_eos.errors import EosError, KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.cluster import ClusterView
from airflow_eos.kafka.client.connections import (
    BrokerQueue,
    Call,
    KnownBrokers,
    keep_secrets_out_of_logs,
)
from airflow_eos.kafka.client.deadline import Deadline
from airflow_eos.kafka.client.manager import Manager
from airflow_eos.kafka.client.messages import NetworkSelector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from airflow_eos.kafka.client.settings import KafkaSettings

MAX_RESPONSE_BYTES = 512 * 1024 * 1024
"""A frame above this is refused; fetches are asked for far less, one huge batch may exceed it."""


class Wire:
    """Connections to one Kafka cluster; thread-safe; holds no transaction state of its own.

    ``cluster`` answers questions about the cluster itself, and remembers what it was told.

    Args:
        settings: where the cluster is and how to log in.
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
        # Its threshold for "slow" tasks warns at 0.1 s, which encoding a huge record set may take.
        self._net = NetworkSelector(client_id=options["client_id"], slow_task_threshold_secs=0)
        self._manager = Manager(
            self._net,
            receive_message_max_bytes=MAX_RESPONSE_BYTES,
            max_in_flight_requests_per_connection=1 << 30,
            **options,
        )
        self.cluster = ClusterView(self, KnownBrokers(self._net, self._manager))
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
        the response are the caller's to read. Nothing is repeated here. A request unanswered for
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
        """One round trip; see :meth:`request_many` for what is repeated."""
        return self.request_many([(message, node_id)], timeout_s=timeout_s)[0]

    def request_many(
        self, requests: Sequence[tuple[Any, int | None]], *, timeout_s: float = 30.0
    ) -> list[Any]:
        """Send all together, return the responses in the same order.

        A request whose connection failed is repeated with bounded backoff until ``timeout_s``.
        That is only right for messages that may be repeated, as all that go this way may:
        questions, InitProducerId (a second one raises the epoch once more), EndTxn (a second one
        is answered the same). Produce goes through :meth:`submit`.

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
            left, failure = self._gather(futures, answers, deadline)
            if failure is None:
                return answers
            if not deadline.pause():
                raise failure

    def highest_version(self, message_class: Any) -> int:
        """The highest version of the message that this broker and kafka-python both speak."""
        return int(self._manager.broker_version_data.api_version(message_class))

    def _gather(
        self, futures: list[tuple[int, Future[Any]]], answers: list[Any], deadline: Deadline
    ) -> tuple[list[int], KafkaUnavailableError | None]:
        left: list[int] = []
        failure: KafkaUnavailableError | None = None
        for i, future in futures:
            try:
                answers[i] = future.result(deadline.remaining)
            except TimeoutError as error:
                future.cancel()
                left.append(i)
                failure = faults.unavailable(self._servers, "no answer within the time allowed")
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

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, EosError):
            return error
        if faults.is_authentication(error):
            self._manager.forget_refusals()
        return faults.translated(error, self._servers)

    @property
    def cluster_id(self) -> str:
        """The id that the cluster was formatted with; the same whatever broker answers."""
        return str(self._manager.cluster.cluster_id)

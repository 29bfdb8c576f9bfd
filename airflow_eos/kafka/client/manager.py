"""kafka-python's connection manager, mended: the one place that touches its private parts.

Hazards met in 3.0.12: a refused login is tried again until the deadline (remembered here until
reported); what arrives together with the end of a connection is dropped, and with it the broker's
"wrong password" (kept here); whether a quota throttles a connection is nowhere public; it reads
4 kB at a time, and copies them more often than their senders (read in large pieces here).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.messages import KafkaConnectionManager, KafkaTCPTransport

Received = Callable[[], tuple[Any, BaseException | None]]
"""What has arrived since the last call, nothing where that is nothing, or why there is no more."""

RECEIVED_BYTES = 256 * 1024
"""At a time; a buffer of this size for each connection."""


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's manager, remembering why the last connection failed (it only logs that)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.last_error: BaseException | None = None
        self._refusals: dict[Any, BaseException] = {}
        super().__init__(*args, **kwargs)

    def get_connection(self, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        """As in the base class; a new connection's failure is kept in ``last_error``."""
        if node_id in self._refusals:
            raise self._refusals[node_id]
        known = node_id in self._conns
        connection = super().get_connection(node_id, *args, **kwargs)
        if not known:
            connection.init_future.add_errback(lambda error: self._remember(node_id, error))
        return connection

    async def _build_transport(self, *args: Any, **kwargs: Any) -> Any:
        transport = await super()._build_transport(*args, **kwargs)
        # There is no public way in. TLS has bytes of its own, which no look at the socket shows.
        if type(transport) is KafkaTCPTransport:
            transport._sock_recv = in_large_pieces(transport._sock)  # noqa: SLF001
        else:
            transport._sock_recv = last_words_kept(transport._sock_recv)  # noqa: SLF001
        return transport

    def _remember(self, node_id: Any, error: BaseException) -> None:
        self.last_error = error
        if faults.is_authentication(error):
            # Stop at once instead of trying until the deadline. The library means to, but forgets.
            self._refusals[node_id] = error

    def forget_refusals(self) -> None:
        """Let the next request try to log in again."""
        self._refusals.clear()
        self._auth_failures.clear()

    def is_paused(self, node_id: int) -> bool:
        """Whether a quota of the broker throttles the connection just now."""
        connection = self._conns.get(node_id)
        return connection is not None and bool(connection.paused)


def in_large_pieces(sock: Any) -> Received:
    """Receive from a plain socket; what is returned holds until the next call.

    Which is long enough: the library copies it into the answer that it belongs to.
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


def last_words_kept(receive: Received) -> Received:
    """The same, but what arrived together with the end of a connection comes before the end."""

    def kept() -> tuple[Any, BaseException | None]:
        data, error = receive()
        return (data, None) if data else (data, error)  # the next read meets the end again

    return kept

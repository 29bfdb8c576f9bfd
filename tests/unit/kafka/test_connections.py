"""The order of requests to one broker, pieces of an answer, and one deadline for all retrying."""

from __future__ import annotations

import logging
import random
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.future import Future as KafkaFuture
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.parser import KafkaProtocol

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import KnownBrokers
from airflow_eos.kafka.client.connection import (
    MAX_IN_FLIGHT,
    RECEIVED_BYTES,
    BrokerQueue,
    Call,
    ConnectionManager,
    ConnectionPool,
    data_before_end,
    in_large_pieces,
    keep_secrets_out_of_logs,
)
from airflow_eos.kafka.client.errors import ANSWER_S, Deadline
from airflow_eos.kafka.client.messages import KafkaConnectionManager, ListTransactionsRequest
from airflow_eos.kafka.client.settings import KafkaSettings
from tests.support.metadata import Metadata


class Manager:
    def __init__(self):
        self.sent = []
        self.paused = False
        self.refuses = None

    def is_paused(self, _node_id):
        return self.paused

    def send(self, message, **_):
        if self.refuses:
            raise self.refuses
        self.sent.append((message, KafkaFuture()))
        return self.sent[-1][1]


class Net:
    def __init__(self):
        self.later = []

    def call_later(self, _delay, task):
        self.later.append(task)

    def call_soon(self, task):
        self.later.append(task)

    def run(self):
        later, self.later = self.later, []
        for task in later:
            task()


@pytest.fixture
def manager():
    return Manager()


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def queue(manager, net):
    def translated(error, message):
        return faults.translated(error, "one:9092", message)

    return BrokerQueue(1, net, manager, translated)


def submit(queue, *messages):
    calls = [Call(message, Future(), 1000) for message in messages]
    for call in calls:
        queue.waiting.append(call)
    queue.pump()
    return [call.future for call in calls]


def names(manager):
    return [message for message, _ in manager.sent]


def test_at_most_five_are_unanswered_and_the_order_is_kept(queue, manager):
    futures = submit(queue, *range(8))
    assert names(manager) == [0, 1, 2, 3, 4]
    manager.sent[0][1].success("zero")
    assert names(manager) == [0, 1, 2, 3, 4, 5]
    assert futures[0].result(0) == "zero"
    assert MAX_IN_FLIGHT == 5


def test_nothing_overtakes_a_request_that_was_lost(queue, manager):
    futures = submit(queue, *range(7))
    for _, sent in list(manager.sent):
        sent.failure(kafka_errors.KafkaConnectionError("gone"))
    assert names(manager) == [0, 1, 2, 3, 4]
    for future in futures:
        assert isinstance(future.exception(0), KafkaUnavailableError)
    assert submit(queue, "repeated")
    assert names(manager)[-1] == "repeated"


def test_a_broker_that_closes_the_connection_at_a_message_is_told_with_the_message(queue, manager):
    """As servers do that do not speak it: the brokers run, and their listeners can be reached."""
    [future] = submit(queue, ListTransactionsRequest())
    manager.sent[0][1].failure(kafka_errors.KafkaConnectionError("socket disconnected"))
    assert "did not answer ListTransactions: " in str(future.exception(0))


def test_a_request_the_broker_is_too_old_for_fails_alone(queue, manager, net):
    futures = submit(queue, *range(6))
    manager.sent[2][1].failure(kafka_errors.IncompatibleBrokerVersion("too old"))
    net.run()
    assert names(manager) == [0, 1, 2, 3, 4, 5]
    error = futures[2].exception(0)
    assert isinstance(error, KafkaError)
    assert not isinstance(error, KafkaUnavailableError)


def test_a_throttled_connection_is_waited_for_with_one_timer(queue, manager, net):
    manager.paused = True
    submit(queue, "a")
    submit(queue, "b")
    assert names(manager) == []
    assert len(net.later) == 1
    net.run()
    manager.paused = False
    net.run()
    assert names(manager) == ["a", "b"]


class Speaking(Manager):
    """Fixes a request's version when it sends it, as ``kafka.net.connection`` does."""

    def __init__(self, broker_version):
        super().__init__()
        self._broker = BrokerVersionData(broker_version)

    def send(self, message, **options):
        if message.API_VERSION is None:
            message.API_VERSION = self._broker.api_version(message)
        return super().send(message, **options)

    def versions(self):
        return [message.API_VERSION for message, _ in self.sent]


def test_each_broker_of_a_rolling_upgrade_is_asked_in_a_version_that_it_speaks(net):
    """One request goes to all brokers, and once more to those that did not answer."""
    newer: Any = Speaking((4, 1))
    older: Any = Speaking((4, 0))
    request = ListTransactionsRequest(transactional_id_pattern="etl-.*", max_version=2)
    queues = [
        BrokerQueue(node, net, manager, lambda error, _message: error)
        for node, manager in enumerate([newer, older])
    ]
    for queue in [*queues, *queues]:
        submit(queue, request)
    assert newer.versions() == [2, 2]
    assert older.versions() == [1, 1]
    assert older.sent[0][0].encode()


def test_an_error_while_sending_reaches_the_caller(queue, manager):
    manager.refuses = kafka_errors.UnknownBrokerIdError(7)
    (future,) = submit(queue, "a")
    assert isinstance(future.exception(0), KafkaUnavailableError)
    manager.refuses = ValueError("cannot encode")
    (future,) = submit(queue, "b")
    assert isinstance(future.exception(0), ValueError)


def test_a_cancelled_request_is_not_sent(queue, manager):
    calls = [Call(message, Future(), 1000) for message in "ab"]
    calls[0].future.cancel()
    queue.waiting.extend(calls)
    queue.pump()
    assert names(manager) == ["b"]


def test_payloads_are_never_logged(caplog):
    keep_secrets_out_of_logs()
    keep_secrets_out_of_logs()
    caplog.set_level(logging.DEBUG)
    for name in ("kafka.protocol.parser", "kafka.net.connection"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.debug("Send: %r", b"\0ann\0secret")
        logger.warning("connection lost")
        assert len(logger.filters) == 1
    assert "secret" not in caplog.text
    assert caplog.text.count("connection lost") == 2


# --- What a process remembers of a cluster, while threads forget and look up beside one another ---


def test_leaders_that_another_thread_forgets_are_told_to_who_has_just_looked_them_up():
    metadata = Metadata({"in": {0: 1}})
    metadata.learns = lambda: metadata.cluster._leaders.clear()  # as a refresh beside begins
    assert metadata.cluster.leaders("in") == {0: 1}


def test_coordinators_that_another_thread_forgets_are_told_to_who_has_just_looked_them_up():
    metadata = Metadata({})
    cluster = metadata.cluster
    cluster.coordinators(["etl-0-0"])
    metadata.learns = lambda: cluster.forget_coordinators(["etl-0-0", "etl-1-0"])
    assert cluster.coordinators(["etl-0-0", "etl-1-0"]) == {"etl-0-0": 1, "etl-1-0": 1}


# --- manager --------------------------------------------------------------------------------------
# What arrives on a connection reaches the library's parser, in large pieces, to its last byte.


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def frames(parser: Any, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The answers that the library cuts out of what it is given."""
    found: list[bytes] = []

    def keep(frame: Any) -> None:
        frame.seek(0)
        found.append(bytes(frame.read()))

    monkeypatch.setattr(parser, "_process_response", keep)
    return found


def test_answers_of_every_size_are_what_was_sent(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is used again at once: whoever kept a part of it would find other bytes there."""
    ours, theirs = ends
    chance = random.Random(7)
    sent = [chance.randbytes(size) for size in (0, 1, 4, 4096, 3 * RECEIVED_BYTES + 5, 7)]
    stream = b"".join(struct.pack(">i", len(each)) + each for each in sent)
    parser = KafkaProtocol(client_id="c")
    found = frames(parser, monkeypatch)
    receive, at = in_large_pieces(ours), 0
    while at < len(stream):
        piece = stream[at : at + chance.choice([1, 3, 1000, 60_000])]
        theirs.sendall(piece)
        at += len(piece)
        while data := receive()[0]:
            parser.receive_bytes(data)
    assert found == sent


def test_nothing_yet_is_no_end_and_the_last_words_come_before_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    receive = in_large_pieces(ours)
    assert receive() == (b"", None)
    theirs.sendall(b"wrong password")
    theirs.close()
    data, error = receive()
    assert (bytes(data), error) == (b"wrong password", None)
    data, error = receive()
    assert not data
    assert "socket disconnected" in str(error)


def test_a_connection_that_was_reset_says_so() -> None:
    def recv_into(_buffer: Any) -> int:
        raise ConnectionResetError("reset by peer")

    data, error = in_large_pieces(SimpleNamespace(recv_into=recv_into))()
    assert not data
    assert "reset by peer" in str(error)


def test_last_words_of_a_connection_with_tls_come_before_its_end() -> None:
    gone = OSError("gone")
    said = [(b"wrong password", gone), (b"", gone)]
    receive = data_before_end(lambda: said.pop(0))
    assert receive() == (b"wrong password", None)
    assert receive() == (b"", gone)


def test_the_library_still_has_the_private_parts_that_are_replaced(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    transport = KafkaTCPTransport(None, ours)
    theirs.sendall(b"x" * 10_000)
    assert transport._sock is ours
    assert transport._sock_recv() == (b"x" * 10_000, None)


@pytest.mark.parametrize(
    "refusal",
    [KafkaError("No token: HTTP status 401."), kafka_errors.SaslAuthenticationFailedError("no")],
    ids=["by the token endpoint", "by the broker"],
)
def test_a_login_that_was_refused_once_is_tried_again_once_that_was_said(
    monkeypatch: pytest.MonkeyPatch, refusal: BaseException
) -> None:
    class Closed:
        init_future = KafkaFuture().failure(refusal)

    monkeypatch.setattr(KafkaConnectionManager, "get_connection", lambda *_: Closed)
    manager: Any = ConnectionManager.__new__(ConnectionManager)
    manager._conns, manager._refusals, manager._auth_failures = {}, {}, {}
    manager._settings = KafkaSettings.from_librdkafka({"bootstrap.servers": "one:9092"})
    manager._files = manager._settings.files()
    pool: Any = ConnectionPool.__new__(ConnectionPool)
    pool._manager, pool._servers = manager, "one:9092"
    manager.get_connection(1)
    with pytest.raises(type(refusal)) as refused:
        manager.get_connection(1)  # known, and not asked again before it was said
    assert isinstance(pool._translated(refused.value), KafkaError)
    assert manager.get_connection(1) is Closed


# --- One deadline for all that is asked again: it ends, and nobody waits beyond it ----------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module ``time`` of the deadlines; sleeping is noted and takes exactly as long."""
    now = SimpleNamespace(s=100.0, slept=[])

    def sleep(seconds: float) -> None:
        now.slept.append(seconds)
        now.s += seconds

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))
    return now


def test_pauses_grow_to_a_quarter_of_a_second_and_end_before_the_time_is_up(clock):
    limit = Deadline(10)
    while limit.pause():
        pass
    assert clock.slept[0] < 0.03
    assert max(clock.slept) <= 0.25 * 1.2
    assert 9.7 < clock.s - 100 <= 10 + 0.25 * 0.2
    assert len(clock.slept) > 30


def test_no_pause_is_begun_that_would_outlast_the_time(clock):
    assert not Deadline(0).pause()
    assert not Deadline(0.001, first_pause_s=0.002).pause()
    assert clock.slept == []


def test_what_remains_is_never_zero_which_would_mean_no_limit(clock):
    limit = Deadline(2)
    assert (limit.remaining, limit.expired) == (2.0, False)
    clock.s += 5
    assert (limit.remaining, limit.expired) == (0.001, True)


def test_one_answer_is_waited_for_ten_seconds_at_most(clock):
    limit = Deadline(60)
    assert limit.answer_s == ANSWER_S
    clock.s += 55
    assert limit.answer_s == 5.0


def test_an_error_says_how_long_was_allowed(clock):
    assert f"within {Deadline(0.5)}, {Deadline(60.0)}" == "within 0.5 s, 60 s"


def test_brokers_that_refuse_the_login_are_not_said_to_be_away():
    """After a password was changed: kafka-python knows of no node to ask, a minute long."""

    def refresh(_question: Any) -> None:
        raise kafka_errors.NodeNotReadyError("metadata")

    refused = KafkaError("not accepted")
    net: Any = SimpleNamespace(run=refresh)
    metadata = SimpleNamespace(refresh_metadata=None)
    assert KnownBrokers(net, metadata).refresh() is False
    with pytest.raises(KafkaError, match="not accepted"):
        KnownBrokers(net, metadata, lambda: refused).refresh()

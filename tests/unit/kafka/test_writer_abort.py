"""An abort comes after everything that was sent: what arrives behind it would open the id anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.kafka import librdkafka
from airflow_eos.kafka.producer import writer as producer
from airflow_eos.kafka.producer.sender import Sender
from airflow_eos.kafka.transactions.identity import TransactionIdentity

IDENTITY = TransactionIdentity("etl-0-0", 7, 1)


@pytest.mark.parametrize("of", [producer, librdkafka], ids=["arrow", "librdkafka"])
def test_what_was_prepared_and_told_to_nobody_is_aborted_by_its_identity(
    monkeypatch: pytest.MonkeyPatch, of: Any
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(of, "end_transactions", lambda *given, **how: ended.append((given, how)))
    wire: Any = SimpleNamespace()
    writer: Any = (
        producer.TransactionalWriter(wire, topic="out")
        if of is producer
        else librdkafka.LibrdkafkaWriter(wire, wire, topic="out")
    )
    writer.abort()
    assert ended == []
    writer.abort(IDENTITY)
    assert ended == [((wire, [IDENTITY]), {"commit": False})]


def test_an_abort_stops_a_writer_that_is_still_taking_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That can take a minute; after it nothing is sent for a transaction that is given up."""
    sent: list[Any] = []
    ended: list[Any] = []

    def taken(*_given: Any) -> TransactionIdentity:
        while writer._handed is None or not writer._handed._waiters:  # until the abort waits for it
            time.sleep(0.005)
        return IDENTITY

    def submit(*given: Any, **_how: Any) -> Any:
        sent.append(given)
        raise RuntimeError("sent behind the abort")

    def batches(sender: Sender, *_given: Any) -> Iterator[None]:
        sender.add("out", 0, b"rows", 1)
        yield

    monkeypatch.setattr(producer, "GATHER_BYTES", 1)
    monkeypatch.setattr(producer, "GATHER_BYTES_A_PARTITION", 1)
    monkeypatch.setattr(producer, "end_transactions", lambda _wire, ids, **_how: ended.extend(ids))
    cluster = SimpleNamespace(transaction_version=2, leaders=lambda *_, **_options: {0: 1})
    wire: Any = SimpleNamespace(cluster=cluster, submit=submit)
    writer: Any = producer.TransactionalWriter(wire, topic="out")
    writer._to = SimpleNamespace(
        topics=SimpleNamespace(partitions=1),
        batches_of=lambda _rows: SimpleNamespace(batches=batches),
    )
    writer._coordinator = SimpleNamespace(init=taken)
    writer.begin("etl-0-0", 60_000)
    writer.write(pa.record_batch({"value": pa.array([b"v"], pa.binary())}))
    writer.abort()
    assert (sent, ended) == ([], [IDENTITY])


def test_an_abort_waits_for_the_answers_to_what_is_in_flight() -> None:
    request: Future[Any] = Future()
    wire: Any = SimpleNamespace(
        cluster=SimpleNamespace(leaders=lambda *_, **_options: {0: 1}),
        submit=lambda *_, **_options: request,
    )
    sender = Sender(wire, transactional_id="etl-0-0", add_partitions=None, delivery_timeout_s=60.0)
    sender.add("out", 0, b"rows", 1)
    sender.pump()
    waited = threading.Event()

    def answer_once_awaited() -> None:
        while not request._waiters and not waited.is_set():
            time.sleep(0.005)
        request.set_result(None)

    with ThreadPoolExecutor(1) as broker:
        broker.submit(answer_once_awaited)
        sender.wait_for_in_flight(60)
        in_time = request.done()
        waited.set()
    assert in_time

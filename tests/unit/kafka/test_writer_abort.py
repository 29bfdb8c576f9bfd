"""An abort comes after everything that was sent: what arrives behind it would open the id anew."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.kafka.producer.sender import Sender

pytestmark = pytest.mark.unit


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

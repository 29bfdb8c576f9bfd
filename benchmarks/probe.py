"""Sends rows at a steady pace, and times when a ``read_committed`` reader gets each row.

A process of its own (``python -m benchmarks.probe JSON``), so that neither Spark's driver nor
other threads of its interpreter delay the clock. The argument is JSON: bootstrap, input, output,
rate, seconds, warm_s. Prints the latencies in ms as JSON; fails if a row is missing or comes twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

_PERIOD_S = 0.005
_LAST_ROW_S = 60.0
_PADDING = "x" * 70


def measure(**settings: Any) -> list[float]:
    """Run a probe; return the latencies in ms of the rows sent after the warm-up, in order."""
    command = [sys.executable, "-m", "benchmarks.probe", json.dumps(settings)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=settings["seconds"] + 120
    )
    if done.returncode != 0:
        raise SystemExit(f"the probe failed: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    sent: list[int] = []
    consumer = _consumer(settings)
    run = uuid.uuid4().hex[:8]  # tells this run's rows from others in the topic
    sender = threading.Thread(target=_send, args=(settings, run, sent), daemon=True)
    sender.start()
    arrived = _receive(consumer, sender, run, sent)
    consumer.close()
    warm = round(settings["warm_s"] * settings["rate"])
    print(json.dumps([round((arrived[i] - at) / 1e6, 2) for i, at in enumerate(sent) if i >= warm]))


def _send(settings: dict[str, Any], run: str, sent: list[int]) -> None:
    producer = Producer({"bootstrap.servers": settings["bootstrap"], "linger.ms": 0})
    count = round(settings["seconds"] * settings["rate"])
    start = time.monotonic()
    while len(sent) < count:
        due = min(int((time.monotonic() - start) * settings["rate"]), count)
        while len(sent) < due:
            number = len(sent)
            sent.append(time.time_ns())
            producer.produce(settings["input"], f"{run}:{number}:{_PADDING}", str(number))
        producer.poll(0)
        time.sleep(_PERIOD_S)
    producer.flush(30)


def _consumer(settings: dict[str, Any]) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    topic = settings["output"]
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    return consumer


def _receive(
    consumer: Consumer, sender: threading.Thread, run: str, sent: list[int]
) -> dict[int, int]:
    arrived: dict[int, int] = {}
    deadline = None
    while sender.is_alive() or len(arrived) < len(sent):
        if not sender.is_alive():
            deadline = deadline or time.monotonic() + _LAST_ROW_S
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(sent) - len(arrived)} rows did not arrive")
        for message in consumer.consume(1000, timeout=0.01):
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            whose, text, _ = (message.value() or b"").decode().split(":")
            if whose != run:
                continue
            number = int(text)
            if number in arrived:
                raise SystemExit(f"row {number} came twice")
            arrived[number] = time.time_ns()
    return arrived


if __name__ == "__main__":
    _main()

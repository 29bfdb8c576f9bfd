"""One of a broker's two disks is full behind a promise, for longer than its transactions last.

The coordinator's log is on the other one: it aborts the promise, and cannot write the markers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.errors import DeliveryError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.sinks import KafkaSink
from tests.integration.hazards.spark_job import Job
from tests.support.pipeline import wait_until
from tests.support.stores import disk_of

pytestmark = pytest.mark.long

_SMALL = {
    **dict.fromkeys(("log.segment.bytes", "transaction.state.log.segment.bytes"), "1048576"),
    "offsets.topic.segment.bytes": "1048576",
    "log.index.size.max.bytes": "65536",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


def _partitions(folder: Path) -> list[str]:
    found = [each.name for each in folder.glob("*-[0-9]*") if each.is_dir()]
    return [name for name in found if name != "__cluster_metadata-0"]


def _fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def _write_until_refused(job: Job, topic: str) -> None:
    """A disk is taken out of use by the first write that it refuses."""
    refused: list[object] = []
    told = {"bootstrap.servers": job.bootstrap, "message.timeout.ms": 3000}
    producer = Producer(told)
    while not refused:
        for number in range(4):
            producer.produce(
                topic,
                bytes(500),
                partition=number,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        producer.flush(4)


@pytest.mark.parametrize("place", ["decided", "settled-some"])
def test_every_promised_row_comes_once_and_every_reader_goes_on(
    tmp_path: Path, spark: SparkSession, die_at: Callable[[str], None], place: str
) -> None:
    with disk_of("60m", tmp_path / "disk") as disk:
        other, failing = tmp_path / "other", disk / "log"
        told = {**_SMALL, "log.dirs": f"{other},{failing}"}
        broker = EmbeddedKafka(told, folder=tmp_path / "kafka")
        with broker:
            fillers = 0
            while len(_partitions(other)) > len(_partitions(failing)):
                broker.create_topic(f"filler-{fillers}", 1)
                fillers += 1
            first = Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "first"}
            )
            first.init_transactions(60)
            del first
            assert "__transaction_state-0" in _partitions(other)
            (tmp_path / "job").mkdir()
            job = Job(broker, tmp_path / "job")
            job.spark = spark
            broker.create_topic(f"{job.name}-beside", 4)
            sink = KafkaSink(
                job.bootstrap,
                f"{job.name}-out",
                job.name,
                transaction_timeout=timedelta(seconds=20),
                batch_within=timedelta(seconds=5),
                recover_within=timedelta(seconds=5),
            )
            job.feed(60)
            job.deliver(sink)
            job.feed(60)
            die_at(place)
            with pytest.raises(RuntimeError):
                job.deliver(sink)
            die_at("")
            ballast = _fill(disk)
            _write_until_refused(job, f"{job.name}-beside")
            wait_until(lambda: not job.open_transactions(), what="the timeout")
            ballast.unlink()
            broker.stop()
            broker.start(1)

            recovered = CliRunner().invoke(app, ["recover", job.checkpoint, "-b", job.bootstrap])
            assert recovered.exit_code == 0, recovered.output
            try:
                job.deliver(sink)
            except DeliveryError as error:
                assert "start the query again" in str(error)  # noqa: PT017
                job.deliver(sink)
            job.feed(60)
            job.deliver(sink)
            job.assert_exactly_once()
            blocked = CliRunner().invoke(app, ["blocked", f"{job.name}-out", "-b", job.bootstrap])
            assert blocked.exit_code == 0, blocked.output

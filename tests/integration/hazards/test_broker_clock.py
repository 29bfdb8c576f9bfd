"""A broker whose clock is wrong, or is set while transactions are open.

The broker's timeout is by its own clock; ours says only what a person reads in a plan. So a wrong
clock may cost time or a replay, and never a row.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import cluster_clock_ms
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.broker import class_path
from airflow_eos.local.jars import broker_jars, java_program
from airflow_eos.ops import doctor
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.hazards.direct import Direct, wait_for

pytestmark = pytest.mark.proof

SOURCE = Path(__file__).parents[2] / "java" / "clock" / "SystemTime.java"
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Clock:
    """How far the broker's clock is ahead of ours, in a file that it follows."""

    file: Path

    def set(self, ahead_ms: int) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(str(ahead_ms))
        fresh.replace(self.file)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    subprocess.run(
        [
            str(Path(java_program()).with_name("javac")),
            *("-cp", os.pathsep.join(map(str, broker_jars()))),
            *("-d", str(folder), str(SOURCE)),
        ],
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture(scope="module")
def ahead_ms(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def clock(ahead_ms: int, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    clock = Clock(tmp_path_factory.mktemp("clock") / "ahead")
    clock.set(ahead_ms)
    return clock


@pytest.fixture(scope="module")
def broker(classes: Path, clock: Clock) -> Iterator[EmbeddedKafka]:
    """One for each ``ahead_ms`` that a test names; its clock is set at most once.

    Kafka's clients wait from the time of their last attempt (ClusterConnectionStates): one that had
    to reconnect before the clock went back would stand still until it is that time again.
    """
    quick = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EOS_CLOCK_FILE", str(clock.file))
        ours_first = ("-cp", os.pathsep.join([str(classes), class_path()]))
        with EmbeddedKafka(quick, java_options=ours_first) as running:
            yield running


@pytest.fixture
def pipeline(broker: EmbeddedKafka, tmp_path: Path) -> Direct:
    topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
    return Direct(broker.bootstrap_servers, tmp_path, topic)


def die(pipeline: Direct, die_at: Callable[[str], None], place: str) -> None:
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")


def opened_ahead_ms(pipeline: Direct) -> int:
    """When the broker thinks that the first open transaction began, from now."""
    plan = plan_recovery(str(pipeline.checkpoint), pipeline.settings)
    return plan.listed[0].opened_at_ms - plan.made_at_ms


@pytest.mark.parametrize(
    "ahead_ms",
    [
        pytest.param(-HOUR_MS // 2, id="behind", marks=pytest.mark.proof),
        pytest.param(HOUR_MS // 2, id="ahead"),
    ],
    indirect=True,
)
@pytest.mark.parametrize(
    "place",
    ["prepared", *(pytest.param(p, marks=pytest.mark.proof) for p in ("decided", "settled-some"))],
)
def test_a_wrong_clock_changes_nothing(
    pipeline: Direct, die_at: Callable[[str], None], ahead_ms: int, place: str
) -> None:
    pipeline.feed_numbers(300)
    die(pipeline, die_at, place)
    assert abs(opened_ahead_ms(pipeline) - ahead_ms) < HOUR_MS // 20, "the clock is not wrong"
    pipeline.feed_numbers(10)
    pipeline.run()
    pipeline.assert_exactly_once()
    commits = [d for d in pipeline.decisions.of_batch(0) if d.works]
    assert len(commits) == 1, "nothing was replayed"


@pytest.mark.parametrize(
    "ahead_ms", [-HOUR_MS // 2, HOUR_MS // 2], ids=["behind", "ahead"], indirect=True
)
def test_the_doctor_tells_it_from_the_clusters_own_answer(
    broker: EmbeddedKafka, ahead_ms: int
) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": broker.bootstrap_servers})
    with ConnectionPool(settings) as wire:
        told_ms = cluster_clock_ms(wire)
    assert told_ms is not None
    off_ms = told_ms - time.time_ns() // 1_000_000
    assert abs(off_ms - ahead_ms) < HOUR_MS // 20
    assert doctor.clocks("broker's clock", off_ms).verdict == "warn"


@pytest.mark.parametrize("ahead_ms", [0], ids=["right"], indirect=True)
def test_a_clock_set_forward_times_promises_out_and_their_rows_are_replayed(
    pipeline: Direct, clock: Clock, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(300)
    die(pipeline, die_at, "settled-some")
    assert pipeline.open_transactions()
    clock.set(HOUR_MS // 2)
    wait_for(lambda: not pipeline.open_transactions())
    pipeline.run()
    pipeline.assert_exactly_once()
    commits = [d for d in pipeline.decisions.of_batch(0) if d.works]
    assert [len(d.works) for d in commits] == [3, 2], "only what was lost is promised anew"


@pytest.mark.parametrize("ahead_ms", [HOUR_MS], ids=["ahead"], indirect=True)
def test_a_clock_set_back_keeps_transactions_open_and_recovery_ends_them(
    pipeline: Direct, clock: Clock, die_at: Callable[[str], None]
) -> None:
    """By the broker's clock they time out in an hour; readers would wait so long."""
    pipeline.timeout = timedelta(seconds=8)
    pipeline.feed_numbers(300)
    die(pipeline, die_at, "decided")
    clock.set(0)
    due = time.monotonic() + pipeline.timeout.total_seconds() + 2
    wait_for(lambda: time.monotonic() > due)
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.COMMIT, Result.DONE)] * 3
    assert pipeline.open_transactions() == []
    pipeline.run()
    pipeline.assert_exactly_once()

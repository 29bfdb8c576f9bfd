"""A real Airflow's watchdog: what it costs where all is well, and what a paused recovery says."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.local import EmbeddedKafka
from demo.airflow import PrivateAirflow
from tests.support.beats import beating, heartbeat
from tests.support.pipeline import wait_until

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1200)]

EVERY_S = 20
LOOKS = 6
DAYS_LOOKS = 24 * 60
DAGS = """
from datetime import timedelta

from airflow_eos.factory import eos_pipeline

run, recovery, watchdog = eos_pipeline(
    dag_id="idle",
    application="/no/such/app.py",
    checkpoint={checkpoint!r},
    prefix={prefix!r},
    input_topic={prefix!r},
    output_topic={prefix!r},
    stall_after=1,
    watchdog_schedule=timedelta(seconds={every}),
)
"""


class Idle:
    """A pipeline that has nothing to do, and the Airflow that watches it."""

    def __init__(self, airflow: PrivateAirflow, home: Path, store: CheckpointStore) -> None:
        self.airflow, self.home, self.store = airflow, home, store

    def rows(self, query: str) -> list[Any]:
        with sqlite3.connect(self.home / "airflow.db", timeout=60) as database:
            return database.execute(query).fetchall()

    def looks(self) -> list[str]:
        """The states of the looks that have ended, the oldest first."""
        query = (
            "select t.state from task_instance t join dag_run r using (dag_id, run_id) "
            "where dag_id = 'idle_watchdog' and t.state in ('success', 'skipped', 'failed') "
            "order by r.run_after"
        )
        return [state for (state,) in self.rows(query)]

    def after(self, count: int) -> list[str]:
        """The states of so many looks from now on."""
        before = len(self.looks())
        enough = lambda: len(self.looks()) >= before + count  # noqa: E731
        wait_until(enough, timeout=900, every=1, what=f"{count} looks")
        return self.looks()[before : before + count]

    def logs(self) -> list[Path]:
        found = (self.home / "logs").rglob("*.log")
        return sorted(each for each in found if "dag_id=idle_watchdog" in str(each))


@pytest.fixture
def idle(kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path) -> Iterator[Idle]:
    dags, home, place = tmp_path / "dags", tmp_path / "airflow", tmp_path / "checkpoint"
    dags.mkdir()
    place.mkdir()
    text = DAGS.format(checkpoint=str(place), prefix=topic("idle"), every=EVERY_S)
    (dags / "idle.py").write_text(text)
    with PrivateAirflow(home, dags) as airflow:
        kafka = {"bootstrap.servers": kafka_broker.bootstrap_servers}
        airflow.start(
            connections={"kafka_default": {"conn_type": "kafka", "extra": kafka}}, settings={}
        )
        airflow.wait_until_ready({"idle", "idle_recovery", "idle_watchdog"})
        yield Idle(airflow, home, CheckpointStore.open(place))


def test_a_look_at_an_idle_pipeline_is_one_task_and_a_paused_recovery_is_red_at_once(
    idle: Idle,
) -> None:
    """Six rows and three logs a minute; and green looks, as somebody was "at it", for ever."""
    now_ms = time.time_ns() // 1_000_000
    driver = heartbeat(term=1, started_at_ms=now_ms - 3_600_000, beat_at_ms=now_ms)
    with beating(idle.store, driver, every_s=0.2):
        idle.after(1)
        assert set(idle.after(LOOKS)) == {"success"}
        [(runs, tasks)] = idle.rows(
            "select count(distinct run_id), count(*) from task_instance "
            "where dag_id = 'idle_watchdog'"
        )
        assert tasks == runs, "one row for each look"
        logs = idle.logs()
        written = sum(each.stat().st_size for each in logs) / len(logs)
        print(  # noqa: T201 - the figures of docs/production.md
            f"a look: {tasks / runs:g} task instances, {written:,.0f} bytes of log; a day of "
            f"looks a minute: {DAYS_LOOKS * tasks / runs:,.0f} task instances and "
            f"{DAYS_LOOKS * written / 1e6:.1f} MB"
        )
        assert written < 8_000
        idle.airflow.api.pause("idle_recovery")
    # The driver is silent from now on.
    assert "failed" in idle.after(3)
    assert set(idle.after(2)) == {"failed"}
    assert idle.rows("select 1 from dag_run where dag_id = 'idle_recovery'") == []
    assert "idle_recovery is paused: its runs wait for ever" in idle.logs()[-1].read_text()
    idle.airflow.api.unpause("idle_recovery")
    wait_until(
        lambda: bool(idle.rows("select 1 from dag_run where dag_id = 'idle_recovery'")),
        timeout=300,
        every=1,
        what="the recovery to start",
    )

"""Asset events of settled batches in a real Airflow whose triggerer and scheduler are killed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_eos.events import SettledEvent
from airflow_eos.local.broker import free_ports
from tests.support.real_airflow import RealAirflow
from tests.support.servers.postgres import EmbeddedPostgres
from tests.support.settled_logs import ROWS, SettledLogs

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(3600)]

BATCHES = int(os.environ.get("EOS_EVENTS_BATCHES", "10000"))
KILLS = int(os.environ.get("EOS_EVENTS_KILLS", "20"))
SECONDS = float(os.environ.get("EOS_EVENTS_SECONDS", "20"))
"""Between two kills, on average."""

DAGS = """
from datetime import UTC, datetime

from airflow.sdk import DAG, Asset
from airflow_eos.operators.events import EmitSettledBatchesOperator

for name in ("ranges", "batches"):
    # Without a start date Airflow 3.3 makes the first run of @continuous, and never another.
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(f"emit_{{name}}", schedule="@continuous", start_date=begin, max_active_runs=1) as dag:
        EmitSettledBatchesOperator(
            task_id="emit",
            asset=Asset(name),
            checkpoint_location=f"{folder}/{{name}}",
            each_batch=name == "batches",
            deferrable=True,
            poke_interval=0.5,
            retries=2,
            retry_delay=1,
        )
    globals()[dag.dag_id] = dag
"""


def told(airflow: RealAirflow, asset: str) -> list[SettledEvent]:
    events = [SettledEvent.from_extra(extra) for extra in airflow.events(asset)]
    assert None not in events, "an event that says nothing"
    return [event for event in events if event is not None]


def newest(airflow: RealAirflow, asset: str) -> int:
    return max((event.to_batch for event in told(airflow, asset)), default=-1)


def wait_for(airflow: RealAirflow, logs: dict[str, SettledLogs], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while behind := {n: newest(airflow, n) for n in logs if newest(airflow, n) + 1 < logs[n].next}:
        said = airflow.log("scheduler") + airflow.log("triggerer")
        assert time.monotonic() < deadline, f"told no more than {behind}\n{said}"
        time.sleep(1)


def assert_each_batch_once(events: list[SettledEvent], logs: SettledLogs) -> None:
    batches = Counter(b for e in events for b in range(e.from_batch, e.to_batch + 1))
    missing = set(range(logs.next)) - batches.keys()
    twice = [batch for batch, times in batches.items() if times > 1]
    figures = f"{len(missing)} missing, {len(twice)} twice"
    print(f"{len(events)} events of {logs.next} batches: {figures}")  # noqa: T201 - the proof
    assert (missing, twice) == (set(), [])
    assert all(before.end == after.start for before, after in pairwise(events))
    assert sum((event.rows or {}).get("sink", 0) for event in events) == ROWS * logs.next
    assert events[-1].end == {"0": {logs.topic: {"0": ROWS * logs.next}}}


@pytest.fixture
def database() -> Iterator[str]:
    with EmbeddedPostgres(settings={"max_connections": "200"}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create database airflow")
        at = conninfo_to_dict(server.dsn_of("airflow"))
        yield f"postgresql://{at['user']}:{at['password']}@{at['host']}:{at['port']}/airflow"


def test_killed_again_and_again_it_tells_each_batch_once(tmp_path: Path, database: str) -> None:
    seed = int(os.environ.get("EOS_EVENTS_SEED", str(random.SystemRandom().randrange(10**6))))
    chance = random.Random(seed)
    wanted = {"ranges": BATCHES, "batches": BATCHES // 10}
    logs = {name: SettledLogs(tmp_path / name) for name in wanted}
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "emit.py").write_text(DAGS.format(folder=tmp_path))
    [port] = free_ports(1)
    stop = threading.Event()

    def settle_on(name: str) -> None:
        pace = KILLS * SECONDS / wanted[name]
        while logs[name].next < wanted[name] and not stop.wait(pace):
            logs[name].settle()

    with RealAirflow(tmp_path / "home", port, dags, database) as airflow:
        airflow.wait_for_dag("emit_batches")
        for each in logs.values():
            each.settle()
        wait_for(airflow, logs, 300)
        streams = [threading.Thread(target=settle_on, args=(name,)) for name in wanted]
        begun = time.monotonic()
        for stream in streams:
            stream.start()
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.2, 2 * SECONDS))
                both = [("triggerer",), ("scheduler",), ("triggerer", "scheduler")]
                for service in chance.choice(both):
                    airflow.kill(service)
                    airflow.start(service)
            for stream in streams:
                stream.join()
        finally:
            stop.set()
        wait_for(airflow, logs, 300)
        took = time.monotonic() - begun
        print(f"seed {seed}: {airflow.kills} kills in {took:.0f} s")  # noqa: T201 - the proof
        assert airflow.kills >= KILLS
        for name, each in logs.items():
            assert each.next == wanted[name]
            assert_each_batch_once(told(airflow, name), each)
        assert len(told(airflow, "batches")) == wanted["batches"]


HOURS = int(os.environ.get("EOS_HOURS", "1000"))
HOURLY = """
from datetime import UTC, datetime

from airflow.sdk import DAG, Asset
from airflow_eos.operators.events import EmitCompleteHoursOperator

begin = datetime(2026, 1, 1, tzinfo=UTC)
with DAG("emit_hours", schedule="@continuous", start_date=begin, max_active_runs=1) as dag:
    EmitCompleteHoursOperator(
        task_id="emit",
        asset=Asset("hours"),
        checkpoint_location="{folder}/hours",
        since=datetime(1970, 1, 1, tzinfo=UTC),
        deferrable=True,
        poke_interval=0.5,
        retries=2,
        retry_delay=1,
    )
"""


class Hours(SettledLogs):
    """Batches whose watermarks are 20 minutes apart; when each was settled, by this clock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, watermark_step_ms=20 * 60_000)
        self.settled_at: list[float] = []

    def commit(self, batch: int) -> None:
        self.settled_at.append(time.time())
        super().commit(batch)

    def complete_at(self, hour: str) -> float:
        """When the batch was settled by which the hour is complete."""
        end = datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC) + timedelta(hours=1)
        return self.settled_at[round(end.timestamp()) // (20 * 60)]


def hours_told(airflow: RealAirflow) -> list[tuple[str, float]]:
    """Each hour as often as it was told, and when; from 3.3 on a partition of its own."""
    query = (
        "select e.extra, extract(epoch from e.timestamp)::float, e.partition_key "
        "from asset_event e join asset a on a.id = e.asset_id where a.name = 'hours' order by e.id"
    )
    found = airflow.rows(query)
    return [
        (hour, at)
        for extra, at, partition in found
        for hour in ([partition] if partition is not None else extra["hours"])
    ]


def test_killed_again_and_again_it_tells_each_hour_once_and_none_early(
    tmp_path: Path, database: str
) -> None:
    seed = int(os.environ.get("EOS_EVENTS_SEED", str(random.SystemRandom().randrange(10**6))))
    chance = random.Random(seed)
    logs, stop = Hours(tmp_path / "hours"), threading.Event()
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "emit.py").write_text(HOURLY.format(folder=tmp_path))
    [port] = free_ports(1)
    batches = 3 * HOURS + 1

    def settle_on() -> None:
        while logs.next < batches and not stop.wait(KILLS * SECONDS / batches):
            logs.settle()

    with RealAirflow(tmp_path / "home", port, tmp_path / "dags", database) as airflow:
        airflow.wait_for_dag("emit_hours")
        logs.settle()
        stream = threading.Thread(target=settle_on)
        stream.start()
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.2, 2 * SECONDS))
                service = chance.choice(["triggerer", "scheduler", "api-server", "dag-processor"])
                airflow.kill(service)
                airflow.start(service)
            stream.join()
        finally:
            stop.set()
        deadline = time.monotonic() + 300
        while len({hour for hour, _ in hours_told(airflow)}) < HOURS:
            assert time.monotonic() < deadline, airflow.log("scheduler") + airflow.log("triggerer")
            time.sleep(1)
        told = hours_told(airflow)
    expected = [f"{datetime.fromtimestamp(n * 3600, UTC):%Y-%m-%dT%H}" for n in range(HOURS)]
    early = [hour for hour, at in told if at < logs.complete_at(hour)]
    twice = len(told) - len({hour for hour, _ in told})
    said = f"{len(told)} hours, {airflow.kills} kills: {twice} twice, {len(early)} early"
    print(f"seed {seed}: {said}")  # noqa: T201 - the proof
    assert sorted(hour for hour, _ in told) == expected
    assert early == []


WATCHED = """
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, AsyncCallback, task
from airflow_eos.notifications import settled_within
from airflow_eos.operators.events import EmitSettledBatchesOperator
from airflow_eos.triggers.settled import SettledBatchesWatcher

def bell(name, at_least):
    trigger = SettledBatchesWatcher(
        checkpoint_location="{folder}/checkpoint", at_least=at_least, poke_interval=0.5
    )
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])

for asset in (bell("each", 1), bell("tens", 10)):
    with DAG(f"on_{{asset.name}}", schedule=[asset]) as dag:
        @task
        def look(): ...
        look()
    globals()[dag.dag_id] = dag

with DAG(
    "emit_ranges",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    deadline=settled_within(
        timedelta(seconds=30),
        AsyncCallback("tests.support.told.write_down", kwargs={{"file": "{folder}/late"}}),
    ),
) as emit_ranges:
    EmitSettledBatchesOperator(
        task_id="emit",
        asset=Asset("ranges"),
        checkpoint_location="{folder}/checkpoint",
        deferrable=True,
    )
"""


def test_a_watcher_rings_and_a_deadline_tells_that_no_batch_was_settled(
    tmp_path: Path, database: str
) -> None:
    logs = SettledLogs(tmp_path / "checkpoint")
    logs.settle(1)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "watched.py").write_text(WATCHED.format(folder=tmp_path))
    [port] = free_ports(1)

    def rung(asset: str) -> list[int]:
        return [extra["payload"]["to_batch"] for extra in airflow.events(asset)]

    def wait(condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{airflow.log('triggerer')}"
            time.sleep(1)

    with RealAirflow(tmp_path / "home", port, tmp_path / "dags", database) as airflow:
        airflow.wait_for_dag("emit_ranges")
        wait(lambda: rung("each") and rung("tens"), "the first ring of both")
        wait(lambda: newest(airflow, "ranges") == 0, "the event of the first batch")
        logs.settle(4)
        wait(lambda: 4 in rung("each"), "a ring for a batch")
        assert rung("tens") == [0], "ten more are not there yet"
        airflow.kill("triggerer")
        logs.settle(8)
        airflow.start("triggerer")
        wait(lambda: 12 in rung("tens"), "what was settled while nobody looked")
        assert 12 in rung("each")
        runs = "select count(*) from dag_run where dag_id = 'on_each'"
        wait(lambda: airflow.rows(runs)[0][0] >= 2, "a run for a ring")
        wait((tmp_path / "late").exists, "the deadline, since nothing was settled any more")

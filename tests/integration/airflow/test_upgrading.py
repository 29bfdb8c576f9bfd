"""New versions of a running app, in a real Airflow: rejected, brought in, and undone."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, drain_newest, newest_term, read_heartbeat
from airflow_eos.factory.upgrade import KEEP
from airflow_eos.local import EmbeddedKafka, spark_jars
from demo.airflow import PrivateAirflow
from demo.rest import DagRun
from tests.integration.airflow.test_asking import Person
from tests.support.beats import beside
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import wait_until
from tests.support.topics import produce, read_topic

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE_S = 300

APP = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from airflow_eos.sinks.app import App, argument_parser, run_app


def main():
    parser = argument_parser("Rows, as a version writes them.", prefix="upgraded")
    parser.add_argument("--input-topic", required=True)
    parser.add_argument("--output-topic", required=True)
    args = parser.parse_args()
    app = App.of(args)
    spark = SparkSession.builder.appName("upgraded").getOrCreate()
    rows = app.read(spark, args.input_topic)
    rows = {rows}
    app.start(
        rows, topic=args.output_topic, query_name="upgraded", output_mode="{mode}"
    ).awaitTermination()


run_app(main)
"""
VALUE = 'F.col("value").cast("string")'
POISONED = f'F.when({VALUE} == "poison", F.raise_error(F.lit("poison"))).otherwise({VALUE})'
STATELESS = {
    "first": 'rows.select("key", "value")',
    "other-rows": f'rows.select("key", F.concat({VALUE}, F.lit("!")).alias("value"))',
    "good": f'rows.select("key", {VALUE}.alias("value"))',
    "fails-later": f'rows.select("key", {POISONED}.alias("value"))',
}
COUNTED = '.count().select("key", F.col("count").cast("string").alias("value"))'
STATEFUL = {
    "first": f'rows.groupBy("key"){COUNTED}',
    "other-rows": f'rows.groupBy("key", "value"){COUNTED}',
    "good": f'rows.select("key", "value").groupBy("key"){COUNTED}',
    "fails-later": f'rows.select("key", {POISONED}.alias("value")).groupBy("key")'
    '.agg(F.count("value").alias("count"))'
    '.select("key", F.col("count").cast("string").alias("value"))',
}
DAGS = """
from airflow_eos.factory import Pipeline, eos_pipeline, eos_upgrade

PIPELINE = Pipeline(
    dag_id="orders",
    application="{folder}/first.py",
    checkpoint="{folder}/checkpoint",
    prefix={name!r},
    input_topic="{name}-in",
    output_topic="{name}-out",
    jars={jars!r},
    conf={{"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
          "spark.sql.shuffle.partitions": "2"}},
    env={{"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": {opts!r}}},
    watchdog_schedule=None,
)
orders, recovery, watchdog = eos_pipeline(PIPELINE)
upgrade = eos_upgrade(PIPELINE)
"""


class Upgraded:
    """A pipeline under upgrade: rows go in all the time."""

    def __init__(self, broker: EmbeddedKafka, folder: Path, *, counts: bool) -> None:
        self.broker, self.folder, self.counts = broker, folder, counts
        self.name = f"u{uuid.uuid4().hex[:8]}"
        self.sent: list[tuple[str, str]] = []
        for topic in ("in", "out"):
            broker.create_topic(f"{self.name}-{topic}", 2)
        mode = "update" if counts else "append"
        for version, rows in (STATEFUL if counts else STATELESS).items():
            (folder / f"{version}.py").write_text(APP.format(rows=rows, mode=mode))
        (folder / "checkpoint").mkdir()
        self.store = CheckpointStore.open(folder / "checkpoint")

    def feed(self, *values: str) -> None:
        rows = [(f"k{len(value) % 3}", value) for value in values]
        produce(self.broker.bootstrap_servers, f"{self.name}-in", rows)
        self.sent += rows

    def delivered(self) -> Counter[Any]:
        """Rows, or how many each key has had, as readers know it."""
        rows = read_topic(self.broker.bootstrap_servers, f"{self.name}-out")
        return Counter({k: int(n) for k, n in rows}) if self.counts else Counter(rows)

    def expected(self) -> Counter[Any]:
        return Counter(key for key, _ in self.sent) if self.counts else Counter(self.sent)

    def driver(self) -> tuple[str, str]:
        beat = read_heartbeat(self.store)
        us = beat.started_by if beat is not None else None
        return ("", "") if us is None else (us.run_id, us.task_id)

    @contextmanager
    def fed(self) -> Iterator[None]:
        def feed(ended: threading.Event) -> None:
            number = 0
            while not ended.wait(0.5):
                self.feed(*(f"r{number + i}" for i in range(5)))
                number += 5

        with beside(feed):
            yield


class Upgrades:
    """A person who brings versions in."""

    def __init__(self, airflow: PrivateAirflow, pipeline: Upgraded) -> None:
        self.api, self.pipeline, self.person = airflow.api, pipeline, Person(airflow)

    def begin(self, version: str, former: str, watched: int = 2) -> DagRun:
        folder = self.pipeline.folder
        body = {
            "logical_date": None,
            "dag_run_id": version,
            "conf": {
                "application": f"{folder}/{version}.py",
                "former_application": f"{folder}/{former}.py",
                "batches": 3,
                "watched_batches": watched,
            },
        }
        path = "/api/v2/dags/orders_upgrade/dagRuns"
        self.person._client.post(path, json=body).raise_for_status()
        return DagRun("orders_upgrade", version, "queued")

    def answers(self, run: DagRun, option: str) -> None:
        def is_asked() -> bool:
            at = self.api.tasks(run)
            failed = [task for task, state in at.items() if state == "failed"]
            assert not failed, f"{failed} failed: {self.logs(*failed)}"
            return self.person.is_asked(run)

        wait_until(is_asked, timeout=PATIENCE_S, every=2, what="to be asked")
        self.person.answers(run, option)

    def logs(self, *tasks: str) -> str:
        """What these said last."""
        files = [
            f for task in tasks for f in self.pipeline.folder.glob(f"airflow/logs/**/*{task}*/*")
        ]
        return "\n".join(file.read_text()[-3000:] for file in files if file.is_file())

    def until(self, run: DagRun, **states: str) -> None:
        """Until these tasks are so."""

        def found() -> dict[str, str]:
            return self.api.tasks(run)

        def reached() -> bool:
            at = found()
            ended = {task for task in states if at[task] in {"failed", "upstream_failed"}}
            wrong = [task for task in ended if states[task] != at[task]]
            assert not wrong, f"{at} {self.logs(*wrong)}"
            return all(at[task] == state for task, state in states.items())

        wait_until(reached, timeout=PATIENCE_S, every=1, what=f"{run.run_id}: {states}, {found()}")


@pytest.fixture(params=[False, True], ids=["stateless", "stateful"])
def pipeline(
    kafka_broker: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest
) -> Upgraded:
    return Upgraded(kafka_broker, tmp_path, counts=request.param)


@pytest.fixture
def upgrades(pipeline: Upgraded) -> Iterator[Upgrades]:
    folder = pipeline.folder
    (folder / "dags").mkdir()
    told: dict[str, Any] = {
        "folder": folder,
        "name": pipeline.name,
        "jars": ",".join(map(str, spark_jars())),
        "opts": spark_submit_opts(),
    }
    (folder / "dags" / "orders.py").write_text(DAGS.format(**told))
    kafka = {"bootstrap.servers": pipeline.broker.bootstrap_servers}
    with PrivateAirflow(folder / "airflow", folder / "dags", parallelism=8) as airflow:
        airflow.start(
            connections={
                "kafka_default": {"conn_type": "kafka", "extra": kafka},
                "spark_default": {"conn_type": "spark", "host": "local[2]"},
            },
            settings={},
        )
        airflow.wait_until_ready({"orders", "orders_upgrade"})
        yield Upgrades(airflow, pipeline)


def test_one_version_is_rejected_one_is_brought_in_and_one_that_fails_is_undone(
    pipeline: Upgraded, upgrades: Upgrades
) -> None:
    store, api = pipeline.store, upgrades.api

    def delivered(count: int, what: str) -> None:
        wait_until(
            lambda: pipeline.delivered().total() >= count, timeout=PATIENCE_S, every=1, what=what
        )

    with pipeline.fed():
        home = api.trigger("orders")
        delivered(20, "the first rows")

        # Other rows, which a person does not want, or state of another form, which it cannot go
        # on from: nobody is put to the question. The one that runs goes on, in its term.
        rejected = upgrades.begin("other-rows", former="first")
        if pipeline.counts:
            upgrades.until(rejected, who_approves="failed", new="upstream_failed", former="skipped")
        else:
            upgrades.answers(rejected, KEEP)
            upgrades.until(rejected, undo="success", new="skipped", former="skipped")
        assert (newest_term(store), pipeline.driver()[1]) == (1, "run")

        # The same rows: nobody is asked, and the driver hands over.
        good = upgrades.begin("good", former="first")
        upgrades.until(good, watched="success", ask="skipped", former="skipped")
        assert (newest_term(store), pipeline.driver()) == (2, ("good", "new"))
        wait_until(lambda: api.tasks(home)["run"] == "success", timeout=PATIENCE_S, what="its end")

        # The same rows as long as nobody feeds what it fails of: then the former one goes on.
        fails = upgrades.begin("fails-later", former="good", watched=10_000)
        upgrades.until(fails, hand_over="success")
        before = pipeline.delivered().total()
        pipeline.feed("poison")
        upgrades.until(fails, new="failed", hand_back="success")
        assert (newest_term(store), pipeline.driver()) == (4, ("fails-later", "former"))
        delivered(before + 20, "rows after it went back")
    delivered(len(pipeline.sent), "all rows")
    drain_newest(store, requested_by="a test", reason="the end")
    upgrades.until(fails, former="success")
    assert pipeline.delivered() == pipeline.expected(), "each once, and none that was not approved"

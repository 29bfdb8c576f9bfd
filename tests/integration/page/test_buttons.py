"""Every button pressed in a real browser: a real Airflow acts, and a real broker tells the effect.

The driver is killed where transactions hang that were never promised, and then where some were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from playwright.sync_api import Browser, Page, expect

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat
from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.sinks.source import tuned_spark_conf
from demo.airflow import PrivateAirflow
from tests.integration.page.conftest import picture
from tests.support.browser import page_in, serious_findings
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import Pipeline, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[3]
APP = ROOT / "airflow_eos" / "factory" / "drilled.py"  # rows as they are
PATIENCE_S = 300
ROWS = 1200
A_BATCH = 200
AS_IT_IS = 90_000  # ms: a look, an Airflow task and a heartbeat that must grow old first

DAGS = """
from airflow.sdk import DAG
from airflow_eos.operators import RecoverTransactionsOperator, SparkStreamingOperator

with DAG("clicks", schedule=None, max_active_runs=1):
    SparkStreamingOperator(
        task_id="run", application={application!r}, checkpoint_location={checkpoint!r}, **{run!r}
    )
with DAG("clicks_recovery", schedule=None, max_active_runs=1):
    RecoverTransactionsOperator(task_id="execute", checkpoint_location={checkpoint!r})
"""


@dataclass(frozen=True)
class Clicks:
    """A pipeline whose every driver is started by Airflow."""

    pipeline: Pipeline
    store: CheckpointStore

    def run(self) -> dict[str, object]:
        """What its task is told beside its application and its checkpoint."""
        name = self.pipeline.name
        return {
            "application_args": [
                *("--input-topic", f"{name}-in", "--output-topic", f"{name}-out"),
                *("--max-offsets-per-trigger", str(A_BATCH)),
            ],
            "transactional_id_prefix": name,
            "jars": ",".join(str(jar) for jar in spark_jars()),
            "conf": {
                **tuned_spark_conf(),
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
            },
            "env_vars": {
                "EOS_FAILPOINTS": "prepared=kill@2,decided=kill@2",
                "EOS_FAILPOINTS_DIR": str(self.pipeline.folder),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": spark_submit_opts(),
            },
            "max_restarts": 0,  # the task would bring the app back, and no button were needed
        }

    def was_killed(self, place: str) -> bool:
        return (self.pipeline.folder / f"{place}.hit").exists()

    def hidden(self) -> int:
        """What no read_committed reader gets to: the topic's end less its last stable offset."""
        admin = AdminClient({"bootstrap.servers": self.pipeline.bootstrap})
        topic = f"{self.pipeline.name}-out"
        of = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(4)}
        ends = []
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
            found = admin.list_offsets(of, isolation_level=level)
            ends.append(sum(int(each.result().offset) for each in found.values()))
        return ends[0] - ends[1]


@pytest.fixture
def clicks(kafka_broker: EmbeddedKafka, tmp_path: Path) -> Clicks:
    pipeline = Pipeline(kafka_broker, tmp_path / "clicks")
    Path(pipeline.checkpoint).mkdir(parents=True)
    pipeline.feed(ROWS)
    return Clicks(pipeline, CheckpointStore.open(pipeline.checkpoint))


@pytest.fixture
def airflow(clicks: Clicks, tmp_path: Path) -> Iterator[PrivateAirflow]:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "clicks.py").write_text(
        DAGS.format(application=str(APP), checkpoint=clicks.pipeline.checkpoint, run=clicks.run())
    )
    kafka = {"bootstrap.servers": clicks.pipeline.bootstrap}
    with PrivateAirflow(tmp_path / "airflow", dags) as running:
        running.start(
            connections={
                "kafka_default": {"conn_type": "kafka", "extra": kafka},
                "spark_default": {"conn_type": "spark", "host": "local[2]"},
            },
            settings={},
            environment={"PYTHONPATH": str(ROOT)},
        )
        running.wait_until_ready({"clicks", "clicks_recovery"})
        yield running


def press(page: Page, name: str, *, says: str, shown: str | None = None) -> None:
    """Press it, and confirm what the dialog says; of which a picture may be ``shown``."""
    button = page.locator(".part-actions").get_by_role("button", name=name)
    expect(button).not_to_have_attribute("aria-disabled", "true", timeout=AS_IT_IS)
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(says)
    assert serious_findings(page) == []
    if shown:
        picture(page, shown)
    dialog.get_by_role("button", name=name).click()
    expect(dialog).to_have_count(0)


def planned(page: Page, action: str) -> int:
    """How many rows the plan on the page tells of, once it has this action and no other."""
    lines = page.get_by_role("region", name="Recovery plan").locator("tbody tr")

    def cells(column: int) -> list[str]:
        return [line.locator("td").nth(column).inner_text() for line in lines.all()]

    wait_until(lambda: set(cells(0)) == {action}, timeout=300, every=0.5, what=f"a plan: {action}")
    rows = (each.replace(",", "") for each in cells(4))
    return sum(int(each) for each in rows if each.isdigit())


def ended(airflow: PrivateAirflow, dag_id: str, count: int) -> list[str]:
    """How the runs of a DAG ended, once so many have."""

    def states() -> list[str]:
        return [run.state for run in airflow.api.runs(dag_id) if run.ended]

    wait_until(lambda: len(states()) >= count, timeout=PATIENCE_S, every=1, what=f"{dag_id} to end")
    return states()


def test_recover_ends_what_dangles_as_planned_and_resume_brings_the_app_back(
    browser: Browser, clicks: Clicks, airflow: PrivateAirflow
) -> None:
    pipeline = clicks.pipeline
    token = httpx.get(f"{airflow.url}/auth/token", timeout=60).json()["access_token"]
    killed = partial(wait_until, timeout=PATIENCE_S, every=0.5)
    with page_in(browser) as page:
        page.context.add_cookies([{"name": "_token", "value": token, "url": airflow.url}])
        page.goto(f"{airflow.url}/eos/")
        page.get_by_role("link", name="clicks").click()
        state = page.locator(".part-head .pill")
        expect(state).to_have_text("new", timeout=AS_IT_IS)

        # The first start, too, is a press of Resume. It dies where nothing was promised yet.
        press(page, "Resume", says="A run of the DAG clicks starts")
        killed(lambda: clicks.was_killed("prepared"), what="the first driver to die")
        assert ended(airflow, "clicks", 1) == ["failed"]
        before = pipeline.visible()
        assert before, "the batch before is settled"
        assert pipeline.open_transactions()
        assert clicks.hidden() > 0
        expect(state).to_have_text("silent", timeout=AS_IT_IS)
        planned(page, "ABORT")
        press(page, "Recover", says="What was never promised is aborted")
        assert ended(airflow, "clicks_recovery", 1) == ["success"]
        assert pipeline.open_transactions() == ()
        assert pipeline.visible() == before, "what was not promised is not shown"
        assert clicks.hidden() == 0, "and stands in no reader's way"
        nothing = re.compile("nothing to recover|Nothing to do")
        expect(page.locator(".part-recovery")).to_contain_text(nothing, timeout=AS_IT_IS)

        # The second dies where a whole batch is promised, and not one of its rows can be read.
        press(page, "Resume", shown="resume", says="in the place of the last driver")
        killed(lambda: clicks.was_killed("decided"), what="the second driver to die")
        assert ended(airflow, "clicks", 2) == ["failed", "failed"]
        seen = pipeline.visible()
        assert len(seen) > len(before)
        assert clicks.hidden() > 0
        expect(state).to_have_text("silent", timeout=AS_IT_IS)
        promised = planned(page, "COMMIT")
        assert promised > 0
        press(page, "Recover", shown="recover", says=f"{promised} rows that were promised")
        assert ended(airflow, "clicks_recovery", 2) == ["success", "success"]
        assert len(pipeline.visible()) == len(seen) + promised, "readers have them already"
        assert pipeline.open_transactions() == ()
        assert clicks.hidden() == 0

        # The third lives: it reads all that is left, and what comes after.
        press(page, "Resume", says="in the place of the last driver")
        killed(lambda: len(pipeline.visible()) == ROWS, what="the third driver to read the rest")
        pipeline.feed(100)
        killed(lambda: len(pipeline.visible()) == ROWS + 100, what="rows that came later")
        pipeline.assert_exactly_once()
        expect(state).to_have_text("running", timeout=AS_IT_IS)
        assert [run.state for run in airflow.api.runs("clicks")][2:] == ["running"]

        press(page, "Drain", says="no row is lost")
        assert ended(airflow, "clicks", 3) == ["failed", "failed", "success"]
        heartbeat = read_heartbeat(clicks.store)
        assert heartbeat is not None
        assert (heartbeat.phase, heartbeat.drained_by) == ("stopped", "page Anonymous")
        expect(state).to_have_text("stopped", timeout=AS_IT_IS)
        pipeline.assert_exactly_once()

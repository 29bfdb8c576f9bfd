"""Settings of a pipeline that are templates, in the tasks that Airflow does not render them for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import BaseOperator

from airflow_eos.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.factory import Pipeline
from airflow_eos.factory import settings as rendering
from airflow_eos.factory import watchdog as replacing
from airflow_eos.factory.settings import rendered
from tests.unit.factory.test_settings import LEAST
from tests.unit.supervision.lives import beat


@pytest.fixture
def variables(monkeypatch) -> dict[str, Any]:
    """What a task's templates find under ``var.value``."""
    with DAG("d", schedule=None):
        task = BaseOperator(task_id="t")
    found: dict[str, Any] = {}
    context = {"task": task, "var": {"value": found}}
    monkeypatch.setattr(rendering, "get_current_context", lambda: context)
    return found


def test_a_template_is_rendered_where_its_task_runs(variables):
    variables.update(lake="/mnt/lake", kafka="kafka_eu", topic="clicks.eu")
    given = Pipeline(
        **LEAST
        | {
            "checkpoint": "{{ var.value.lake }}/clicks",
            "prefix": "clicks-{{ var.value.topic }}",
            "kafka_config_id": "{{ var.value.kafka }}",
            "input_topic": "{{ var.value.topic }}",
        }
    )
    here = rendered(given)
    assert here.checkpoint == "/mnt/lake/clicks"
    assert (here.kafka_config_id, here.input_topic) == ("kafka_eu", "clicks.eu")
    assert here.prefix == "clicks-clicks.eu"
    assert here.application_args == [
        *("--input-topic", "clicks.eu", "--output-topic", "clicks.clean"),
        *("--trigger", "{{ params.trigger }}"),
    ]


def test_the_watchdog_looks_at_the_checkpoint_that_the_template_names(variables, tmp_path):
    variables["lake"] = str(tmp_path)
    write_heartbeat(CheckpointStore.open(tmp_path / "ck"), beat("waiting", application_id="app-9"))
    pipeline = Pipeline(**LEAST | {"checkpoint": "{{ var.value.lake }}/ck"})
    assert replacing.last_heartbeat(pipeline).application_id == "app-9"


def test_without_a_template_no_context_is_asked_for(monkeypatch):
    def outside() -> SimpleNamespace:
        raise RuntimeError("no task runs")

    monkeypatch.setattr(rendering, "get_current_context", outside)
    plain = Pipeline(**LEAST)
    assert rendered(plain) is plain

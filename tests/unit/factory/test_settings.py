"""What an app is told by ``eos_pipeline``, and what recovery audits, follow from the settings."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.factory import Pipeline, eos_pipeline
from airflow_eos.sinks.app import argument_parser

ROOT = Path(__file__).parents[3]
LEAST: dict[str, Any] = {
    "dag_id": "clicks",
    "application": "a.py",
    "checkpoint": "/ck",
    "prefix": "p",
    "input_topic": "clicks",
    "output_topic": "clicks.clean",
}
GUIDES = ("howto/run.md", "testing.md")


def app_in(page: str) -> str:
    """The app that a guide shows."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (app,) = (str(block) for block in blocks if "argument_parser(" in block)
    return app


@pytest.mark.parametrize("page", GUIDES)
def test_the_app_of_a_guide_takes_what_eos_pipeline_gives_it(page):
    parser = argument_parser("", prefix="p")
    for name in re.findall(r'add_argument\("(--[\w-]+)"', app_in(page)):
        parser.add_argument(name)
    told = parser.parse_args([*Pipeline(**LEAST).application_args, "--checkpoint", "/ck"])
    assert (told.input_topic, told.output_topic) == ("clicks", "clicks.clean")


def test_an_app_is_given_a_topic_for_dead_letters_where_there_is_one():
    letters = Pipeline(**LEAST, dead_letter_topic="bad").application_args
    at = letters.index("--dead-letter-topic")
    assert letters[at + 1] == "bad"
    assert "--dead-letter-topic" not in Pipeline(**LEAST).application_args


def test_without_a_name_of_a_row_recovery_resumes_and_audits_nothing():
    """An audit that finds no name in any row fails, and would keep the pipeline down for ever."""
    _, recovery, _ = eos_pipeline(**LEAST)
    assert "audit" not in recovery.task_ids
    assert recovery.get_task("execute").downstream_task_ids == {"verdict"}
    assert recovery.get_task("verdict").downstream_task_ids == {"resume"}


def test_with_a_name_of_a_row_recovery_audits_by_it():
    _, recovery, _ = eos_pipeline(**LEAST, order_id="value.id")
    audit = recovery.get_task("audit")
    assert (audit.id_expression, audit.dead_letter_topic) == ("value.id", None)
    assert audit.downstream_task_ids == {"verdict"}


def test_before_the_start_it_looks_for_the_topics_that_there_are(monkeypatch):
    asked: list[str] = []

    def leaders(topic: str) -> dict[int, int]:
        asked.append(topic)
        return {0: 1}

    wire = nullcontext(SimpleNamespace(cluster=SimpleNamespace(leaders=leaders)))
    monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", lambda _: wire)
    monkeypatch.setattr("airflow_eos.hooks.kafka.KafkaSettingsHook.settings", lambda _: None)
    monkeypatch.setattr("airflow_eos.supervision.preflight.require_prefix_free", lambda *_: None)
    started = {"dag_run": SimpleNamespace(run_id="manual__1", conf={})}
    monkeypatch.setattr("airflow_eos.factory.watchdog.get_current_context", lambda: started)
    run, *_ = eos_pipeline(**LEAST)
    run.get_task("preflight").python_callable()
    assert asked == ["clicks", "clicks.clean"]


def test_the_page_of_settings_has_each_field_of_a_pipeline_with_its_default():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    table = page.partition("## `Pipeline`")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    expected = {each.name: told_default(each) for each in fields(Pipeline)}
    assert list(told.items()) == list(expected.items())


def told_default(field: Field[Any]) -> str:
    if field.name == "conf":
        return "`tuned_spark_conf()`"
    if field.default_factory is not MISSING:
        return f"`{field.default_factory()!r}`"
    return "required" if field.default is MISSING else f"`{field.default!r}`".replace("'", '"')

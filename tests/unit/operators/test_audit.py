"""AuditOperator: a violation is never green."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_eos.audit.audit import Unjudged
from airflow_eos.errors import AuditError
from airflow_eos.operators import AuditOperator
from airflow_eos.recovery import AuditReport

CLEAN = {
    "input_topics": ("in",),
    "output_topics": ("out",),
    "rows_in": 3,
    "rows_out": {"out": 3},
    "lost": 0,
    "duplicated": 0,
    "reordered": 0,
    "unexpected": 0,
    "visible_undecided": 0,
    "open_rows": 0,
    "open_partitions": (),
    "unidentified": 0,
    "matched": 3,
    "unjudged": (),
    "offenders": (),
    "seconds": 0.1,
}


@pytest.fixture
def audited(monkeypatch):
    """Run the operator on a given report; returns its result and what the core was asked."""

    def run(report, **arguments):
        asked: dict[str, Any] = {}

        def audit(kafka, *topics, **options):
            asked.update(options, kafka=kafka, topics=topics)
            return AuditReport(**{**CLEAN, **report})

        monkeypatch.setattr("airflow_eos.audit.audit.audit", audit)
        task = AuditOperator(task_id="audit", input_topic="in", output_topic="out", **arguments)
        return task.execute({}), asked

    return run


def test_a_clean_audit_is_green_and_returns_the_report(audited):
    report, asked = audited({}, id_expression="key", checkpoint_location="/ck")
    assert json.loads(json.dumps(report))["ok"] is True
    assert asked["topics"] == ("in", "out")
    assert asked["id_expression"] == "key"
    assert asked["checkpoint"] == "/ck"


@pytest.mark.parametrize(
    "violation",
    [
        {"lost": 1},
        {"duplicated": 1},
        {"reordered": 1},
        {"unexpected": 1},
        {"visible_undecided": 1},
        {"open_partitions": (("out", 0),), "open_rows": 1},
    ],
    ids=lambda violation: next(iter(violation)),
)
def test_a_violation_fails_the_task(audited, violation):
    with pytest.raises(AuditError):
        audited(violation)


def test_what_is_not_known_is_no_success(audited):
    unknown = {"unjudged": (Unjudged("in has lost its oldest rows", "audit earlier", 7),)}
    with pytest.raises(AuditError, match="not known: in has lost its oldest rows") as failed:
        audited(unknown)
    assert [each.change for each in failed.value.remedies] == ["audit earlier"]
    report, _ = audited(unknown, fail_on_violation=False)
    assert (report["verdict"], report["ok"]) == ("unknown", False)


def test_a_violation_is_only_reported_where_asked(audited):
    report, _ = audited({"lost": 2}, fail_on_violation=False)
    assert (report["ok"], report["lost"]) == (False, 2)

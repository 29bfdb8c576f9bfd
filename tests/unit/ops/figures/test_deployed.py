"""The dashboard, the alerts and the page speak of metrics that are emitted, and of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from airflow_eos.ops.figures import METRICS, Metric

ROOT = Path(__file__).parents[4]
TABLE = (ROOT / "docs/reference/metrics.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy/grafana/airflow-eos.json").read_text())
ALERTS = ROOT / "deploy/alerts"
EVERY_RULE = [
    rule
    for name in ("airflow-eos.yaml", "airflow-eos-expected.yaml")
    for group in yaml.safe_load((ALERTS / name).read_text())["groups"]
    for rule in group["rules"]
]
RULES = [rule for rule in EVERY_RULE if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for rule in EVERY_RULE if "record" in rule}
RULE_TESTS = yaml.safe_load((ALERTS / "airflow-eos.test.yaml").read_text())
QUERIES = [t["expr"] for panel in DASHBOARD["panels"] for t in panel.get("targets", [])]
UNITS = {"s": "_seconds", "By": "_bytes"}
KINDS = {"counter": "counter", "observed counter": "counter"}


def in_prometheus(metric: Metric) -> str:
    """By the rules of OpenTelemetry's compatibility with Prometheus."""
    name = metric.name.replace(".", "_")
    unit = UNITS.get(metric.unit, "")
    name += "" if name.endswith(unit) else unit
    return f"{name}_total" if metric.kind in KINDS else name


def series(metric: Metric) -> set[str]:
    name = in_prometheus(metric)
    if metric.kind == "histogram":
        return {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return {name}


def named(text: str) -> set[str]:
    """The metrics, also those that a recorded rule is made of."""
    made_of = " ".join(RECORDED[name] for name in re.findall(r"\beos:\w+", text))
    return set(re.findall(r"\beos_\w+", f"{text} {made_of}"))


def labels(query: str) -> set[str]:
    """What a query selects and groups by."""
    selected = {
        name
        for inside in re.findall(r"{([^}]*)}", query)
        for name in re.findall(r"(\w+)\s*=~?", inside)
    }
    grouped = {
        name.strip() for by in re.findall(r"by \(([^)]*)\)", query) for name in by.split(",")
    }
    return selected | grouped


EMITTED = {name: metric for metric in METRICS for name in series(metric)}


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_a_query_asks_only_for_what_is_emitted(query):
    assert named(query)
    assert named(query) <= EMITTED.keys()
    metrics = [EMITTED[name] for name in named(query)]
    known = {label for each in metrics for label in each.by} | {"checkpoint", "le"}
    assert labels(query) <= known


def test_every_metric_is_on_the_dashboard():
    assert {EMITTED[name].name for name in named(" ".join(QUERIES))} == {m.name for m in METRICS}


def test_the_panels_have_places_and_numbers_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def alerts_of(metric: Metric) -> list[str]:
    return [rule["alert"] for rule in RULES if named(rule["expr"]) & series(metric)]


def row(metric: Metric) -> str:
    cells = [
        f"`{metric.name}`",
        f"`{in_prometheus(metric)}`",
        f"`{metric.unit}`",
        KINDS.get(metric.kind, metric.kind),
        ", ".join(f"`{each}`" for each in metric.by),
        metric.meaning,
        ", ".join(alerts_of(metric)),
    ]
    return "| " + " | ".join(cells) + " |"


def alert_row(rule: dict[str, Any]) -> str:
    return f"| {rule['alert']} | `{rule['expr']}` | {rule['labels']['severity']} |"


def test_the_page_has_a_row_for_every_metric_and_no_other():
    found = [line for line in TABLE.splitlines() if line.startswith("| `eos.")]
    assert found == [row(metric) for metric in METRICS]


def test_the_page_has_a_row_for_every_alert_and_no_other():
    found = [line for line in TABLE.splitlines() if line.startswith("| Eos")]
    assert found == [alert_row(rule) for rule in RULES]


def test_every_alert_says_what_to_do_and_has_a_test_that_sets_it_off():
    set_off = set(re.findall(r'alertname="(\w+)"', json.dumps(RULE_TESTS).replace("\\", "")))
    assert set_off == {rule["alert"] for rule in RULES}
    assert all(rule["annotations"]["action"] for rule in RULES)


def test_the_tests_of_the_alerts_speak_of_what_is_emitted():
    [tests] = RULE_TESTS["tests"]
    for each in tests["input_series"]:
        (name,) = named(each["series"])
        assert labels(each["series"]) <= {*EMITTED[name].by, "checkpoint", "le"}

"""What the throughput benchmark says of its figures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.throughput_told import Figures, Found, result

ROOT = Path(__file__).parents[3]
BESIDE = "arrow-beside-flink"


def figures(per_second: float, cpu: float) -> Figures:
    return Figures(per_second, {"broker": cpu / 4, "Java": cpu / 4, "Python": cpu / 2})


FOUND: Found = {
    "pass": {
        "noop": [figures(900, 1.0), figures(900, 1.2), figures(900, 0.8)],
        "arrow": [figures(1000, 0.5), figures(3000, 0.6), figures(2000, 1.6)],
        "flink": [figures(1000, 1.5), figures(1000, 1.2), figures(1000, 1.6)],
    },
    "etl": {"arrow": [figures(10, 3)] * 3, "flink": [figures(5, 6)] * 3},
}


def test_ratios_are_medians_of_those_within_the_rounds_and_above_one_is_for_the_first():
    ratios = result(FOUND, {"rows": 12}).ratios

    assert ratios["arrow_over_flink"] == pytest.approx(2.0)
    assert ratios["cpu_arrow_over_flink"] == pytest.approx(2.0)  # of 3, 2 and 1
    assert ratios["cpu_arrow_over_noop"] == pytest.approx(2.0)  # of 2, 2 and 0.5
    assert "arrow_over_spark_sink" not in ratios


def test_what_was_asked_of_the_arrow_source_stands_beside_what_was_found():
    told = result(FOUND, {"rows": 12}).tables[-1].markdown()

    assert "| Flink ÷ ArrowKafkaSource, pass-through | 1.8 | 2.00 | 3.00, 2.00, 1.00 |" in told
    assert "| Flink ÷ ArrowKafkaSource, ETL with Polars | 1.4 | 2.00 |" in told
    assert "Spark's own sink" not in told


def test_the_arrow_sources_page_gets_them_beside_the_cpu_of_each_variant(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the group bench is not there")
    page = tmp_path / "page.md"
    begun = "".join(f"<!-- begin {n} -->\n<!-- end {n} -->\n" for n in ("throughput", BESIDE))
    page.write_text(f"Before\n{begun}After\n")
    monkeypatch.setattr(report, "DOCUMENTS", (page,))
    monkeypatch.setattr(report, "RESULTS", tmp_path)

    report.record(result(FOUND, {"rows": 12}), "the command", defaultdict(lambda: "?"), tmp_path)

    told = page.read_text().partition(f"<!-- begin {BESIDE} -->")[2]
    assert told.startswith("\n`the command`")
    assert "| ours, exactly once, ArrowKafkaSource | 0.60 | 0.15 | 0.15 | 0.30 | 2,000 |" in told
    assert "| Flink ÷ ArrowKafkaSource, ETL with Polars | 1.4 | 2.00 |" in told
    assert told.endswith("<!-- end arrow-beside-flink -->\nAfter\n")
    places = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert f"<!-- begin {BESIDE} -->" in places
    assert f"<!-- end {BESIDE} -->" in places


def test_without_the_arrow_source_nothing_is_said_of_it():
    found = {"pass": {name: FOUND["pass"][name] for name in ("noop", "flink")}}

    told = result(found, {"rows": 12})

    assert len(told.tables) == 1
    assert not told.excerpts

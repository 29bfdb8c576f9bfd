"""What the throughput benchmark says of its figures."""

from __future__ import annotations

import pytest

from benchmarks.throughput_told import Figures, Found, result

pytestmark = pytest.mark.unit


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


def test_without_the_arrow_source_nothing_is_said_of_it():
    found = {"pass": {name: FOUND["pass"][name] for name in ("noop", "flink")}}

    assert len(result(found, {"rows": 12}).tables) == 1

"""The result of ``benchmarks.machines``: the gain of a second machine, within each round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.plot import Chart
from benchmarks.report import Result, Table, median_ratio

LABELS = {
    "spark_sink": "Spark's own Kafka sink, at least once",
    "exactly_once": "ours, exactly once",
    "arrow": "ours, exactly once, ArrowKafkaSource",
}


@dataclass(frozen=True)
class Figures:
    """Rows a second, and the part of the periods in which the machines had used up their share."""

    per_second: float
    used_up: float


Found = dict[str, dict[int, list[Figures]]]
"""Variant → number of machines → the figures of each round."""


def result(found: Found, settings: Mapping[str, Any]) -> Result:
    """Make the result; ``settings`` has the ``cores_of_a_machine``."""
    one, two = next(iter(found.values()))
    speeds = {
        variant: {n: [each.per_second for each in figures] for n, figures in of_each.items()}
        for variant, of_each in found.items()
    }
    used_up = {
        variant: {n: [each.used_up for each in figures] for n, figures in of_each.items()}
        for variant, of_each in found.items()
    }
    gains = {
        variant: [b / a for a, b in zip(of_each[one], of_each[two], strict=True)]
        for variant, of_each in speeds.items()
    }
    ratios = {f"gain_{variant}": statistics.median(each) for variant, each in gains.items()}
    ratios |= {
        f"gain_{variant}_over_spark_sink": median_ratio(each, gains["spark_sink"])
        for variant, each in gains.items()
        if variant != "spark_sink" and "spark_sink" in gains
    }
    medians = {v: {n: statistics.median(s) for n, s in each.items()} for v, each in speeds.items()}
    title = (
        f"Copying a topic on machines of {settings['cores_of_a_machine']} of a core each, rows/s"
    )
    heads = ("variant", "one machine", "two machines", "gain", "gain of each round", "CPU used up")
    table = [
        (
            LABELS[variant],
            *(f"{medians[variant][n]:,.0f}" for n in (one, two)),
            f"{statistics.median(gains[variant]):.2f}",
            ", ".join(f"{gain:.2f}" for gain in gains[variant]),
            ", ".join(f"{statistics.median(used_up[variant][n]):.0%}" for n in (one, two)),
        )
        for variant in found
    ]
    return Result(
        name="machines",
        settings=settings,
        raw={"rows_per_second": speeds, "gains": gains, "used_up": used_up},
        ratios=ratios,
        charts=[
            Chart(
                title,
                "rows/s",
                {
                    LABELS[variant]: {"one machine": each[one], "two machines": each[two]}
                    for variant, each in medians.items()
                },
            )
        ],
        tables=[Table(title, heads, table)],
    )

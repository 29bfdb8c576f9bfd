"""The result of ``benchmarks.throughput``: ratios within each round, charts and tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from benchmarks.cpu import KINDS
from benchmarks.plot import Chart
from benchmarks.report import Result, Table

LABELS = {
    "noop": "Spark reading only (noop)",
    "spark_sink": "Spark's own Kafka sink, at least once",
    "exactly_once": "ours, exactly once",
    "arrow": "ours, exactly once, ArrowKafkaSource",
    "at_least_once": "ours, at least once",
    "librdkafka": "ours, exactly once, through librdkafka",
    "flink": "Flink's KafkaSink, exactly once",
    "flink_one": "Flink's KafkaSink, exactly once, one subtask",
}
_TITLES = {
    "pass": "Pass-through",
    "etl": "Orders ETL: parse JSON, filter, enrich, write JSON; on Spark with Polars on Arrow",
    "etl_sql": "Orders ETL, on Spark with its own JSON functions",
}
_RATIOS = {
    "exactly_once_over_spark_sink": ("pass", "exactly_once", "spark_sink"),
    "exactly_once_over_noop": ("pass", "exactly_once", "noop"),
    "exactly_once_over_flink": ("pass", "exactly_once", "flink"),
    "exactly_once_over_at_least_once": ("pass", "exactly_once", "at_least_once"),
    "arrow_over_spark_sink": ("pass", "arrow", "spark_sink"),
    "arrow_over_noop": ("pass", "arrow", "noop"),
    "arrow_over_flink": ("pass", "arrow", "flink"),
    "arrow_over_flink_one": ("pass", "arrow", "flink_one"),
    "arrow_over_exactly_once": ("pass", "arrow", "exactly_once"),
    "librdkafka_over_exactly_once": ("pass", "librdkafka", "exactly_once"),
    "at_least_once_over_spark_sink": ("pass", "at_least_once", "spark_sink"),
    "etl_exactly_once_over_spark_sink": ("etl", "exactly_once", "spark_sink"),
    "etl_exactly_once_over_noop": ("etl", "exactly_once", "noop"),
    "etl_exactly_once_over_flink": ("etl", "exactly_once", "flink"),
    "etl_arrow_over_spark_sink": ("etl", "arrow", "spark_sink"),
    "etl_arrow_over_noop": ("etl", "arrow", "noop"),
    "etl_arrow_over_flink": ("etl", "arrow", "flink"),
    "etl_arrow_over_flink_one": ("etl", "arrow", "flink_one"),
    "etl_arrow_over_exactly_once": ("etl", "arrow", "exactly_once"),
    "etl_sql_exactly_once_over_spark_sink": ("etl_sql", "exactly_once", "spark_sink"),
    "etl_sql_exactly_once_over_noop": ("etl_sql", "exactly_once", "noop"),
    "etl_sql_exactly_once_over_flink": ("etl_sql", "exactly_once", "flink"),
}
_WANTED = {
    "arrow_over_flink": ("Flink ÷ ArrowKafkaSource, pass-through", 1.8, 1.6),
    "etl_arrow_over_flink": ("Flink ÷ ArrowKafkaSource, ETL with Polars", 1.8, 1.3),
    "arrow_over_flink_one": ("Flink with one subtask ÷ ArrowKafkaSource, pass-through", 1.8, 1.6),
    "etl_arrow_over_flink_one": ("Flink with one subtask ÷ ArrowKafkaSource, ETL", 1.8, 1.3),
    "arrow_over_noop": ("Spark reading alone ÷ ArrowKafkaSource, pass-through", 1.0, 1.0),
    "arrow_over_spark_sink": ("Spark's own sink ÷ ArrowKafkaSource, pass-through", 3.0, 3.0),
}
"""Ratio → its title, and its goals by CPU a row and by rows a second (issues 19 and 53)."""
_ASKED = (
    "What was asked of ArrowKafkaSource: ratios of CPU a row, and of rows a second the other way"
)
_CPU = ("CPU µs a row", *KINDS)


@dataclass(frozen=True)
class Figures:
    """Rows read a second of wall clock, and CPU microseconds a row of each kind of process."""

    per_second: float
    cpu: Mapping[str, float]

    @property
    def per_cpu_second(self) -> float:
        """Rows read a second of CPU: broker, engine and client together."""
        return round(1e6 / self.cpu_a_row)

    @property
    def cpu_a_row(self) -> float:
        """CPU microseconds a row, of all processes together."""
        return sum(self.cpu.values())


Found = dict[str, dict[str, list[Figures]]]
"""Pipeline → variant → the figures of each round."""


def _ratios_of_rounds(figures: Found, figure: Callable[[Figures], float]) -> dict[str, list[float]]:
    """Return the ratios within each round, so that other load on the machine cancels out."""
    found = {}
    for name, (pipeline, *sides) in _RATIOS.items():
        if set(sides) <= figures.get(pipeline, {}).keys():
            above, below = (map(figure, figures[pipeline][side]) for side in sides)
            found[name] = [one / other for one, other in zip(above, below, strict=True)]
    return found


def _ratios(figures: Found, figure: Callable[[Figures], float]) -> dict[str, float]:
    rounds = _ratios_of_rounds(figures, figure)
    return {name: statistics.median(ratios) for name, ratios in rounds.items()}


def _raw(figures: Found, figure: Callable[[Figures], object]) -> dict[str, dict[str, list[object]]]:
    return {
        pipeline: {variant: [figure(each) for each in rounds] for variant, rounds in found.items()}
        for pipeline, found in figures.items()
    }


def result(figures: Found, settings: Mapping[str, Any]) -> Result:
    """Make the result; ``settings`` has the ``rows`` of a run."""
    count = settings["rows"]
    per_second = attrgetter("per_second")
    per_cpu = attrgetter("per_cpu_second")
    ratios = _ratios(figures, per_second)
    ratios |= {f"cpu_{name}": ratio for name, ratio in _ratios(figures, per_cpu).items()}
    asked = _wanted(figures, ratios)
    return Result(
        name="throughput",
        settings=settings,
        raw={
            "rows_per_second": _raw(figures, per_second),
            "rows_per_cpu_second": _raw(figures, per_cpu),
            "cpu_microseconds_per_row": _raw(figures, attrgetter("cpu")),
        },
        ratios=ratios,
        charts=[_chart(pipeline, found) for pipeline, found in figures.items()],
        tables=[*(_table(count, pipeline, found) for pipeline, found in figures.items()), *asked],
        excerpts={"arrow-beside-flink": [*_briefly(figures), *asked]} if asked else {},
    )


def _chart(pipeline: str, found: dict[str, list[Figures]]) -> Chart:
    bars = {
        LABELS[variant]: {"rows/s": statistics.median(each.per_second for each in rounds)}
        for variant, rounds in found.items()
    }
    return Chart(_TITLES[pipeline], "rows/s", bars)


def _table(count: int, pipeline: str, found: dict[str, list[Figures]]) -> Table:
    return Table(
        f"{_TITLES[pipeline]}, {count:,} rows, rows read a second, medians",
        ("variant", "rows/s", "rows a CPU second", *_CPU, "rows/s of each round"),
        [
            (
                LABELS[variant],
                f"{statistics.median(each.per_second for each in rounds):,.0f}",
                f"{statistics.median(each.per_cpu_second for each in rounds):,.0f}",
                f"{statistics.median(each.cpu_a_row for each in rounds):.2f}",
                *(f"{statistics.median(each.cpu[kind] for each in rounds):.2f}" for kind in KINDS),
                ", ".join(f"{each.per_second:,.0f}" for each in rounds),
            )
            for variant, rounds in found.items()
        ],
    )


def _briefly(figures: Found) -> Iterator[Table]:
    """Make tables of CPU a row for the Arrow source and the variants it is compared with."""
    heads = ("variant", "CPU µs a row", *KINDS, "rows/s")
    for pipeline, found in figures.items():
        if "arrow" in found:
            lines = [
                (
                    LABELS[variant],
                    f"{statistics.median(each.cpu_a_row for each in found[variant]):.2f}",
                    *(
                        f"{statistics.median(e.cpu[kind] for e in found[variant]):.2f}"
                        for kind in KINDS
                    ),
                    f"{statistics.median(each.per_second for each in found[variant]):,.0f}",
                )
                for variant in ("noop", "spark_sink", "exactly_once", "arrow", "flink", "flink_one")
                if variant in found
            ]
            yield Table(_TITLES[pipeline], heads, lines)


def _wanted(figures: Found, ratios: Mapping[str, float]) -> list[Table]:
    """Make a table of the Arrow source's goals and figures; none where it was not run."""
    by_cpu = _ratios_of_rounds(figures, attrgetter("per_cpu_second"))
    lines = [
        (
            text,
            f"{cpu:.1f}",
            f"{ratios[f'cpu_{name}']:.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in by_cpu[name]),
            f"{rows:.1f}",
            f"{ratios[name]:.2f}",
        )
        for name, (text, cpu, rows) in _WANTED.items()
        if name in ratios
    ]
    heads = ("ratio", "CPU, wanted", "found", "of each round", "rows/s, wanted", "found")
    return [Table(_ASKED, heads, lines)] if lines else []

"""The result of ``benchmarks.sinks``: ratios of time within each round, and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from benchmarks.cpu import DATABASE, KINDS
from benchmarks.plot import Chart
from benchmarks.report import Result, Table
from benchmarks.ways import WAYS

ALONE = ("kafka", "postgres", "files")
_KINDS = (*KINDS, DATABASE)


@dataclass(frozen=True)
class _Ratio:
    """The time of one way over that of another, or of the slowest of several, in the same round.

    Attributes:
        above: our way.
        below: the ways that ours is compared with.
        at_most: the goal for the ratio, where there is one.
    """

    above: str
    below: tuple[str, ...]
    at_most: float | None = None


_RATIOS = {
    "postgres_over_jdbc": _Ratio("postgres", ("jdbc",), 1.0),
    "postgres_over_jdbc_tuned": _Ratio("postgres", ("jdbc_tuned",), 1.0),
    "postgres_over_executemany": _Ratio("postgres", ("executemany",), 1.3),
    "postgres_over_psycopg_copy": _Ratio("postgres", ("psycopg_copy",), 1.3),
    "postgres_over_at_least_once": _Ratio("postgres", ("postgres_at_least_once",), 1.3),
    "postgres_staged_over_jdbc": _Ratio("postgres_staged", ("jdbc",)),
    "postgres_staged_over_jdbc_tuned": _Ratio("postgres_staged", ("jdbc_tuned",)),
    "postgres_staged_over_psycopg_copy": _Ratio("postgres_staged", ("psycopg_copy",)),
    "files_over_spark_files": _Ratio("files", ("spark_files",), 1.3),
    "delta_over_write_deltalake": _Ratio("delta", ("write_deltalake",), 1.3),
    "delta_over_spark_files": _Ratio("delta", ("spark_files",)),
    "several_over_slowest_alone": _Ratio("several", ALONE, 1.2),
}


@dataclass(frozen=True)
class Figures:
    """Microseconds a row of wall clock, and of CPU of each kind of process."""

    time: float
    of_kinds: Mapping[str, float]

    @property
    def cpu(self) -> float:
        """CPU microseconds a row, of all processes together."""
        return sum(self.of_kinds.values())

    @property
    def per_second(self) -> int:
        """Rows per second of wall clock."""
        return round(1e6 / self.time)


Found = dict[str, list[Figures]]
"""Way → the figures of each round."""


def _of_each_round(
    figures: Found, ratio: _Ratio, figure: Callable[[Figures], float]
) -> list[float]:
    """Return the ratio within each round, so that other load on the machine cancels out."""
    below = zip(*(map(figure, figures[way]) for way in ratio.below), strict=True)
    above = map(figure, figures[ratio.above])
    return [round(a / max(b), 3) for a, b in zip(above, below, strict=True)]


def _ratios(figures: Found, figure: Callable[[Figures], float]) -> dict[str, list[float]]:
    return {
        name: _of_each_round(figures, ratio, figure)
        for name, ratio in _RATIOS.items()
        if {ratio.above, *ratio.below} <= figures.keys()
    }


def _read_once(figures: Found) -> dict[str, list[float]]:
    """Return the CPU of several over that of each alone together, had these read the input once."""
    if not {"noop", "several", *ALONE} <= figures.keys():
        return {}
    rounds = zip(*(figures[way] for way in ("several", "noop", *ALONE)), strict=True)
    found = [
        round(several.cpu / (sum(each.cpu for each in alone) - (len(alone) - 1) * noop.cpu), 3)
        for several, noop, *alone in rounds
    ]
    return {"several_over_all_alone_that_read_once": found}


def result(settings: dict[str, Any], figures: Found) -> Result:
    """Make the result of all rounds, with tables for people and raw figures as JSON."""
    times, cpu = (_ratios(figures, attrgetter(each)) for each in ("time", "cpu"))
    cpu |= _read_once(figures)
    medians = {f"time_{name}": statistics.median(each) for name, each in times.items()}
    medians |= {f"cpu_{name}": statistics.median(each) for name, each in cpu.items()}
    bars = {WAYS[way].label: {"rows/s": _median(each)} for way, each in figures.items()}
    title = f"The same {settings['rows']:,} orders"
    return Result(
        name="sinks",
        settings=settings,
        raw={
            "microseconds_per_row": _raw(figures, attrgetter("time")),
            "cpu_microseconds_per_row": _raw(figures, attrgetter("cpu")),
            "cpu_microseconds_per_row_of_kinds": _raw(figures, attrgetter("of_kinds")),
            "time_ratios_of_each_round": times,
            "cpu_ratios_of_each_round": cpu,
        },
        ratios=medians,
        charts=[Chart(title, "rows/s", bars)],
        tables=[
            _table(title, figures),
            _ratio_table("Time", times, {name: each.at_most for name, each in _RATIOS.items()}),
            _ratio_table("CPU", cpu, {}),
        ],
    )


def _raw(figures: Found, figure: Callable[[Figures], Any]) -> dict[str, list[Any]]:
    return {way: [figure(each) for each in rounds] for way, rounds in figures.items()}


def _median(rounds: Iterable[Figures]) -> float:
    return statistics.median(each.per_second for each in rounds)


def _table(title: str, figures: Found) -> Table:
    return Table(
        f"{title}, medians",
        ("way", "rows/s", "CPU µs a row", *_KINDS, "rows/s of each round"),
        [
            (
                WAYS[way].label,
                f"{_median(rounds):,.0f}",
                f"{statistics.median(each.cpu for each in rounds):.2f}",
                *(f"{statistics.median(each.of_kinds[k] for each in rounds):.2f}" for k in _KINDS),
                ", ".join(f"{each.per_second:,}" for each in rounds),
            )
            for way, rounds in figures.items()
        ],
    )


def _ratio_table(
    what: str, ratios: dict[str, list[float]], wanted: Mapping[str, float | None]
) -> Table:
    return Table(
        f"{what} of one way over that of another, within a round",
        ("ratio", "median", "lowest", "highest", "wanted"),
        [
            (
                name,
                *(f"{of(each):.2f}" for of in (statistics.median, min, max)),
                f"at most {most:.1f}" if (most := wanted.get(name)) else "",
            )
            for name, each in ratios.items()
        ],
    )

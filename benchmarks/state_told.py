"""The result of ``benchmarks.state``, as tables, ratios and plots."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.plot import Chart
from benchmarks.report import Result, Table

LABELS = {
    "rocksdb": "ours, RocksDB with changelog checkpoints",
    "default": "ours, Spark's default store",
    "flink": "Flink, RocksDB with incremental checkpoints",
}
_OWN = {
    "triggerExecution": "the batch, by Spark",
    "end_to_end_duration": "the checkpoint, by Flink",
}
_MB = 1e6


@dataclass(frozen=True)
class Found:
    """One way's figures, with ms and bytes of each burst that counts."""

    filled_s: float
    ms: Sequence[float]
    written: Sequence[int]
    size: int
    memory: int
    told: Sequence[Mapping[str, Any]]

    @property
    def p50_ms(self) -> float:
        """The median time of a burst until readers have it, in ms."""
        return statistics.median(self.ms)

    @property
    def p90_ms(self) -> float:
        """The ninth decile of the time of a burst, in ms."""
        return statistics.quantiles(self.ms, n=10)[-1]

    @property
    def a_burst(self) -> float:
        """The mean bytes written in a burst, including a share of the background's writes."""
        return statistics.mean(self.written)

    @property
    def own_ms(self) -> tuple[str, float]:
        """The name and the median of the time that the program itself measured."""
        name = next(name for name in _OWN if name in self.told[0])
        return _OWN[name], statistics.median(each[name] for each in self.told)


def result(
    found: Mapping[str, Found], killed: Mapping[str, float], settings: Mapping[str, Any]
) -> Result:
    """Make the result with tables, ratios and plot."""
    keys = settings["keys"]
    title = f"{keys:,} keys, bursts of {settings['keys_a_burst']:,}"
    heads = ("way", "until readers have a burst, p50, ms", "p90, ms", "its own clock, p50, ms")
    times = [
        (LABELS[way], f"{it.p50_ms:.0f}", f"{it.p90_ms:.0f}", f"{it.own_ms[1]:.0f}: {it.own_ms[0]}")
        for way, it in found.items()
    ]
    sizes = [
        (
            LABELS[way],
            f"{it.a_burst / _MB:.2f}",
            f"{statistics.median(it.written) / _MB:.2f}",
            f"{max(it.written) / _MB:.1f}",
            f"{it.size / _MB:.0f}",
            f"{it.memory / 2**30:.1f}",
            f"{it.filled_s:.0f}",
        )
        for way, it in found.items()
    ]
    size_heads = (
        "way",
        "written to the checkpoint a burst, mean, MB",
        "median",
        "most",
        "whole checkpoint in the end, MB",
        "memory of the JVM at most, GiB",
        "all keys in, s",
    )
    charts = [
        Chart(title, "ms until readers have a burst", {
            LABELS[way]: {"p50": it.p50_ms, "p90": it.p90_ms} for way, it in found.items()
        }),
        Chart("written to the checkpoint a burst, mean", "MB", {
            LABELS[way]: {"": it.a_burst / _MB} for way, it in found.items()
        }),
    ]  # fmt: skip
    return Result(
        name="state",
        settings=settings,
        raw={"ways": {way: asdict(it) for way, it in found.items()}, "killed": dict(killed)},
        ratios=_ratios(found),
        charts=charts,
        tables=[Table(title, heads, times), Table("Checkpoint and memory", size_heads, sizes)],
    )


def _ratios(found: Mapping[str, Found]) -> dict[str, float]:
    ours = found.get("rocksdb")
    ratios: dict[str, float] = {}
    for other in ("default", "flink"):
        if ours is None or (theirs := found.get(other)) is None:
            continue
        ratios |= {
            f"state_p50_rocksdb_over_{other}": ours.p50_ms / theirs.p50_ms,
            f"state_p90_rocksdb_over_{other}": ours.p90_ms / theirs.p90_ms,
            f"state_written_rocksdb_over_{other}": ours.a_burst / theirs.a_burst,
            f"state_size_rocksdb_over_{other}": ours.size / theirs.size,
            f"state_memory_rocksdb_over_{other}": ours.memory / theirs.memory,
        }
    return ratios

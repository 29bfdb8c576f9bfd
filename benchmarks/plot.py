"""Draws bar charts, one below the other, as one SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_COLOURS = ("#356da8", "#e07b39", "#4f9d69", "#8c5fa8", "#b8b03f")


@dataclass(frozen=True)
class Chart:
    """Horizontal bars: for each label one value, or several named ones."""

    title: str
    unit: str
    bars: Mapping[str, Mapping[str, float]]
    """Label → name of the series → value."""
    logarithmic: bool = False


def draw(charts: Sequence[Chart], target: Path) -> None:
    """Draw the charts one below the other."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "benchmarks", "font.size": 9})
    heights = [0.8 + 0.35 * sum(len(series) for series in chart.bars.values()) for chart in charts]
    figure, axes = plt.subplots(
        len(charts),
        1,
        figsize=(8, sum(heights) + 0.5),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axis, chart in zip(axes[:, 0], charts, strict=True):
        _bars(axis, chart)
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def _bars(axis, chart: Chart) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    names = list(dict.fromkeys(name for series in chart.bars.values() for name in series))
    height = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        labels = [at for at, series in enumerate(chart.bars.values()) if name in series]
        values = [series[name] for series in chart.bars.values() if name in series]
        drawn = axis.barh(
            [at + (place - (len(names) - 1) / 2) * height for at in labels],
            values,
            height,
            label=name,
            color=_COLOURS[place % len(_COLOURS)],
        )
        axis.bar_label(drawn, fmt="%.3g", padding=3)
    axis.set_yticks(range(len(chart.bars)), list(chart.bars))
    axis.invert_yaxis()
    axis.margins(x=0.12)
    if chart.logarithmic:
        axis.set_xscale("log")
    axis.set_title(chart.title, loc="left")
    axis.set_xlabel(chart.unit)
    axis.spines[["top", "right"]].set_visible(False)
    if len(names) > 1:
        axis.legend(frameon=False)

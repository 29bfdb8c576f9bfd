"""Writes the result of a benchmark as JSON, as a plot and as a table in a page."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.plot import Chart, draw

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOCUMENTS = (ROOT / "benchmarks" / "RESULTS.md",)
"""Documents of which one has the section of each benchmark."""


@dataclass(frozen=True)
class Table:
    """A table for people: a title, the heads of its columns, and rows of text."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as GitHub's Markdown."""
        lines = [f"**{self.title}**", "", _line(self.heads), _line(["---"] * len(self.heads))]
        return "\n".join([*lines, *(_line(row) for row in self.rows)])


@dataclass(frozen=True)
class Result:
    """One benchmark's figures. The keys of ``ratios`` never change; a missing ratio was not run."""

    name: str
    settings: Mapping[str, Any]
    raw: Mapping[str, Any]
    ratios: Mapping[str, float]
    charts: Sequence[Chart]
    tables: Sequence[Table] = field(default_factory=tuple)
    excerpts: Mapping[str, Sequence[Table]] = field(default_factory=dict)
    """Tables that are also in another section, by the section's name."""


def record(result: Result, command: str, found: Mapping[str, str], folder: Path) -> None:
    """Write the JSON and the plot; the document too if ``folder`` is the project's own.

    ``found`` is the environment as it was before the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ratios = {name: round(value, 3) for name, value in result.ratios.items()}
    content = {
        "benchmark": result.name,
        "command": command,
        "environment": found,
        "settings": result.settings,
        "ratios": ratios,
        "raw": result.raw,
    }
    target = folder / f"{result.name}.json"
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draw(result.charts, folder / f"{result.name}.svg")
    section = _section(result, ratios, command, found)
    print(section)
    if folder == RESULTS:
        _replace(result.name, section)
        for name, tables in result.excerpts.items():
            parts = [_machine(command, found), *(table.markdown() for table in tables)]
            _replace(name, "\n\n".join(parts))


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios within each round, so that other load cancels out."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _section(
    result: Result, ratios: Mapping[str, float], command: str, found: Mapping[str, str]
) -> str:
    ratio_table = Table("Ratios", ("ratio", "value"), [(k, f"{v:.2f}") for k, v in ratios.items()])
    plot = f"![{result.name}](../benchmarks/results/{result.name}.svg)"
    tables = [table.markdown() for table in result.tables]
    return "\n\n".join([_machine(command, found), *tables, ratio_table.markdown(), plot])


def _machine(command: str, found: Mapping[str, str]) -> str:
    return (
        f"`{command}`, {found['date']}, commit {found['commit']}, {found['cores']} cores "
        f"({found['processor']}), {found['memory']}, Kafka {found['kafka']}, "
        f"Spark {found['pyspark']}, Java {found['java']}, Python {found['python']}. "
        f"Meanwhile other programs used {found['others used']}."
    )


def _replace(name: str, section: str) -> None:
    start, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        if pattern.search(text):
            new = pattern.sub(lambda _: f"{start}\n{section}\n{end}", text)
            document.write_text(new, encoding="utf-8")
            return
    names = " or ".join(document.name for document in DOCUMENTS)
    raise SystemExit(f"{names} lacks the lines {start} and {end}: add them")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

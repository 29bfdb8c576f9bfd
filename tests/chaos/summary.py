"""What a run of many histories found: ``build/chaos.json`` and a table."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tests.chaos.play import MARKS, Played, Wedged
from tests.support.history.read import PROPERTIES


class Summary:
    """Takes results one by one."""

    def __init__(self, seed: int, engine: str, console: Console) -> None:
        self._seed = seed
        self._engine = engine
        self._console = console
        self._began = time.monotonic()
        self._played: list[Played] = []
        self.broken: list[str] = []
        self.violated = 0
        self.wedged: list[int] = []

    def add(self, result: Played | Wedged | str) -> None:
        if isinstance(result, Wedged):
            self.wedged.append(result.seed)
            return
        if isinstance(result, str):
            self.broken.append(result)
            self._console.print(f"[red]the harness broke[/] {result}", highlight=False)
            return
        self._played.append(result)
        if result.violations:
            self.violated += 1
            self._console.rule(f"seed {result.scenario.seed}: {result.file}")
            for violation in result.violations:
                self._console.print(str(violation), highlight=False, markup=False, soft_wrap=True)

    def by_fault(self) -> dict[str, dict[str, Any]]:
        count: Counter[str] = Counter()
        violated: Counter[str] = Counter()
        times: dict[str, list[int]] = defaultdict(list)
        for played in self._played:
            for fault in {incident.fault for incident in played.scenario.incidents}:
                violated[fault] += bool(played.violations)
            count.update(incident.fault for incident in played.scenario.incidents)
            for recovered in played.recovered:
                times[recovered.fault].append(recovered.total_ms)
        return {
            fault: {
                "count": count[fault],
                "histories_violated": violated[fault],
                "recovery_ms": {
                    "count": len(times[fault]),
                    "p50": percentile(times[fault], 50),
                    "p90": percentile(times[fault], 90),
                },
            }
            for fault in sorted(count)
        }

    def recovery(self) -> dict[str, Any]:
        """Where nothing was left alone on purpose: p50 and p90 of the whole and of its parts."""
        times = [
            recovered
            for played in self._played
            for recovered in played.recovered
            if recovered.fault.startswith(("kill driver", "SIGKILL"))
        ]
        parts = {part: [each.parts[part] for each in times if part in each.parts] for part in MARKS}
        parts["together"] = [each.total_ms for each in times]
        return {
            part: {"count": len(took), "p50": percentile(took, 50), "p90": percentile(took, 90)}
            for part, took in parts.items()
            if took
        }

    def write(self, file: Path) -> None:
        violations = Counter(v.number for played in self._played for v in played.violations)
        report = {
            "seed": self._seed,
            "engine": self._engine,
            "seconds": round(time.monotonic() - self._began, 1),
            "histories": len(self._played),
            "rows": sum(played.rows for played in self._played),
            "incidents": sum(len(played.scenario.incidents) for played in self._played),
            "reached": sum(played.reached for played in self._played),
            "violated": self.violated,
            "violations": {f"{n} {what}": violations[n] for n, what in PROPERTIES.items()},
            "broken": self.broken,
            "wedged": self.wedged,
            "seconds_a_history": {
                "p50": percentile([played.seconds for played in self._played], 50),
                "p90": percentile([played.seconds for played in self._played], 90),
            },
            "recovery_ms": self.recovery(),
            "faults": self.by_fault(),
            "violated_histories": [
                {
                    "scenario": msgspec.to_builtins(played.scenario),
                    "violations": [str(violation) for violation in played.violations],
                }
                for played in self._played
                if played.violations
            ],
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1))

    def show(self) -> None:
        table = Table("fault", "count", "violated", "recovery p50 ms", "p90 ms")
        for fault, told in self.by_fault().items():
            times = told["recovery_ms"]
            figures = (told["count"], told["histories_violated"], times["p50"], times["p90"])
            table.add_row(fault, *("" if each is None else f"{each:.0f}" for each in figures))
        self._console.print(table)
        self._show_recovery()
        incidents = sum(len(played.scenario.incidents) for played in self._played)
        self._console.print(
            f"{len(self._played)} histories, {incidents} incidents, {self.violated} violated, "
            f"{len(self.broken)} broken, {len(self.wedged)} refused as beyond mending, "
            f"seed {self._seed}"
        )

    def _show_recovery(self) -> None:
        table = Table("after SIGKILL of the driver, ms for", "times", "p50", "p90")
        for part, told in self.recovery().items():
            figures = (told["count"], told["p50"], told["p90"])
            table.add_row(MARKS.get(part, part), *(f"{each:.0f}" for each in figures))
        self._console.print(table)


def percentile(values: Sequence[float], part: int) -> float | None:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * part // 100)] if ranked else None

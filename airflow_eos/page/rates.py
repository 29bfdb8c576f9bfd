"""Rows a second of batches; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.page.batches import PlannedBatch

SPAN_MS = 60_000
"""A mean speaks of no more than the last minute, or of the newest batch where that is longer."""


def rates(batches: Sequence[PlannedBatch]) -> tuple[float, ...]:
    """Rows/s of each complete batch, until the next one was planned: pauses count.

    The newest counts until it was committed. Batches whose rows are not known are left out.
    """
    found = []
    for each, end_ms in _spans(batches):
        found.append(round((each.rows or 0) * 1000 / max(1, end_ms - each.planned_at_ms), 1))
    return tuple(found)


def mean_rate(batches: Sequence[PlannedBatch], now_ms: int) -> float | None:
    """Rows/s over the last minute; None where no complete batch tells it.

    A pipeline that has committed nothing for a minute is at 0, however fast it was before.
    """
    spans = _spans(batches)
    if not spans:
        return None
    recent = [(each, end) for each, end in spans if end >= now_ms - SPAN_MS]
    if not recent:
        return 0.0
    begin = recent[0][0].planned_at_ms
    rows = sum(each.rows or 0 for each, _ in recent)
    return round(rows * 1000 / max(1, recent[-1][1] - begin), 1)


def _spans(batches: Sequence[PlannedBatch]) -> list[tuple[PlannedBatch, int]]:
    """Complete batches with the end of the time that each stands for."""
    ends = [after.planned_at_ms for after in batches[1:]] + [
        newest.committed_at_ms or 0 for newest in batches[-1:]
    ]
    return [
        (each, end_ms)
        for each, end_ms in zip(batches, ends, strict=True)
        if each.committed_at_ms is not None and each.rows is not None
    ]

"""Rows that readers see although no COMMIT decision names where they were written; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_eos.audit.compare import SHOWN, Place, Violations
from airflow_eos.kafka.transactions.identity import KIND, as_transaction
from airflow_eos.protocol.promise import named_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_eos.audit.topic_rows import TopicRows
    from airflow_eos.protocol.decision import Decision


def visible_undecided(outputs: Sequence[TopicRows], decisions: Iterable[Decision]) -> Violations:
    """Compare visible offsets with the ranges of all retained COMMIT decisions.

    Decisions are pruned from the oldest batch on, and a batch writes behind the one before it: so
    from the lowest retained range of a partition on, every visible row must be inside a range.
    Rows of another producer between the rows of a range escape this; they are ``unexpected``.
    """
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for entry in named_by(decisions):
        if entry.work.kind != KIND:
            continue
        for span in as_transaction(entry.work).written:
            ranges.setdefault((span.topic, span.partition), []).append((span.first, span.last))
    count = 0
    first: list[Place] = []
    for rows in outputs:
        for partition in sorted(rows.ends):
            spans = ranges.get((rows.topic, partition))
            if spans is None:
                continue
            offsets = np.sort(rows.offsets[rows.partitions == partition])
            bare = _outside(offsets, sorted(spans))
            count += len(bare)
            first += [
                Place(rows.topic, partition, int(offset), "inside no decided range")
                for offset in bare[: SHOWN - len(first)]
            ]
    return Violations(count, tuple(first))


def _outside(
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]], spans: list[tuple[int, int]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Those of ``offsets`` (sorted), from the first span on, that no span covers."""
    covered = np.zeros(len(offsets), bool)
    for start, last in spans:
        covered[np.searchsorted(offsets, start) : np.searchsorted(offsets, last, "right")] = True
    covered[: np.searchsorted(offsets, spans[0][0])] = True
    return offsets[~covered]

"""Compare what went in with what came out; pure, on arrays, so that millions of rows are quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_eos.audit.topic_rows import NO_KEY, TopicRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]

SHOWN = 10
"""How many offenders of each kind are kept, with where they are."""


@dataclass(frozen=True, slots=True)
class Place:
    """One row: where it is, and a word on what is wrong with it."""

    topic: str
    partition: int
    offset: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Violations:
    """How many rows, and where the first of them are."""

    count: int
    first: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows lost, too many, out of nowhere, and out of order within their key."""

    lost: Violations
    duplicated: Violations
    unexpected: Violations
    reordered: Violations


@dataclass(frozen=True, slots=True)
class _Outputs:
    """All output topics one after another; rows of a partition are in the order of offsets."""

    topics: tuple[TopicRows, ...]
    ids: npt.NDArray[np.int64]
    topic: npt.NDArray[np.int32]
    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]

    def place(self, row: int, detail: str = "") -> Place:
        topic = self.topics[int(self.topic[row])].topic
        return Place(topic, int(self.partition[row]), int(self.offset[row]), detail)


def compare(source: TopicRows, outputs: Sequence[TopicRows]) -> Comparison:
    """Every id of ``source`` must be in the union of ``outputs`` as often as it went in."""
    out = _Outputs(
        tuple(outputs),
        _joined([each.ids for each in outputs], np.int64),
        _joined([np.full(len(e.ids), i) for i, e in enumerate(outputs)], np.int32),
        _joined([each.partitions for each in outputs], np.int32),
        _joined([each.offsets for each in outputs], np.int64),
    )
    given, first_given, times_given = np.unique(source.ids, return_index=True, return_counts=True)
    seen, times_seen = np.unique(out.ids, return_counts=True)
    seen_of_given = _counts_of(given, seen, times_seen)
    given_of_seen = _counts_of(seen, given, times_given)
    return Comparison(
        lost=_lost(source, first_given, times_given - seen_of_given),
        duplicated=_too_many(
            out,
            seen[(given_of_seen > 0) & (times_seen > given_of_seen)],
            np.where(given_of_seen > 0, times_seen - given_of_seen, 0),
        ),
        unexpected=_out_of_nowhere(out, seen[given_of_seen == 0]),
        reordered=_reordered(source, out, given, first_given),
    )


def _joined(parts: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([*parts, np.empty(0, kind)]).astype(kind, copy=False)


def _counts_of(
    wanted: npt.NDArray[np.int64], known: npt.NDArray[np.int64], counts: Indices
) -> Indices:
    """How often each of ``wanted`` is among ``known`` (sorted, unique, with counts)."""
    if not len(known):
        return np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, counts[at], 0)


def _lost(source: TopicRows, first_given: Indices, shortfall: Indices) -> Violations:
    rows = np.sort(first_given[shortfall > 0])[:SHOWN]
    return Violations(
        int(shortfall[shortfall > 0].sum()),
        tuple(
            Place(source.topic, int(source.partitions[row]), int(source.offsets[row]))
            for row in rows
        ),
    )


def _too_many(out: _Outputs, offending: npt.NDArray[np.int64], surplus: Indices) -> Violations:
    copies = np.flatnonzero(np.isin(out.ids, offending))
    first = []
    for one in dict.fromkeys(out.ids[copies].tolist()):
        here = [out.place(int(row)) for row in copies[out.ids[copies] == one][:3]]
        others = ", ".join(f"{p.topic}/{p.partition}@{p.offset}" for p in here[:-1])
        last = here[-1]
        first.append(Place(last.topic, last.partition, last.offset, f"also at {others}"))
        if len(first) == SHOWN:
            break
    return Violations(int(surplus[surplus > 0].sum()), tuple(first))


def _out_of_nowhere(out: _Outputs, strangers: npt.NDArray[np.int64]) -> Violations:
    rows = np.flatnonzero(np.isin(out.ids, strangers))
    return Violations(len(rows), tuple(out.place(int(row)) for row in rows[:SHOWN]))


def _reordered(
    source: TopicRows, out: _Outputs, given: npt.NDArray[np.int64], first_given: Indices
) -> Violations:
    """Rows of one key, read from one input partition, must keep their order in a partition.

    Only the first copy of each row counts: a second one is a duplicate and told as such.
    """
    _, first_seen = np.unique(out.ids, return_index=True)
    rows = np.sort(first_seen)
    if not len(given) or not len(rows):
        return Violations(0)
    at = np.minimum(np.searchsorted(given, out.ids[rows]), len(given) - 1)
    origin = first_given[at]
    matched = (given[at] == out.ids[rows]) & (source.keys[origin] != NO_KEY)
    rows, origin = rows[matched], origin[matched]
    lanes = (
        source.keys[origin],
        source.partitions[origin],
        out.partition[rows],
        out.topic[rows],
    )
    order = np.lexsort((out.offset[rows], *lanes))
    same_lane = np.ones(max(0, len(order) - 1), bool)
    for lane in lanes:
        same_lane &= np.diff(lane[order]) == 0
    back = np.flatnonzero(same_lane & (np.diff(source.offsets[origin][order]) < 0)) + 1
    return Violations(
        len(back),
        tuple(
            out.place(
                int(rows[order[i]]),
                f"read from {source.topic}/{source.partitions[origin[order[i]]]}"
                f"@{source.offsets[origin[order[i]]]}, after a row from "
                f"@{source.offsets[origin[order[i - 1]]]} with the same key",
            )
            for i in np.sort(back)[:SHOWN]
        ),
    )

"""A comparison of input rows with output rows; pure, on arrays, so that millions are quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from airflow_eos.errors import ConfigurationError
from airflow_eos.ops.audit.rows import NO_KEY, Extract, TopicRows

if TYPE_CHECKING:
    import numpy.typing as npt
    from confluent_kafka import Message

    Indices = npt.NDArray[np.int64]

SHOWN = 10
"""The number of offenders of each kind that are kept, with their positions."""


@dataclass(frozen=True, slots=True)
class RowPosition:
    """The position of one row, and a word on what is wrong with the row."""

    topic: str
    partition: int
    offset: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Violations:
    """Count and first positions of the rows that violate a property."""

    count: int
    first: tuple[RowPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows lost, too many, from nowhere, and out of order within a key; then the unproven ones.

    ``missing``: in the input and not in the output, which may have had them: no loss is proven.
    ``strangers``: in the output and not in the input, which may have had them. ``unread``: missing,
    and the query has not come to them, or began behind them. ``given_up``: missing, and a person
    has said that they are stepped over. ``matched``: output rows with a counterpart.
    ``collapsed``: several rows of one id went in, and fewer came out, as where rows are
    aggregated: each id is there, and none too often. ``shared``: input rows whose id another row
    has too: their number is compared, and not which they are. ``whole_until``: by topic and
    partition of the input, the offset before which every row has come out; a query that reads on
    from there delivers ``again`` rows a second time. None where the outputs have lost rows.
    ``keyless`` and ``spread``: rows whose order is not judged: of no key; of a key that is in
    several partitions of a topic, whose order among one another nobody tells.
    """

    lost: Violations
    duplicated: Violations
    unexpected: Violations
    reordered: Violations
    missing: int
    strangers: int
    unread: int
    given_up: int
    matched: int
    collapsed: bool
    shared: int
    whole_until: dict[str, dict[int, int]] | None
    again: int
    keyless: int
    spread: int


Read = Mapping[tuple[str, int], tuple[int, int]]
"""Which offsets of each (topic, partition) a query has read: from the first, to before the last.

Of a topic that is not in here, nothing is known."""


@dataclass(frozen=True, slots=True)
class _AllRows:
    """The rows of all topics, one topic after another; those of a partition in offset order."""

    topics: tuple[TopicRows, ...]
    ids: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    topic: npt.NDArray[np.int32]
    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]

    @classmethod
    def of(cls, topics: Sequence[TopicRows]) -> _AllRows:
        return cls(
            tuple(topics),
            _joined([each.ids for each in topics], np.int64),
            _joined([each.keys for each in topics], np.int64),
            _joined([np.full(len(e.ids), i) for i, e in enumerate(topics)], np.int32),
            _joined([each.partitions for each in topics], np.int32),
            _joined([each.offsets for each in topics], np.int64),
        )

    def position(self, row: int, detail: str = "") -> RowPosition:
        topic = self.topics[int(self.topic[row])].topic
        return RowPosition(topic, int(self.partition[row]), int(self.offset[row]), detail)

    def lanes(self, rows: Indices) -> Indices:
        """Return key, topic and partition, within which order is kept, of each row as a column."""
        return np.stack([self.keys[rows], self.topic[rows], self.partition[rows]]).astype(np.int64)


def compare(
    sources: Sequence[TopicRows],
    outputs: Sequence[TopicRows],
    *,
    read: Read | None = None,
    skipped: Sequence[tuple[str, int, int, int]] = (),
    others: bool = False,
) -> Comparison:
    """Compare rows: each id of ``sources`` must be in all ``outputs`` as often as it went in.

    Only rows that can be compared are judged: a stranger is from nowhere where the input is whole,
    and a missing row is lost where the output is whole, or still has an earlier row of the same key
    and input partition, behind which the missing one would be.

    Args:
        read: the offsets that the query has read; None: nobody says, and all of the input counts.
        skipped: topic, partition, and the offsets from the first to before the last that a person
            has said are stepped over: rows that lack of them are given up, and not lost.
        others: whether rows come from elsewhere as well.
    """
    given_rows, out = _AllRows.of(sources), _AllRows.of(outputs)
    given, first_given, times_given = np.unique(
        given_rows.ids, return_index=True, return_counts=True
    )
    seen, times_seen = np.unique(out.ids, return_counts=True)
    seen_of_given = _looked_up(given, seen, times_seen, 0)
    given_of_seen = _looked_up(seen, given, times_given, 0)
    # For each output row, the first input row that has its id; -1 where none has.
    origin = _looked_up(out.ids, given, first_given, -1)
    surplus = times_seen - np.maximum(given_of_seen, 1)
    strangers = np.flatnonzero(np.isin(out.ids, seen[given_of_seen == 0]))
    shortfall = times_given - seen_of_given
    short = first_given[shortfall > 0]
    over = _inside(given_rows, skipped)
    wanted = ~over[short]
    due = _was_read(given_rows, short, read) & wanted
    provable = _provable(given_rows, short, origin[origin >= 0], outputs)
    counts = shortfall[shortfall > 0]
    known_origin = all(each.whole for each in sources) and not others
    lacking = np.isin(given_rows.ids, given[shortfall > 0]) & ~over
    whole_until, beyond = _whole_until(given_rows, lacking)
    return Comparison(
        lost=_lost(given_rows, short[due & provable], counts[due & provable]),
        duplicated=_too_many(out, seen[surplus > 0], surplus),
        unexpected=Violations(
            len(strangers), tuple(out.position(int(row)) for row in strangers[:SHOWN])
        )
        if known_origin
        else Violations(0),
        reordered=_reordered(given_rows, out, origin),
        missing=int(counts[due & ~provable].sum()),
        strangers=0 if known_origin else len(strangers),
        unread=int(counts[~due & wanted].sum()),
        given_up=int(counts[~wanted].sum()),
        matched=int((origin >= 0).sum()),
        collapsed=bool(
            len(given)
            and 2 * len(given) <= len(given_rows.ids)
            and (shortfall > 0).any()
            and (seen_of_given > 0).all()
            and (shortfall >= 0).all()
        ),
        shared=int(times_given[times_given > 1].sum()),
        whole_until=whole_until if all(each.whole for each in outputs) else None,
        again=beyond - int(counts[wanted].sum()),
        keyless=sum(each.keyless for each in sources),
        spread=_spread(given_rows, out, origin),
    )


def _whole_until(
    source: _AllRows, lacking: npt.NDArray[np.bool_]
) -> tuple[dict[str, dict[int, int]], int]:
    """Return each partition's first lacking row, or its end; and how many rows are behind."""
    found: dict[str, dict[int, int]] = {}
    beyond = 0
    for n, topic in enumerate(source.topics):
        for partition, end in sorted(topic.ends.items()):
            here = (source.topic == n) & (source.partition == partition)
            until = int(source.offset[here & lacking].min(initial=end.stable))
            found.setdefault(topic.topic, {})[partition] = until
            beyond += int((here & (source.offset >= until)).sum())
    return found, beyond


def _joined(parts: Sequence[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([*parts, np.empty(0, kind)]).astype(kind, copy=False)


def _looked_up(
    wanted: npt.NDArray[np.int64], known: npt.NDArray[np.int64], values: Indices, otherwise: int
) -> Indices:
    """Return the value of each of ``wanted`` among ``known`` (sorted, unique)."""
    if not len(known):
        return np.full(len(wanted), otherwise)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, values[at], otherwise)


def _was_read(source: _AllRows, rows: Indices, read: Read | None) -> npt.NDArray[np.bool_]:
    """Return for each of these rows whether the query has come to it."""
    due = np.ones(len(rows), bool)
    if read is None:
        return due
    named = {topic for topic, _ in read}
    for n, topic in enumerate(source.topics):
        if topic.topic not in named:
            continue
        for partition in topic.ends:
            first, end = read.get((topic.topic, partition), (0, 0))
            here = (source.topic[rows] == n) & (source.partition[rows] == partition)
            due &= ~here | ((source.offset[rows] >= first) & (source.offset[rows] < end))
    return due


def _inside(source: _AllRows, spans: Sequence[tuple[str, int, int, int]]) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is in one of the spans."""
    inside = np.zeros(len(source.ids), bool)
    for name, partition, first, end in spans:
        numbers = [n for n, topic in enumerate(source.topics) if topic.topic == name]
        here = np.isin(source.topic, numbers) & (source.partition == partition)
        inside |= here & (source.offset >= first) & (source.offset < end)
    return inside


def _provable(
    source: _AllRows, rows: Indices, delivered: Indices, outputs: Sequence[TopicRows]
) -> npt.NDArray[np.bool_]:
    """Return for each of these rows whether the output would still have it, once delivered."""
    if all(each.whole for each in outputs):
        return np.ones(len(rows), bool)
    still_open = any(end.stable < end.high for each in outputs for end in each.ends.values())
    if still_open or any(each.compacted is not False for each in outputs):
        return np.zeros(len(rows), bool)
    lanes, lane = np.unique(
        source.lanes(np.concatenate([delivered, rows])), axis=1, return_inverse=True
    )
    lane = lane.reshape(-1)
    earliest = np.full(lanes.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(earliest, lane[: len(delivered)], source.offset[delivered])
    behind = source.offset[rows] > earliest[lane[len(delivered) :]]
    keyed: npt.NDArray[np.bool_] = source.keys[rows] != NO_KEY
    return keyed & behind


def _lost(source: _AllRows, rows: Indices, shortfall: Indices) -> Violations:
    return Violations(
        int(shortfall.sum()), tuple(source.position(int(row)) for row in np.sort(rows)[:SHOWN])
    )


def _too_many(out: _AllRows, offending: npt.NDArray[np.int64], surplus: Indices) -> Violations:
    copies = np.flatnonzero(np.isin(out.ids, offending))
    first = []
    for one in dict.fromkeys(out.ids[copies].tolist()):
        here = [out.position(int(row)) for row in copies[out.ids[copies] == one][:3]]
        others = ", ".join(f"{p.topic}/{p.partition}@{p.offset}" for p in here[:-1])
        last = here[-1]
        first.append(RowPosition(last.topic, last.partition, last.offset, f"also at {others}"))
        if len(first) == SHOWN:
            break
    return Violations(int(surplus[surplus > 0].sum()), tuple(first))


def _reordered(source: _AllRows, out: _AllRows, origins: Indices) -> Violations:
    """Find rows of one key and input partition that are not in that order in a partition.

    Only the first copy of each row counts: a second one is a duplicate and told as such.
    """
    _, first_seen = np.unique(out.ids, return_index=True)
    rows = np.sort(first_seen)
    rows = rows[origins[rows] >= 0]
    rows = rows[source.keys[origins[rows]] != NO_KEY]
    origin = origins[rows]
    lanes = (*source.lanes(origin), out.partition[rows], out.topic[rows])
    order = np.lexsort((out.offset[rows], *lanes))
    same_lane = np.ones(max(0, len(order) - 1), bool)
    for lane in lanes:
        same_lane &= np.diff(lane[order]) == 0
    back = np.flatnonzero(same_lane & (np.diff(source.offset[origin][order]) < 0)) + 1
    first = []
    for i in np.sort(back)[:SHOWN]:
        its, former = source.position(origin[order[i]]), source.position(origin[order[i - 1]])
        detail = (
            f"read from {its.topic}/{its.partition}@{its.offset}, after a row from "
            f"@{former.offset} with the same key"
        )
        first.append(out.position(int(rows[order[i]]), detail))
    return Violations(len(back), tuple(first))


def _spread(source: _AllRows, out: _AllRows, origins: Indices) -> int:
    """Count rows of keys that are in several partitions of a topic, where they came from or went.

    Of several topics each is by itself: a key's rows are routed by what they say.
    """
    read = np.flatnonzero(source.keys != NO_KEY)
    written = np.flatnonzero(origins >= 0)
    written = written[source.keys[origins[written]] != NO_KEY]
    lanes = (*source.lanes(origins[written]), out.topic[written])
    apart_in = _apart([source.keys[read], source.topic[read]], source.partition[read])
    apart_out = _apart(lanes, out.partition[written])
    return len(np.union1d(read[apart_in], origins[written[apart_out]]))


def _apart(
    group: Sequence[npt.NDArray[Any]], partition: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Return for each row whether its group is in more than one partition."""
    order = np.lexsort((partition, *group))
    same = np.ones(max(0, len(order) - 1), bool)
    for each in group:
        same &= np.diff(each[order]) == 0
    number = np.concatenate([[0], np.cumsum(~same)])[: len(order)]
    changes = same & (np.diff(partition[order]) != 0)
    several = np.bincount(number[1:], changes, minlength=len(order)) > 0
    found = np.zeros(len(order), bool)
    found[order] = several[number]
    return found


# --- expression -----------------------------------------------------------------------------------
# Expressions for the part of a Kafka message that names the row: ``value.order_id``, ``key``, …


def parse(expression: str) -> Extract:
    """Turn an expression into a function that returns the named part of a message.

    ``key`` and ``value`` are the bytes themselves; ``value.a.b`` and ``key.a`` a field of the JSON
    object there; ``headers.name`` the last header of that name. Numbers equal their decimal
    strings, so that ``7`` and ``"7"`` name the same row.

    Raises:
        ConfigurationError: The expression is none of these.
    """
    part, dot, path = expression.partition(".")
    fields = path.split(".")
    if part == "headers" and path:
        return lambda message: _header(message, path)
    if part in {"key", "value"} and (all(fields) or not dot):
        raw: Extract = lambda message: _bytes(getattr(message, part)())  # noqa: E731
        if not dot:
            return raw
        decode = _field_decoder(fields)
        return lambda message: _field(raw(message), decode, len(fields))
    raise ConfigurationError(
        f"{expression!r} names no part of a message. Expected 'key', 'value', 'value.<field>' "
        "(dots for nested JSON fields), 'key.<field>' or 'headers.<name>'."
    )


def _bytes(part: Any) -> bytes | None:
    return part if isinstance(part, bytes) or part is None else str(part).encode()


def _header(message: Message, name: str) -> bytes | None:
    found: list[Any] = [header[1] for header in message.headers() or () if header[0] == name]
    return _bytes(found[-1]) if found else None


def _field_decoder(fields: list[str]) -> Callable[[bytes], Any]:
    """Build a decoder that reads only this path and skips the rest of the object."""
    kind: Any = Any
    for name in reversed(fields):
        kind = msgspec.defstruct("Row", [("part", kind, None)], rename={"part": name})
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    return decode


def _field(data: bytes | None, decode: Callable[[bytes], Any], depth: int) -> bytes | None:
    if data is None:
        return None
    try:
        found = decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # no JSON object: a malformed row has no such part
    for _ in range(depth):
        found = found.part
        if found is None:
            return None
    if isinstance(found, str):
        return found.encode()
    return msgspec.json.encode(found)

"""A Python data source for Spark, whose rows are offset ranges: one for each task.

Where work is given, the rows are instead the reports of a task on its range, and one Python worker
does all of a task. Spark calls the planning half in a Python process of its own beside the driver,
one for a query, and :meth:`RangeReader.read` in its tasks. Spark does the rest: it logs the offsets
before a batch runs, repeats the batch over the same offsets, and counts the rate limit.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from airflow_eos.arrow.source.task import Batches, KafkaInput, Offset, offset_of
from airflow_eos.core.checkpoint.topics import TopicPartition
from airflow_eos.errors import InputError, TopicError
from airflow_eos.kafka.client.reading import OffsetSpan

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import ConnectionPool

CUT, DEALT = "/rows_a_task", "/tasks"
"""Keys of an :data:`Offset` for limits of tasks: ``{"": rows}`` a task, and ``{"": tasks}``."""


def places_of(offset: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return topic and partition → the next row's offset."""
    return {
        (topic, int(partition)): int(next_row)
        for topic, partitions in offset.items()
        if not topic.startswith("/")
        for partition, next_row in partitions.items()
    }


def next_end(
    start: Offset,
    ends: Mapping[TopicPartition, int],
    *,
    most: int | None,
    rows_a_task: int | None,
    tasks: int | None = None,
    leave_out: bool = False,
) -> Offset:
    """Return the end of the batch that begins at ``start``; ``start`` where nothing is new.

    Args:
        start: the end of the batch before.
        ends: the offset up to which each partition there is may be read.
        most: offsets that a batch may have, shared out by what each partition has; None: all.
        rows_a_task: a longer range of a partition is cut; None: never.
        tasks: more ranges than that are shared out among so many tasks; None: each has its own.
        leave_out: whether a partition that is not there any more is left out.

    Raises:
        TopicError: a partition, or a whole topic, is not there any more.
        InputError: a partition ends before what was read: it is another topic's by now.
    """
    begun = places_of(start)
    gone = begun.keys() - ends.keys() if leave_out else set()
    begun = {tp: offset for tp, offset in begun.items() if tp not in gone}
    _require_there(begun, ends)
    waiting = {tp: end - begun.get(tp, 0) for tp, end in ends.items()}
    total = sum(waiting.values())
    if not total and not gone and waiting.keys() == begun.keys():
        return start
    share = 1.0 if most is None or total <= most else most / total
    reached = {tp: begun.get(tp, 0) + _part(rows, share) for tp, rows in waiting.items()}
    end = offset_of(reached)
    if rows_a_task is not None:
        end[CUT] = {"": rows_a_task}
    if tasks is not None:
        end[DEALT] = {"": tasks}
    return end


def _part(rows: int, share: float) -> int:
    """Return a share of the rows; at least one, or a partition beside larger ones would starve."""
    if share >= 1.0 or not rows:
        return rows
    return min(rows, max(1, math.floor(rows * share)))


def _require_there(begun: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    for (topic, partition), offset in sorted(begun.items()):
        end = ends.get((topic, partition))
        if end is None:
            raise TopicError(
                f"Partition {partition} of topic {topic!r}, which was read up to offset {offset}, "
                f"is not there any more, or the source does not name the topic. {_NEXT}"
            )
        if end < offset:
            raise InputError(
                f"Partition {partition} of topic {topic!r} was read up to offset {offset}, and "
                f"ends at {end} now: the topic was deleted and made again, or its log was cut. "
                f"{_NEXT}"
            )


Spans = list[tuple[OffsetSpan, int]]
"""Offset ranges, each with its number among those of its partition."""


def tasks_of(start: Offset, end: Offset) -> list[Spans]:
    """Return the ranges that each task of a batch reads, in the order in which it reads them.

    A partition that ``start`` does not know is read from offset 0: it is new, and where its first
    rows are gone already its task says so.
    """
    begun, cut = places_of(start), end.get(CUT, {}).get("")
    found: Spans = []
    for (topic, partition), until in sorted(places_of(end).items()):
        first = begun.get((topic, partition), 0)
        found += [
            (OffsetSpan(topic, partition, *edges), number)
            for number, edges in enumerate(_cut(first, until, cut))
        ]
    return _dealt(found, end.get(DEALT, {}).get("") or len(found))


def around(spans: Spans, skipped: Iterable[OffsetSpan]) -> Spans:
    """Return ``spans`` without the ``skipped`` offsets; each task keeps its own ranges.

    Cut after tasks were given their ranges: a partition keeps its task, and a key's rows in order.
    """
    for gap in skipped:
        spans = [
            (replace(span, first=first, until=until), number)
            for span, number in spans
            for first, until in _outside(span, gap)
            if first < until
        ]
    return spans


def _outside(span: OffsetSpan, gap: OffsetSpan) -> list[tuple[int, int]]:
    if (span.topic, span.partition) != (gap.topic, gap.partition):
        return [(span.first, span.until)]
    return [(span.first, min(span.until, gap.first)), (max(span.first, gap.until), span.until)]


def _dealt(spans: Spans, tasks: int) -> list[Spans]:
    """Share ranges out among tasks: the largest first, to the task with the fewest rows by then."""
    hands: list[Spans] = [[] for _ in range(min(tasks, len(spans)))]
    rows = [0] * len(hands)
    for index in sorted(range(len(spans)), key=lambda at: (-_rows(spans[at]), at)):
        least = rows.index(min(rows))
        hands[least].append(spans[index])
        rows[least] += _rows(spans[index])
    return list(map(sorted, hands))


def _rows(each: tuple[OffsetSpan, int]) -> int:
    return each[0].until - each[0].first


def _cut(first: int, until: int, most: Any) -> list[tuple[int, int]]:
    if until <= first:
        return []
    parts = 1 if most is None else math.ceil((until - first) / most)
    edges = [first + (until - first) * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(edges))


_NEXT = "Rows that were not read are gone. To read what is there, start on a new checkpoint."


REPORTS = "report binary"
RANGES = "topic string, partition int, from bigint, until bigint, split int"
_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("from", pa.int64()),
        ("until", pa.int64()),
        ("split", pa.int32()),
    ]
)
_LOOK_FOR_BROKER_S = 20.0


def data_source(
    read: KafkaInput, short_name: str, work: Callable[[Batches], Batches] | None = None
) -> type[DataSource]:
    """Return the data source class to register. It is pickled by value, with the input in it.

    The input is not passed as options, which a plan shows: it has passwords.

    Args:
        read: the input that is planned.
        short_name: the format's name.
        work: turns ranges into what ``mapInArrow`` would give as :data:`REPORTS`, where a range is
            read; None gives the ranges.
    """
    # Planners need none of it, and might lack the modules of a user's functions. Pickled in the
    # thread that registers the class: its broadcast variables go with what the thread pickles next.
    packed = None if work is None else cloudpickle.dumps(work)  # type: ignore[no-untyped-call]

    class RangeSource(DataSource):
        _reader: RangeStream | None = None

        @classmethod
        def name(cls) -> str:
            return short_name

        def schema(self) -> str:
            return RANGES if packed is None else REPORTS

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
            self._reader = RangeStream(read, packed)
            return self._reader

        def __reduce__(self) -> Any:
            """Pickle the source for planners, but its name alone beside the reader for tasks."""
            return (
                super().__reduce__() if self._reader is None else (SourceDescription, (short_name,))
            )

    return RangeSource


class SourceDescription(DataSource):
    """A description of the source for Spark's error messages."""

    def __init__(self, short_name: str) -> None:
        super().__init__({})
        self._short_name = short_name

    def name(self) -> str:  # type: ignore[override]  # of the class there, which travels by value
        """Return the format's name."""
        return self._short_name


class Ranges(InputPartition):
    """The offset ranges of one task."""

    def __init__(self, spans: Spans) -> None:
        super().__init__(None)
        self.rows = [(s.topic, s.partition, s.first, s.until, number) for s, number in spans]


class RangeReader(DataSourceStreamReader):
    """The reader in a task; it knows neither the input, which has passwords, nor the checkpoint."""

    def __init__(self, packed: bytes | None) -> None:
        self._packed = packed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's ranges, or what the work of :func:`data_source` makes of them."""
        if not isinstance(partition, Ranges):  # pragma: no cover - Spark gives what it was given
            raise TypeError(f"{partition!r}: expected ranges")
        columns = [
            pa.array([row[at] for row in partition.rows], field.type)
            for at, field in enumerate(_ARROW)  # no row: all of a task's was stepped over
        ]
        ranges = iter([pa.RecordBatch.from_arrays(columns, schema=_ARROW)])
        if self._packed is None:
            yield from ranges
            return
        _tell_polars_whose_cores_there_are()
        yield from cloudpickle.loads(self._packed)(ranges)


def _tell_polars_whose_cores_there_are() -> None:
    """Limit Polars to as many threads as the task has cores, unless a limit is set already.

    By itself Polars starts a thread for each core of the machine, in the worker of each task that
    runs there. It reads the limit when it is imported, as it may be with a user's function.
    """
    context = TaskContext.get()
    os.environ.setdefault("POLARS_MAX_THREADS", str(1 if context is None else context.cpus()))


class RangeStream(RangeReader, SupportsTriggerAvailableNow):
    """The planner of each batch's ranges. Spark gives the methods their names."""

    def __init__(self, read: KafkaInput, packed: bytes | None = None) -> None:
        super().__init__(packed)
        self._read = read
        self._wire: ConnectionPool | None = None
        self._target: dict[TopicPartition, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the first batch begins, always the same; asked until that batch commits."""
        return self._read.began(self._connected())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = self._read.ends(self._connected()) if self._target is None else self._target
        try:
            return self._next_end(start, ends, most)
        except TopicError:  # a broker may not have heard yet of a partition that was just added
            ends = self._read.ends(self._connected())
            self._target = None if self._target is None else ends
            return self._next_end(start, ends, most, leave_out=self._read.leaves_out)

    def _next_end(
        self,
        start: Offset,
        ends: Mapping[TopicPartition, int],
        most: int | None,
        *,
        leave_out: bool = False,
    ) -> Offset:
        ends = self._read.not_before(self._connected(), ends, places_of(start))
        return next_end(
            start,
            ends,
            most=most,
            rows_a_task=self._read.max_rows_per_task,
            tasks=self._read.max_tasks,
            leave_out=leave_out,
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the read limit for every trigger but ``once``."""
        most = self._read.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the partitions end now, for ``lastProgress``."""
        return offset_of(self._read.ends(self._connected()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: where the partitions end now."""
        self._target = self._read.ends(self._connected())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the ranges of each task."""
        skipped = self._read.skipped
        return [Ranges(around(spans, skipped)) for spans in tasks_of(start, end)]

    def __reduce__(self) -> tuple[type[RangeReader], tuple[bytes | None]]:
        """Reduce to what tasks need, since Spark pickles the whole reader for them."""
        return RangeReader, (self._packed,)

    def stop(self) -> None:
        """Close the connections once the query has ended."""
        if self._wire is not None:
            self._wire.close()

    def _connected(self) -> ConnectionPool:
        from airflow_eos.kafka.client.connection import ConnectionPool

        if self._wire is None:
            self._wire = ConnectionPool(self._read.settings, timeout_s=_LOOK_FOR_BROKER_S)
        return self._wire

"""What Spark is told: a Python data source whose rows are offset ranges, one for each task.

Spark calls the planning half in a Python process of its own beside the driver, one for a query, and
:meth:`RangeStream.read` in its tasks. All else is Spark's: it logs the offsets before a batch runs,
repeats it over the same ones, counts the rate limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (  # Spark 4.2
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from airflow_eos.errors import TopicError
from airflow_eos.sources.ranges import Offset, next_end, offset_of, spans

if TYPE_CHECKING:
    from airflow_eos.kafka.client.positions import Place
    from airflow_eos.kafka.client.reading import OffsetSpan
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.sources.input import KafkaInput

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


def data_source(read: KafkaInput, short_name: str) -> type[DataSource]:
    """The class to register. It travels by value, and the input with it.

    Not as options, which a plan shows: the input has passwords.
    """

    class RangeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return short_name

        def schema(self) -> str:
            return RANGES

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
            return RangeStream(read)

    return RangeSource


class Range(InputPartition):
    """One task's."""

    def __init__(self, span: OffsetSpan, split: int) -> None:
        super().__init__(None)
        self.row = (span.topic, span.partition, span.first, span.until, split)


class RangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the ranges of each batch. The names of the methods are Spark's."""

    def __init__(self, read: KafkaInput) -> None:
        self._read = read
        self._wire: Wire | None = None
        self._target: dict[Place, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Asked for until the first batch is committed; always the same."""
        return self._read.began(self._connected())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = self._read.ends(self._connected()) if self._target is None else self._target
        cut = self._read.max_rows_per_task
        try:
            return next_end(start, ends, most=most, rows_a_task=cut)
        except TopicError:  # a broker may not have heard yet of a partition that was just added
            ends = self._read.ends(self._connected())
            self._target = None if self._target is None else ends
            return next_end(start, ends, most=most, rows_a_task=cut)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Of every trigger but ``once``."""
        most = self._read.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """For ``lastProgress``."""
        return offset_of(self._read.ends(self._connected()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends where the partitions end now."""
        self._target = self._read.ends(self._connected())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """A range for each task."""
        return [Range(span, split) for span, split in spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the range itself; see :class:`~airflow_eos.sources.task.ReadRanges`."""
        if not isinstance(partition, Range):  # pragma: no cover - Spark gives what it was given
            raise TypeError(f"{partition!r}: expected a range")
        columns = [
            pa.array([each], field.type) for each, field in zip(partition.row, _ARROW, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)

    def stop(self) -> None:
        """The query has ended."""
        if self._wire is not None:
            self._wire.close()

    def _connected(self) -> Wire:
        from airflow_eos.kafka.client.wire import Wire

        if self._wire is None:
            self._wire = Wire(self._read.settings, timeout_s=_LOOK_FOR_BROKER_S)
        return self._wire

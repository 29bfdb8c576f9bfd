"""Where the rows of a writer go and how they are packed; the same for every writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_eos.kafka.producer.batches import BatchBuilder, batch_builder
from airflow_eos.kafka.producer.scatter import scatter_builder
from airflow_eos.kafka.producer.topics import Topics
from airflow_eos.kafka.records.compression import codec

if TYPE_CHECKING:
    from airflow_eos.kafka.client.wire import Wire


class Destination:
    """Topics and their limits, as they are known by now.

    Args:
        wire: by which topics are looked up.
        topic: where rows go that have no ``topic`` of their own.
        compression: none, gzip, snappy, lz4 or zstd.

    Raises:
        ConfigurationError: no such compression.
    """

    def __init__(self, wire: Wire, *, topic: str | None, compression: str) -> None:
        self.topic = topic
        self.topics = Topics(wire)
        self.codec = codec(compression)

    def batches_of(self, gathered: Sequence[pa.RecordBatch]) -> BatchBuilder:
        """What builds the batches of these rows, one at least; errors as of `batch_builder`."""
        scattered = scatter_builder(gathered, self.topic, self.topics, self.codec)
        if scattered is not None:
            return scattered
        rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        return batch_builder(rows, self.topic, self.topics, self.codec)

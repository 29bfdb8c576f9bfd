"""Options to read Kafka faster, with what they cost, and where an app's first start begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_eos.errors import ConfigurationError

_MIB = 1024 * 1024


def tuned_source_options(*, bulk: bool = False) -> dict[str, str]:
    """Return options for ``spark.readStream.format("kafka").options(**…)``: more rows a second.

    Spark's consumer polls 500 records at a time by default, which costs more than reading them.
    Each of these costs memory on the executors, once for each topic partition read at a time:

    - ``max.poll.records`` 20,000: that many decoded records are held (about 4 MB of small rows,
      20,000 times your largest row at worst). Lower it for rows above a few kilobytes.
    - ``max.partition.fetch.bytes`` 8 MiB instead of 1: one fetched piece, still compressed, and a
      second one in flight.
    - ``receive.buffer.bytes`` 4 MiB: kernel memory, bounded by ``net.core.rmem_max``.

    Spark keeps up to ``spark.kafka.consumer.cache.capacity`` (64) consumers in each executor.

    Args:
        bulk: for a backlog: also let the broker wait until it has 1 MB to send
            (``fetch.min.bytes``). A batch that ends with less waits up to
            ``fetch.max.wait.ms`` (500), so leave it off where latency counts.
    """
    options = {
        "kafka.max.poll.records": "20000",
        "kafka.max.partition.fetch.bytes": str(8 * _MIB),
        "kafka.receive.buffer.bytes": str(4 * _MIB),
    }
    if bulk:
        options["kafka.fetch.min.bytes"] = "1000000"
    return options


def tuned_spark_conf() -> dict[str, str]:
    """Return Spark settings of an application: less CPU a row, and small batches end sooner.

    - ``spark.python.unix.domain.socket.enabled`` (Spark 4.1): a task is handed to its Python
      worker and back sooner than over loopback TCP. The sockets lie in ``java.io.tmpdir``, whose
      path must be short (``spark.python.unix.domain.socket.dir`` names another folder).
    - ``spark.hadoop.fs.AbstractFileSystem.file.impl``: checkpoints on a local or mounted disk are
      written without Hadoop's ``.crc`` file beside each file; without Hadoop's native library each
      of them costs a fork of ``chmod``. Object stores and HDFS do not notice. The price is
      Hadoop's check of what it reads back from that disk.
    - ``spark.sql.execution.arrow.maxBytesPerBatch`` at its highest, which is off: otherwise Spark
      adds up the sizes of all columns after every single row (``ArrowWriter.sizeInBytes``). An
      Arrow batch then ends by its number of rows alone (``maxRecordsPerBatch``, 10,000), and each
      running task holds two, in the JVM and in its Python worker: lower that number for rows
      above a few kilobytes.
    - Arrow's Java library no longer checks the bounds of each access, as Spark's own rows never
      do. Costs no memory; an error in Spark or Arrow would end the process instead of raising.

    Give it when the application is submitted (``SparkStreamingOperator(conf=…)``), and add Java
    options of your own to those here.
    """
    unchecked = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    return {
        "spark.driver.extraJavaOptions": unchecked,
        "spark.executor.extraJavaOptions": unchecked,
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
    }


def stateful_spark_conf() -> dict[str, str]:
    """Return Spark settings of a query that keeps state: RocksDB, with a change log as checkpoint.

    - RocksDB keeps state outside the JVM's heap, on the executors' disks where it outgrows memory.
    - ``changelogCheckpointing``: a batch uploads what it has changed, in the place of a whole copy
      of the files (Flink: incremental checkpoints); a copy is made in the background.

    It costs native memory beside the heap, and more for a batch with little state than Spark's
    default store takes. A checkpoint keeps the store that it began with: Spark writes it into each
    ``offsets/N`` and goes by that, so an older checkpoint resumes with these settings as before.
    """
    store = "spark.sql.streaming.stateStore"
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return {
        f"{store}.providerClass": provider,
        f"{store}.rocksdb.changelogCheckpointing.enabled": "true",
    }


# --- start position -------------------------------------------------------------------------------
# Where the first start of a pipeline begins to read a Kafka topic.
#
# It holds for the first start only: once Spark has planned a batch the checkpoint decides, whatever
# is configured here. Rows before the position are never read.


_EXPECTED = (
    "expected earliest, latest, a moment with its zone (2026-11-23T10:00:00Z), or the offset of "
    'each partition as JSON ({"0": 1500, "1": 1710})'
)


def _is_offset(given: object) -> bool:
    """Whether it is a whole number that Kafka can have: 1500.7 and true are none of an offset."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A start position; make it with :meth:`earliest`, :meth:`latest`, :meth:`at`, :meth:`offsets`.

    Attributes:
        name: ``earliest``, ``latest``, or empty.
        timestamp_ms: rows of this moment (ms since the epoch) and later, by their time stamps.
        by_partition: the offset of the first row, for every partition there is.
    """

    name: str = ""
    timestamp_ms: int | None = None
    by_partition: Mapping[int, int] | None = None

    @classmethod
    def earliest(cls) -> StartPosition:
        """Return the position of the first row that the topic still holds."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartPosition:
        """Return the end position: rows are read that come after the first start has planned."""
        return cls("latest")

    @classmethod
    def at(cls, moment: datetime) -> StartPosition:
        """Return the position of each partition's first row with a time stamp from ``moment`` on.

        A partition that has no such row yet is read from its end.

        Raises:
            ConfigurationError: the moment has no zone.
        """
        if moment.tzinfo is None:
            raise ConfigurationError(f"start {moment.isoformat()}: no zone; {_EXPECTED}.")
        return cls(timestamp_ms=round(moment.timestamp() * 1000))

    @classmethod
    def offsets(cls, by_partition: Mapping[int, int]) -> StartPosition:
        """Return the position at the given offset of each partition.

        Raises:
            ConfigurationError: no partition is given, or a number is none that Kafka has.
        """
        numbers: tuple[object, ...] = (*by_partition, *by_partition.values())
        if not numbers or not all(map(_is_offset, numbers)):
            raise ConfigurationError(f"start {dict(by_partition)}: {_EXPECTED}.")
        return cls(by_partition=dict(by_partition))

    @classmethod
    def parsed(cls, text: str) -> StartPosition:
        """Return the position that an app's ``--start`` gives.

        Raises:
            ConfigurationError: the text is none of the four.
        """
        if text in ("earliest", "latest"):
            return cls(text)
        try:
            if text.lstrip().startswith("{"):
                told: Any = json.loads(text, object_pairs_hook=list)  # a name given twice is seen
                offsets = {int(number): offset for number, offset in told}
                if [str(number) for number in offsets] != [number for number, _ in told]:
                    raise ValueError  # noqa: TRY301 - one message for all that is wrong
                return cls.offsets(offsets)
            return cls.at(datetime.fromisoformat(text))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"start {text!r}: {_EXPECTED}.") from error

    def source_options(self, topic: str) -> dict[str, str]:
        """Return Spark's options of a source that subscribes to ``topic``."""
        if self.timestamp_ms is not None:
            return {
                "startingTimestamp": str(self.timestamp_ms),
                # Spark fails by default where a partition has no such row yet.
                "startingOffsetsByTimestampStrategy": "latest",
            }
        if self.by_partition is not None:
            offsets = {str(number): offset for number, offset in self.by_partition.items()}
            return {"startingOffsets": json.dumps({topic: offsets})}
        return {"startingOffsets": self.name}

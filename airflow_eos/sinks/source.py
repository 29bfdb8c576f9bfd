"""Options to read Kafka faster, with what they cost."""

from __future__ import annotations

from pathlib import Path

from airflow_eos.core.delivery.class_archive import archive_options

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


def tuned_spark_conf(*, class_archive: str | None = None) -> dict[str, str]:
    """Return Spark settings of an application: less CPU a row, and small batches end sooner.

    - ``spark.python.unix.domain.socket.enabled`` (Spark 4.1): a task is handed to its Python
      worker and back sooner than over loopback TCP. The sockets lie in ``java.io.tmpdir``, whose
      path must be short (``spark.python.unix.domain.socket.dir`` names another folder).
    - ``spark.hadoop.fs.AbstractFileSystem.file.impl``: other queries' checkpoints on a local or
      mounted disk are written without Hadoop's ``.crc`` file beside each file; without Hadoop's
      native library each of them costs a fork of ``chmod``. Object stores and HDFS do not notice.
      The price is Hadoop's check of what it reads back from that disk. For the logs of its own
      query ``start_exactly_once`` chooses a manager that starts fewer processes still.
    - ``spark.sql.execution.arrow.maxBytesPerBatch`` at its highest, which is off: otherwise Spark
      adds up the sizes of all columns after every single row (``ArrowWriter.sizeInBytes``). An
      Arrow batch then ends by its number of rows alone (``maxRecordsPerBatch``, 10,000), and each
      running task holds two, in the JVM and in its Python worker: lower that number for rows
      above a few kilobytes.
    - Arrow's Java library no longer checks the bounds of each access, as Spark's own rows never
      do. Costs no memory; an error in Spark or Arrow would end the process instead of raising.

    Give it when the application is submitted (``SparkStreamingOperator(conf=…)``), and add Java
    options of your own to those here.

    Args:
        class_archive: a file for the classes that Java has loaded, on the driver's machine and in a
            folder that only its user writes to: with it a driver starts with about a third less
            CPU. A driver leaves it after 30 s where 256 MiB of the disk are free, unless a standby
            watches it: Java stands still for some seconds. One of another Java or Spark is
            replaced. Ask for these settings where the driver is submitted, since they depend on
            whether the file is there.
    """
    unchecked = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    shared = f" {archive_options(Path(class_archive))}" if class_archive else ""
    return {
        "spark.driver.extraJavaOptions": unchecked + shared,
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

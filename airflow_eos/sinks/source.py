"""What makes Spark faster on the way from Kafka to the sink, and what each costs."""

from __future__ import annotations

_MIB = 1024 * 1024

FAST_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Java options for ``spark.driver.extraJavaOptions`` and ``spark.executor.extraJavaOptions``.

Arrow's Java library checks the bounds of every access by default; Spark's own rows never do.
Without, rows go to the Python workers a little faster (docs/benchmarks.md). Costs no memory; an
error in Spark or Arrow would crash the process instead of raising.
"""


def tuned_source_options(*, bulk: bool = False) -> dict[str, str]:
    """Options for ``spark.readStream.format("kafka").options(**…)``: about twice the rows a second.

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

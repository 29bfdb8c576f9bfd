"""Consistent cuts, as readers use them: several outputs of a pipeline up to the same batch.

A cut is a value; each function here turns one output's place in it into what a reader needs. The
libraries of a format are imported where they are used.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.participants import module_of
from airflow_eos.core.protocol.cut import Cut, Position, later_than
from airflow_eos.errors import CheckpointError, ConfigurationError, Remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

__all__ = [
    "Cut",
    "Position",
    "as_of",
    "at",
    "condition",
    "dataset",
    "files",
    "from_event",
    "latest",
    "offsets",
    "rows",
    "spark_frame",
]

_WAIT = Remedy(change="wait until the running pipeline has settled its next batch")


# --- which cut ------------------------------------------------------------------------------------


def latest(checkpoint: str, *, storage_options: Mapping[str, str] | None = None) -> Cut:
    """Return the newest cut of a checkpoint; a damaged one is passed over, and said.

    Args:
        checkpoint: its location, a path or URL.
        storage_options: as of the query.

    Raises:
        CheckpointError: there is none: nothing was settled by a release that writes cuts.
        StoreError: the store did not answer.
    """
    store = CheckpointStore.open(checkpoint, storage_options=storage_options)
    return _newest(store, sorted(CutLog(store).listed(), reverse=True), "")


def as_of(
    checkpoint: str, time: datetime, *, storage_options: Mapping[str, str] | None = None
) -> Cut:
    """Return the newest cut that stood at ``time`` (with its zone), by the store's clock.

    Raises:
        ConfigurationError: the time has no zone.
        CheckpointError: no cut is so old, or it was removed with the decisions of its batch.
    """
    if time.tzinfo is None:
        raise ConfigurationError(f"as_of {time}: expected a time with its zone.")
    store = CheckpointStore.open(checkpoint, storage_options=storage_options)
    until = time.timestamp() * 1000
    stood = [batch for batch, at_ms in CutLog(store).listed().items() if at_ms <= until]
    return _newest(store, sorted(stood, reverse=True), f" from {time.astimezone(UTC)} or before")


def at(checkpoint: str, batch: int, *, storage_options: Mapping[str, str] | None = None) -> Cut:
    """Return the cut after ``batch``.

    Raises:
        CheckpointError: there is none (any more); see :func:`latest`.
        CheckpointFormatError: it is damaged.
    """
    store = CheckpointStore.open(checkpoint, storage_options=storage_options)
    found = CutLog(store).of_batch(batch)
    if found is None:
        raise _none(store, f" after batch {batch}")
    return found


def from_event(extra: Mapping[str, Any]) -> Cut:
    """Return the cut that an asset event of settled batches carries in its ``extra``.

    Raises:
        CheckpointError: it carries none.
    """
    try:
        return msgspec.convert(extra.get("cut"), type=Cut)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"The event {extra.get('key')} carries no cut ({error}): its batch was settled, or it "
            "was told, by a release without cuts.",
            Remedy(change="take the cut of the next event"),
        ) from error


def for_event(store: CheckpointStore, batch: int) -> dict[str, Any] | None:
    """Return the cut after ``batch`` as an event carries it; None where none can be read."""
    found = CutLog(store).whole(batch)
    return None if found is None else msgspec.to_builtins(found)


def _newest(store: CheckpointStore, batches: list[int], which: str) -> Cut:
    log = CutLog(store)
    for batch in batches:
        found = log.whole(batch)
        if found is not None:
            return found
    raise _none(store, which)


def _none(store: CheckpointStore, which: str) -> CheckpointError:
    kept = sorted(CutLog(store).listed())
    there = f"those of batches {kept[0]} to {kept[-1]} are there" if kept else "there is none"
    return CheckpointError(
        f"{store.location} has no cut{which}: {there}. A cut is written after each batch, and "
        "removed with its decision.",
        _WAIT,
    )


# --- one output of a cut --------------------------------------------------------------------------


def _place(cut: Cut, output: str, *kinds: str) -> dict[str, Any]:
    """Return the place of an output of one of ``kinds`` (none: any).

    Raises:
        ConfigurationError: the pipeline has no such output, or it is of another kind.
        CheckpointError: the output has no place in this cut.
    """
    found = cut.positions.get(output)
    if found is None or (kinds and found.kind not in kinds):
        named = ", ".join(f"{name} ({each.kind})" for name, each in cut.positions.items())
        expected = f"one of kind {' or '.join(kinds)}" if kinds else "one of these"
        raise ConfigurationError(f"Output {output!r}: expected {expected}, found {named}.")
    if not found.at:
        why = found.why or f"no row was delivered there since batch {found.since}"
        raise CheckpointError(
            f"Output {output!r} ({found.kind}) has no place in the cut of batch {cut.batch_id}: "
            f"{why}.",
            _WAIT,
        )
    return found.at


def offsets(cut: Cut, output: str, topic: str | None = None) -> dict[str, dict[int, int]]:
    """Return where a reader of Kafka stops: by topic and partition, the offset it does not read.

    Args:
        cut: the cut.
        output: the output's name.
        topic: one of its topics; None: all.

    Raises:
        CheckpointError: whether the topic has earlier rows of the pipeline is not known.
    """
    found = _place(cut, output, "kafka")
    since = cut.positions[output].since
    if topic is not None and topic not in found:
        if not since:
            return {topic: {}}
        raise CheckpointError(
            f"Output {output!r} has had no row in topic {topic!r} since batch {since}; where those "
            "before end is not known.",
            _WAIT,
        )
    return {
        name: {int(partition): end for partition, end in each["ends"].items()}
        for name, each in found.items()
        if topic in (None, name)
    }


def rows(
    cut: Cut, output: str, kafka: Mapping[str, Any], topic: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield what a ``read_committed`` reader of Kafka finds in the cut, in Arrow, by partition.

    Columns: key, value, headers, topic, partition, offset, timestamp.

    Args:
        cut: the cut.
        output: the output's name.
        kafka: a librdkafka-style configuration.
        topic: one of the output's topics; None: all.

    Raises:
        InputError: rows of the cut are gone (a topic that was made again), or garbled.
        KafkaError: the cluster refuses, or does not answer.
    """
    from airflow_eos.arrow.records.decode import tables
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.offsets import EARLIEST, positions
    from airflow_eos.kafka.client.reading import OffsetSpan, read_span
    from airflow_eos.kafka.client.settings import KafkaSettings

    ends = {
        (name, partition): end
        for name, each in offsets(cut, output, topic).items()
        for partition, end in each.items()
        if end
    }
    with closing(ConnectionPool(KafkaSettings.from_librdkafka(kafka))) as wire:
        begins = positions(wire, list(ends), EARLIEST)
        for (name, partition), end in ends.items():
            span = OffsetSpan(name, partition, begins[name, partition], end)
            for batches in read_span(wire, span):
                yield from tables(batches, span)


def files(cut: Cut, output: str, *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Return the paths, or URLs, of all files of a folder that are in the cut.

    Files of other programs are among them.
    """
    found = _place(cut, output, "files")
    names = module_of("files").names_within(found, later_than(found["stamp"]), storage_options)
    return [f"{found['folder']}/{name}" for name in names]


def condition(cut: Cut, output: str) -> str:
    """Return the SQL that is true of a row in the cut, to be used after ``WHERE``.

    It leaves out rows of later batches of this pipeline; rows of others are in the cut.
    """
    found = _place(cut, output, "postgres", "mysql")
    quote = '"' if cut.positions[output].kind == "postgres" else "`"
    column = quote + found["column"].replace(quote, 2 * quote) + quote
    later = later_than(found["stamp"])
    return f"({column} IS NULL OR {column} < {later.start} OR {column} >= {later.stop})"


def dataset(
    cut: Cut,
    output: str,
    *,
    catalog: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> Any:
    """Return files on a disk, or a table, as an Arrow dataset, which Polars and DuckDB read.

    Args:
        cut: the cut.
        output: the output's name; of kind files, delta or iceberg.
        catalog: pyiceberg's, of an Iceberg table, which is read into memory.
        storage_options: deltalake's, of a table in a bucket.
    """
    found = _place(cut, output, "files", "delta", "iceberg")
    match cut.positions[output].kind:
        case "files":
            import pyarrow.dataset as ds

            return ds.dataset(
                files(cut, output), partitioning="hive", partition_base_dir=found["folder"]
            )
        case "delta":
            from deltalake import DeltaTable

            options = dict(storage_options or {})
            table = DeltaTable(found["table"], version=found["version"], storage_options=options)
            return table.to_pyarrow_dataset()
        case _:
            table = catalog.load_table(found["table"])
            return table.scan(snapshot_id=found["snapshot"]).to_arrow()


def spark_frame(cut: Cut, output: str, spark: Any, **options: str) -> Any:
    """Return a batch DataFrame of the output, up to the cut.

    Args:
        cut: the cut.
        output: the output's name; of any kind that has a place.
        spark: the session, with the connector of the kind.
        options: of Spark's reader: ``kafka.bootstrap.servers``, ``url`` of JDBC, ….
    """
    found, kind = _place(cut, output), cut.positions[output].kind
    reader = spark.read.options(**options)
    match kind:
        case "kafka":
            ends = offsets(cut, output)
            assigned = {topic: list(partitions) for topic, partitions in ends.items()}
            reader = reader.format("kafka").option("kafka.isolation.level", "read_committed")
            reader = reader.option("assign", json.dumps(assigned))
            return reader.option("endingOffsets", json.dumps(ends)).load()
        case "files":
            paths = files(cut, output)
            form = "parquet" if not paths or paths[0].endswith(".parquet") else "json"
            return reader.option("basePath", found["folder"]).format(form).load(paths)
        case "delta":
            reader = reader.format("delta").option("versionAsOf", found["version"])
            return reader.load(found["table"])
        case "iceberg":
            reader = reader.format("iceberg").option("snapshot-id", found["snapshot"])
            return reader.load(found["table"])
        case _:
            query = f"(SELECT * FROM {found['table']} WHERE {condition(cut, output)}) AS cut"  # noqa: S608 - of the checkpoint
            return reader.format("jdbc").option("dbtable", query).load()

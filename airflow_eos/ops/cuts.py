"""Consistent cuts, as readers use them: several outputs of a pipeline up to the same batch.

Each function turns one output's place in a cut into what a reader of its kind needs.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.core.arguments import Place
from airflow_eos.core.checkpoint.cuts import CutLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.participants import module_of
from airflow_eos.core.protocol.cut import Cut, Position, later_than
from airflow_eos.errors import CheckpointError, ConfigurationError, InputError, Remedy
from airflow_eos.ops.settled import hours_reached, newest_settled

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CommonCut",
    "Cut",
    "Position",
    "as_of",
    "at",
    "condition",
    "cut_of",
    "dataset",
    "files",
    "from_event",
    "latest",
    "offsets",
    "rows",
    "spark_frame",
]

_WAIT = Remedy(change="wait until the running pipeline has settled its next batch")
_ONE_OF_THEM = Remedy(change="take one of these, where an older one was asked for")
_WHERE = Remedy(change="give the checkpointLocation of the query, where it is another one")


def latest(checkpoint: Place, *, storage_options: Mapping[str, str] | None = None) -> Cut:
    """Return the newest cut of a checkpoint (a location); a damaged one is passed over, and said.

    Raises:
        CheckpointError: there is none: nothing was settled by a release that writes cuts.
    """
    return _newest(checkpoint, storage_options, float("inf"), "")


def as_of(
    checkpoint: Place, time: datetime, *, storage_options: Mapping[str, str] | None = None
) -> Cut:
    """Return the newest cut that stood at ``time`` (with its zone), by the store's clock.

    Raises:
        ConfigurationError: the time has no zone.
        CheckpointError: no cut is so old, or it was removed with the decisions of its batch.
    """
    return _newest(checkpoint, storage_options, _seconds(time) * 1000, f" of {time} or before")


def _seconds(time: object) -> float:
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise ConfigurationError(f"as_of {time}: expected a time with its zone.")
    return time.timestamp()


def at(checkpoint: Place, batch: int, *, storage_options: Mapping[str, str] | None = None) -> Cut:
    """Return the cut after ``batch`` (CheckpointError: there is none (any more), or damaged)."""
    log = CutLog(CheckpointStore.open(checkpoint, storage_options=storage_options))
    if (found := log.of_batch(batch)) is None:
        raise _none(checkpoint, log.listed(), f" after batch {batch}")
    return found


@dataclass(frozen=True, slots=True)
class CommonCut:
    """Cuts of several pipelines, each with all rows of the same hours of event time.

    Attributes:
        until: the end of the last of these hours. A cut may have later rows, too: filter by time.
        cuts: by checkpoint, as it was asked for.
    """

    until: datetime
    cuts: Mapping[str, Cut]


def cut_of(
    checkpoints: Sequence[str],
    *,
    as_of: datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> CommonCut:
    """Return cuts of several pipelines with watermarks that have the same hours, late rows aside.

    They are those of the newest hour that is complete in each, and ends at ``as_of`` (a time of
    events, with its zone) or before; of each pipeline the first cut that has the hour, so that
    everybody who asks for it gets the same rows for as long as the cut is kept.

    Raises:
        ConfigurationError: no checkpoint is named, or the time has no zone.
        CheckpointError: a pipeline has no cut, or no hour of it is known to be complete.
    """
    if not checkpoints:
        raise ConfigurationError("cut_of: expected the checkpoints of some pipelines, found none.")
    hours = [] if as_of is None else [int(_seconds(as_of) // 3600)]
    pipelines = {}
    for each in checkpoints:
        store = CheckpointStore.open(each, storage_options=storage_options)
        newest = newest_settled(store)  # a batch gets its cut before Spark notes its watermark
        listed = sorted(CutLog(store).listed())
        if newest is None or not (batches := [batch for batch in listed if batch <= newest]):
            raise _none(each, dict.fromkeys(listed, 0), " of a settled batch")
        hours.append(_complete(store, batches[-1]))
        pipelines[each] = store, batches
    until = min(hours)
    cuts = {each: _first_with(until, *pipelines[each]) for each in pipelines}
    return CommonCut(datetime.fromtimestamp(until * 3600, UTC), cuts)


def _complete(store: CheckpointStore, batch: int) -> int:
    if hours := hours_reached(store, batch):
        return hours
    raise CheckpointError(
        f"{store.location} knows of no complete hour at batch {batch}: its query has no watermark, "
        "or has not moved it yet.",
        Remedy(change="give the query a watermark, or wait for its first hour"),
    )


def _first_with(hours: int, store: CheckpointStore, batches: Sequence[int]) -> Cut:
    """Return the first whole cut of ``batches`` that has so many hours since 1970."""
    first = bisect_left(batches, hours, key=partial(hours_reached, store))
    for cut in map(CutLog(store).whole, batches[first:]):
        if cut is not None:
            return cut
    raise _none(store.location, dict.fromkeys(batches, 0), f" from batch {batches[first]} on")


def from_event(extra: Mapping[str, Any]) -> Cut:
    """Return the cut that an asset event of settled batches carries in its ``extra``.

    Raises:
        CheckpointError: it carries none.
    """
    try:
        return msgspec.convert(extra.get("cut"), type=Cut)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"The event {extra.get('key')} carries no cut ({error}): a release without cuts has "
            "settled its batch, or told it.",
            Remedy(change="take the cut of the next event"),
        ) from error


def _newest(
    checkpoint: Place, options: Mapping[str, str] | None, until_ms: float, which: str
) -> Cut:
    log = CutLog(CheckpointStore.open(checkpoint, storage_options=options))
    listed = log.listed()
    for batch in sorted(listed, reverse=True):
        if listed[batch] <= until_ms and (found := log.whole(batch)) is not None:
            return found
    raise _none(checkpoint, listed, which)


def _none(checkpoint: Place, listed: Mapping[int, int], which: str) -> CheckpointError:
    there = f"there are batches {min(listed)} to {max(listed)}" if listed else "it has none at all"
    return CheckpointError(
        f"{checkpoint} has no whole cut{which}: {there}.", _WAIT, _ONE_OF_THEM if listed else _WHERE
    )


# --- one output of a cut --------------------------------------------------------------------------


def _position(cut: Cut, output: str, *kinds: str) -> dict[str, Any]:
    """Return the place of an output of one of ``kinds`` (none: any).

    Raises:
        ConfigurationError: the pipeline has no such output, or it is of another kind.
        CheckpointError: the output has no place in this cut.
    """
    found = cut.positions.get(output)
    if found is None or (kinds and found.kind not in kinds):
        named = ", ".join(f"{name} ({each.kind})" for name, each in cut.positions.items())
        raise ConfigurationError(
            f"Output {output!r}: expected one of kind {' or '.join(kinds) or 'any'}, found {named}."
        )
    if not found.at:
        why = found.why or f"no row was delivered there since batch {found.since}"
        raise CheckpointError(
            f"Output {output!r} ({found.kind}) has no place in cut {cut.batch_id}: {why}.", _WAIT
        )
    return found.at


def offsets(cut: Cut, output: str) -> dict[str, dict[int, int]]:
    """Return where a reader of Kafka stops: by topic and partition, the offset it does not read.

    A topic or partition that is missing has had no row of the pipeline since batch ``since``.
    """
    return {
        topic: {int(partition): end for partition, end in each["ends"].items()}
        for topic, each in _position(cut, output, "kafka").items()
    }


def rows(cut: Cut, output: str, kafka: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield what a ``read_committed`` reader of Kafka finds in the cut, by partition.

    Columns: key, value, headers, topic, partition, offset, timestamp; ``kafka`` is a
    librdkafka-style configuration.

    Raises:
        CheckpointError: a topic was made again since.
        InputError: rows of the cut are gone, or garbled.
        KafkaError: the cluster refuses, or does not answer.
    """
    from airflow_eos.arrow.records.decode import tables
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.offsets import EARLIEST, positions, topic_ids
    from airflow_eos.kafka.client.reading import OffsetSpan, read_span
    from airflow_eos.kafka.client.settings import KafkaSettings

    topics, found = offsets(cut, output), _position(cut, output, "kafka")
    ends = {(topic, each): end for topic, by in topics.items() for each, end in by.items() if end}
    with closing(ConnectionPool(KafkaSettings.from_librdkafka(kafka))) as wire:
        for topic, its in topic_ids(wire, topics).items():
            _require_same(cut, f"The topic {topic!r}", its, found[topic]["id"])
        for tp, first in positions(wire, list(ends), EARLIEST).items():
            span = OffsetSpan(*tp, first, ends[tp])
            try:
                for batches in read_span(wire, span):
                    yield from tables(batches, span)
            except InputError as error:  # retention went on; its ways out are those of a source
                what = str(error).partition(". ")[0]
                raise InputError(
                    f"{what}. Cut {cut.batch_id} cannot be read whole any more.",
                    Remedy(change="read a newer cut, within the topic's retention"),
                ) from error


def _require_same(cut: Cut, what: str, found: str, expected: str) -> None:
    """Refuse what was made again since the cut: its places mean other rows (CheckpointError)."""
    if expected and found != expected:
        raise CheckpointError(
            f"{what} was made again since cut {cut.batch_id}: its id is {found}, expected "
            f"{expected}. Rows of the cut are not there, and others were not read in their place.",
            Remedy(change="read a cut of a batch that was delivered since"),
        )


def files(cut: Cut, output: str, *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Return the paths, or URLs, of a folder's files that are in the cut; others' are, too."""
    found = _position(cut, output, "files")
    names = module_of("files").names_within(found, later_than(found["stamp"]), storage_options)
    return [f"{found['folder']}/{name}" for name in names]


def condition(cut: Cut, output: str) -> str:
    """Return the SQL that is true of a row in the cut, to be used after ``WHERE``; or of others."""
    found = _position(cut, output, "postgres", "mysql")
    quote = '"' if cut.positions[output].kind == "postgres" else "`"
    column = quote + found["column"].replace(quote, 2 * quote) + quote
    later = later_than(found["stamp"])
    return f"({column} IS NULL OR {column} < {later.start} OR {column} >= {later.stop})"


def _form(cut: Cut, output: str, paths: Sequence[str]) -> str:
    """Return the format of an output's files; CheckpointError: there are none."""
    if not paths:
        raise CheckpointError(
            f"Output {output!r} has no file in cut {cut.batch_id}: none was written yet, or all "
            "were taken away.",
            _WAIT,
        )
    return "json" if ".json" in paths[0][-10:] else "parquet"


def dataset(cut: Cut, output: str, *, catalog: Any = None, **options: str) -> Any:
    """Return files on a disk, or a table, as an Arrow dataset, which Polars and DuckDB read.

    ``catalog`` is pyiceberg's, of an Iceberg table, which is read into memory; ``options`` are
    deltalake's ``storage_options``.

    Raises:
        CheckpointError: the output has no place, or what the cut names is gone: expired, cleaned
            up, renamed or made again.
        ConfigurationError: no such output, or an Iceberg table without ``catalog``.
    """
    import pyarrow.dataset as ds

    found, kind = _position(cut, output, "files", "delta", "iceberg"), cut.positions[output].kind
    if kind == "files":
        paths, base = files(cut, output), found["folder"]
        form = _form(cut, output, paths)
        return ds.dataset(paths, format=form, partitioning="hive", partition_base_dir=base)
    if kind == "iceberg":
        return ds.dataset(_snapshot(cut, found, catalog).to_arrow())
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(found["table"], version=found["version"], storage_options=options)
    except DeltaError as error:
        raise _gone(cut, f"version {found['version']} of {found['table']}", error) from error
    _require_same(cut, f"The table {found['table']}", str(table.metadata().id), found["id"])
    return table.to_pyarrow_dataset()


def _snapshot(cut: Cut, found: Mapping[str, Any], catalog: Any) -> Any:
    """Return pyiceberg's scan of the snapshot; errors as :func:`dataset`."""
    from pyiceberg.exceptions import NoSuchTableError

    if catalog is None:
        raise ConfigurationError(
            f"Iceberg table {found['table']}: expected catalog=, as pyiceberg's load_catalog gives "
            "it, found none."
        )
    what = f"snapshot {found['snapshot']} of {found['table']}"
    try:
        table = catalog.load_table(found["table"])
    except NoSuchTableError as error:
        raise _gone(cut, what, error) from error
    if table.snapshot_by_id(found["snapshot"]) is None:
        raise _gone(cut, what, "expired, or the table was made again")
    return table.scan(snapshot_id=found["snapshot"])


def _gone(cut: Cut, what: str, why: object) -> CheckpointError:
    return CheckpointError(
        f"Cut {cut.batch_id} is at {what}, which is not there any more ({why}).",
        Remedy(change="read a newer cut, and later ones before their versions expire"),
    )


def spark_frame(cut: Cut, output: str, spark: Any, **options: str) -> Any:
    """Return a batch DataFrame of the output up to the cut, whatever its kind.

    ``options`` are those of Spark's reader, which the session must have: how Kafka is reached,
    the ``url`` of JDBC.
    """
    found, kind = _position(cut, output), cut.positions[output].kind
    reader = spark.read.format(kind).options(**options)
    match kind:
        case "kafka":
            ends = offsets(cut, output)
            assigned = json.dumps({topic: list(partitions) for topic, partitions in ends.items()})
            reader = reader.option("kafka.isolation.level", "read_committed")
            return reader.options(assign=assigned, endingOffsets=json.dumps(ends)).load()
        case "files":
            paths = files(cut, output)
            return (
                reader.format(_form(cut, output, paths))
                .option("basePath", found["folder"])
                .load(paths)
            )
        case "delta":
            return reader.option("versionAsOf", found["version"]).load(found["table"])
        case "iceberg":
            return reader.option("snapshot-id", found["snapshot"]).load(found["table"])
        case _:
            query = f"SELECT * FROM {found['table']} WHERE {condition(cut, output)}"  # noqa: S608 - of the checkpoint
            return reader.format("jdbc").option("query", query).load()

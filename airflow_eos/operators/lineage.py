"""The lineage of batches for OpenLineage: which input offsets became which output offsets.

Parsing a DAG imports this module, which therefore imports nothing that reads a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import checkpoint_of

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import PreparedWork
    from airflow_eos.core.protocol.participant import Member
    from airflow_eos.ops.settled import SettledEvent


OFFSETS = "kafkaOffsets"


class BatchLineage:
    """A base of operators: gives the topics of a task's batches as one connected graph.

    The operator has ``checkpoint_location``, ``kafka_config_id``, ``storage_conn_id`` and
    ``storage_options``. Only the OpenLineage provider calls these methods, so it is installed then.
    """

    checkpoint_location: str
    kafka_config_id: str
    storage_conn_id: str | None
    storage_options: Mapping[str, str] | None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the ``OperatorLineage`` of all batches that were settled since the task started.

        Raises:
            EosError: the checkpoint cannot be read; the provider logs it and goes on.
        """
        # Only the OpenLineage provider, a dependency of the tests alone, calls this method.
        from airflow.providers.openlineage.extractors import OperatorLineage

        store, lineage = checkpoint_of(self), Lineage((), ())
        servers = KafkaSettingsHook(self.kafka_config_id).settings().bootstrap_servers
        if events := self._batches_of(task_instance, store):
            first, last = events[0], events[-1]
            whole = msgspec.structs.replace(last, from_batch=first.from_batch, start=first.start)
            lineage = read_lineage(store, whole, servers)
        return OperatorLineage(
            inputs=[_dataset(each) for each in lineage.inputs],
            outputs=[_dataset(each) for each in lineage.outputs],
        )

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the lineage as on success: settled batches were delivered all the same."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def _batches_of(self, task_instance: Any, store: CheckpointStore) -> Sequence[SettledEvent]:
        """Return the events of batches settled since the task started: one range, or none."""
        from airflow_eos.ops.settled import events_since, read_settled

        started_ms = round(task_instance.start_date.timestamp() * 1000)
        found = read_settled(store, after=None)
        before = tuple(each for each in found.batches if each.settled_at_ms < started_ms)
        newest = before[-1].batch_id if before else None
        last = events_since(None, replace(found, newest=newest, batches=before))
        if not before and found.batches and found.batches[0].batch_id:
            found = replace(found, began={})  # the batch that the task began with is purged
        return events_since(last[-1] if last else None, found)


def _dataset(each: LineageDataset) -> Any:
    from airflow.providers.common.compat.openlineage.facet import Dataset, DatasetFacet

    facets: dict[str, Any] = {}
    if each.ranges:
        partitions = [asdict(part) for part in each.ranges]
        facets[OFFSETS] = DatasetFacet().with_additional_properties(partitions=partitions)
    if each.rows is not None:
        facets["deliveredRows"] = DatasetFacet().with_additional_properties(rowCount=each.rows)
    return Dataset(namespace=each.namespace, name=each.name, facets=facets)


# --- datasets -------------------------------------------------------------------------------------
# Spark's own OpenLineage listener sees ``foreachBatch`` as two jobs, one that reads and one that
# writes (OpenLineage 3398). The decisions know both sides of the same batch.


KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets ``start`` (included; None: not recorded) to ``end`` (excluded) of a partition.

    An output's range is from the first to the last row; others may have written in between.
    """

    partition: int
    start: int | None
    end: int


@dataclass(frozen=True, slots=True)
class LineageDataset:
    """A dataset: one topic, or another target, without ranges. ``rows`` is None if not told."""

    namespace: str
    name: str
    ranges: tuple[PartitionRange, ...] = ()
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The inputs that a range of batches has read, and the outputs that it has delivered."""

    inputs: tuple[LineageDataset, ...]
    outputs: tuple[LineageDataset, ...]


def read_lineage(store: CheckpointStore, event: SettledEvent, bootstrap_servers: str) -> Lineage:
    """Read the lineage of the event's batches; for pruned ones, the input alone.

    Where some are pruned, it is not told how many rows an output got, or where they begin.

    Args:
        event: the one whose batches are meant.
        bootstrap_servers: the cluster's; the first server is the namespace, as everywhere.

    Raises:
        CheckpointFormatError: the pipeline or a decision cannot be read.
        StoreError: the store did not answer.
    """
    from airflow_eos.core.checkpoint.backend import DECISIONS
    from airflow_eos.core.checkpoint.decisions import DecisionLog
    from airflow_eos.core.checkpoint.layout import batch_folders
    from airflow_eos.core.checkpoint.pipeline import read_pipeline
    from airflow_eos.core.protocol.promise import Promise
    from airflow_eos.errors import SupersededError

    pipeline, log = read_pipeline(store), DecisionLog(store)
    promises: list[Promise] = []
    # Those that are there: a stream of weeks has millions of batches, and decisions of a hundred.
    kept = batch_folders(store, DECISIONS)
    for batch in (each for each in kept if event.from_batch <= each <= event.to_batch):
        with suppress(SupersededError):  # its decisions are being pruned
            if (promise := Promise.of(log.of_batch(batch))) is not None:
                promises.append(promise)
    works = [work for promise in promises for work in promise.works]
    members = pipeline.participants if pipeline is not None else ()
    lineage = lineage_of(event, works, members, bootstrap_servers)
    if len(promises) == event.to_batch - event.from_batch + 1:
        return lineage
    return replace(lineage, outputs=tuple(map(_in_part, lineage.outputs)))


def _in_part(output: LineageDataset) -> LineageDataset:
    """Return an output of which some batches' decisions are gone, with what is known of it."""
    ranges = tuple(replace(each, start=None) for each in output.ranges)
    return replace(output, ranges=ranges, rows=None)


def lineage_of(
    event: SettledEvent,
    works: Iterable[PreparedWork],
    members: Iterable[Member],
    bootstrap_servers: str,
) -> Lineage:
    """Return the lineage of the event's batches by their work and the pipeline's members."""
    namespace = f"kafka://{bootstrap_servers.split(',')[0].strip()}"
    inputs = _inputs(event.start, event.end)
    outputs, rows = _outputs(works)
    others = (each for each in members if each.kind != KAFKA and rows.get(each.name))
    return Lineage(
        tuple(_topic(namespace, topic, ranges) for topic, ranges in sorted(inputs.items())),
        (
            *(_topic(namespace, topic, ranges) for topic, ranges in sorted(outputs.items())),
            *(LineageDataset(m.kind, m.target or m.name, rows=rows[m.name]) for m in others),
        ),
    )


Ranges = dict[int, PartitionRange]


def _topic(namespace: str, topic: str, ranges: Ranges) -> LineageDataset:
    return LineageDataset(namespace, topic, tuple(ranges[each] for each in sorted(ranges)))


def _inputs(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Ranges]:
    found: dict[str, Ranges] = {}
    for source, topics in end.items():
        if not isinstance(topics, Mapping):
            continue  # a source of another kind, whose offsets are its own
        began = start.get(source, {})
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                first = began.get(topic, {}).get(partition)
                number = int(partition)
                found.setdefault(topic, {})[number] = PartitionRange(number, first, offset)
    return found


def _outputs(works: Iterable[PreparedWork]) -> tuple[dict[str, Ranges], dict[str, int]]:
    """Return the ranges that were written to each topic, and each participant's promised rows."""
    found: dict[str, Ranges] = {}
    rows: dict[str, int] = {}
    for work in works:
        rows[work.participant] = rows.get(work.participant, 0) + work.rows
        for each in work.detail.get("written", ()) if work.kind == KAFKA else ():
            ranges = found.setdefault(each["topic"], {})
            number, first, end = each["partition"], each["first"], each["last"] + 1
            known = ranges.get(number)
            if known is not None:
                first, end = min(first, known.start or 0), max(end, known.end)
            ranges[number] = PartitionRange(number, first, end)
    return found, rows

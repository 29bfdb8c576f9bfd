"""What the OpenLineage provider asks an operator when its task has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.events import SettledEvent
    from airflow_eos.lineage.datasets import Lineage, LineageDataset

OFFSETS = "kafkaOffsets"


class BatchLineage:
    """For operators: input and output topics of this task's batches, as one connected graph.

    The operator has ``checkpoint_location``, ``kafka_config_id``, ``storage_conn_id`` and
    ``storage_options``. Only the provider calls this, so it is installed where it is called.
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
        store, servers = self._place()
        return _operator_lineage(_read(store, servers, self._batches_of(task_instance, store)))

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the same: what is settled was delivered, however the task ended."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def _batches_of(self, task_instance: Any, store: CheckpointStore) -> Sequence[SettledEvent]:
        return settled_since(store, round(task_instance.start_date.timestamp() * 1000))

    def _place(self) -> tuple[CheckpointStore, str]:
        from airflow_eos.hooks.kafka import KafkaSettingsHook
        from airflow_eos.hooks.store import CheckpointStoreHook

        hook = CheckpointStoreHook(self.storage_conn_id, self.storage_options)
        store = hook.open(self.checkpoint_location)
        return store, KafkaSettingsHook(self.kafka_config_id).settings().bootstrap_servers


def settled_since(store: CheckpointStore, started_ms: int) -> tuple[SettledEvent, ...]:
    """The batches settled since then, as one range, or nothing.

    Args:
        store: the checkpoint.
        started_ms: ms since the epoch.

    Raises:
        CheckpointFormatError, StoreError: the checkpoint cannot be read.
    """
    from dataclasses import replace

    from airflow_eos.events import events_since, read_settled

    found = read_settled(store, after=None)
    before = tuple(each for each in found.batches if each.settled_at_ms < started_ms)
    newest = before[-1].batch_id if before else None
    last = events_since(None, replace(found, newest=newest, batches=before))
    return events_since(last[-1] if last else None, found)


def _read(store: CheckpointStore, servers: str, events: Sequence[SettledEvent]) -> Lineage:
    from airflow_eos.lineage.datasets import Lineage, read_lineage

    if not events:
        return Lineage((), ())
    first, last = events[0], events[-1]
    whole = msgspec.structs.replace(last, from_batch=first.from_batch, start=first.start)
    return read_lineage(store, whole, servers)


def _operator_lineage(lineage: Lineage) -> Any:
    # Whoever calls this is the OpenLineage provider, a dependency of the tests alone.
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=[_dataset(each) for each in lineage.inputs],
        outputs=[_dataset(each) for each in lineage.outputs],
    )


def _dataset(each: LineageDataset) -> Any:
    from airflow.providers.common.compat.openlineage.facet import Dataset, DatasetFacet

    facets: dict[str, Any] = {}
    if each.ranges:
        partitions = [asdict(part) for part in each.ranges]
        facets[OFFSETS] = DatasetFacet().with_additional_properties(partitions=partitions)
    if each.rows is not None:
        facets["deliveredRows"] = DatasetFacet().with_additional_properties(rowCount=each.rows)
    return Dataset(namespace=each.namespace, name=each.name, facets=facets)

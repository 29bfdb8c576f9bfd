"""One connected graph from input to output topics, with the offsets of each.

The classes of the OpenLineage provider and its client, which take seconds to import, are stood for
by ones of the same fields (``openlineage.client.generated.base`` of 2026:
``Dataset(namespace, name, *, facets)``, ``DatasetFacet.with_additional_properties(**fields)``,
``OperatorLineage(inputs, outputs, run_facets, job_facets)``). The provider itself runs in
``tests/integration/airflow/test_lineage.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.providers.common.compat.openlineage import facet
from airflow.sdk import Asset

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, PipelineIdentity, claim
from airflow_eos.core.checkpoint.backend import decision_path
from airflow_eos.core.protocol.decision import PreparedWork, encode
from airflow_eos.core.protocol.participant import Member
from airflow_eos.events import events_since, read_settled
from airflow_eos.operators import EmitSettledBatchesOperator, SparkStreamingOperator
from airflow_eos.operators.lineage import BatchLineage, PartitionRange, lineage_of, read_lineage
from tests.support.pipelines import commit_of
from tests.support.settled_logs import ROWS, SettledLogs


@dataclass
class Facet:
    fields: dict[str, Any] = field(default_factory=dict)

    def with_additional_properties(self, **fields: Any) -> Facet:
        return Facet(fields)


@dataclass
class Dataset:
    namespace: str
    name: str
    facets: dict[str, Facet] = field(default_factory=dict)


@dataclass
class OperatorLineage:
    inputs: list[Dataset] = field(default_factory=list)
    outputs: list[Dataset] = field(default_factory=list)
    run_facets: dict[str, Any] = field(default_factory=dict)
    job_facets: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def provider(monkeypatch):
    package, extractors = ModuleType("openlineage"), ModuleType("extractors")
    extractors.OperatorLineage = OperatorLineage  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", package)
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", extractors)
    monkeypatch.setattr(facet, "Dataset", Dataset)
    monkeypatch.setattr(facet, "DatasetFacet", Facet)
    extra = {"bootstrap.servers": "k1:9092,k2:9092"}
    connection = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)


@pytest.fixture
def logs(tmp_path) -> SettledLogs:
    return SettledLogs(tmp_path)


def written(batch: int, topic: str = "clean", partition: int = 0) -> PreparedWork:
    ranges = [{"topic": topic, "partition": partition, "first": 20 * batch, "last": 20 * batch + 9}]
    key = f"{topic}-{partition}-{batch}"
    return PreparedWork("kafka", "sink", key, 10, "0" * 32, 0, None, {"written": ranges})


def test_ranges_of_several_batches_and_tasks_are_one_of_each_partition(logs):
    logs.settle(3)
    [event] = events_since(None, read_settled(CheckpointStore.open(logs.folder), after=None))
    works = [written(0), written(2), written(1), written(1, partition=1), written(0, "rejected")]
    lineage = lineage_of(event, works, (), "k1:9092")
    [read] = lineage.inputs
    assert (read.namespace, read.name) == ("kafka://k1:9092", "orders")
    assert read.ranges == (PartitionRange(0, 0, 3 * ROWS),)
    assert {(each.namespace, each.name): each.ranges for each in lineage.outputs} == {
        ("kafka://k1:9092", "clean"): (PartitionRange(0, 0, 50), PartitionRange(1, 20, 30)),
        ("kafka://k1:9092", "rejected"): (PartitionRange(0, 0, 10),),
    }


def test_another_kind_of_output_is_named_with_its_rows(logs):
    for batch in range(2):
        logs.decide(batch, logs.plan(batch), {"totals": 4})
        decided = logs.folder / f"eos/decisions/{batch}/1.json"
        decided.write_text(decided.read_text().replace('"kind":"kafka"', '"kind":"postgres"'))
        logs.commit(batch)
    store = CheckpointStore.open(logs.folder)
    member = Member("totals", "postgres", {"mark": "m"}, "postgres:shop totals")
    claim(
        store,
        PipelineIdentity(id="p", participants=(member,), created_at_ms=1, created_by="a test"),
    )
    [event] = events_since(None, read_settled(store, after=None))
    [output] = read_lineage(store, event, "k1:9092").outputs
    assert (output.namespace, output.name, output.rows) == ("postgres", "postgres:shop totals", 8)


def test_batches_that_are_pruned_have_their_input_still(logs):
    logs.settle(4)
    logs.purge(3)
    store = CheckpointStore.open(logs.folder)
    [event] = events_since(None, read_settled(store, after=None))
    [read] = read_lineage(store, event, "k1:9092").inputs
    assert read.ranges == (PartitionRange(0, 0, 4 * ROWS),)


def test_only_decisions_that_are_there_are_read_of_a_stream_of_weeks(logs, monkeypatch):
    logs.settle(4)
    logs.purge(3)
    asked: list[int] = []
    of_batch = DecisionLog.of_batch

    def counted(log: DecisionLog, batch: int) -> Any:
        asked.append(batch)
        return of_batch(log, batch)

    monkeypatch.setattr(DecisionLog, "of_batch", counted)
    shutil.rmtree(logs.folder / "eos/decisions/0")
    store = CheckpointStore.open(logs.folder)
    [event] = events_since(None, read_settled(store, after=None))
    asked.clear()
    read_lineage(store, msgspec.structs.replace(event, to_batch=10_000), "k1:9092")
    assert asked == [1, 2, 3]


def test_of_pruned_batches_it_is_not_told_what_an_output_got(logs):
    for batch in range(2):
        logs.decide(batch, logs.plan(batch), {"totals": 4})
        logs.commit(batch)
    works = (written(0), written(1))
    for batch, work in enumerate(works):
        decision = commit_of(batch, work, offsets=logs.plan(batch), decided_by="a test")
        (logs.folder / decision_path(batch, 1)).write_bytes(encode(decision))
    store = CheckpointStore.open(logs.folder)
    [event] = events_since(None, read_settled(store, after=None))
    [whole] = read_lineage(store, event, "k1:9092").outputs
    assert whole.ranges == (PartitionRange(0, 0, 30),)
    (logs.folder / decision_path(0, 1)).unlink()
    [part] = read_lineage(store, event, "k1:9092").outputs
    assert part.ranges == (PartitionRange(0, None, 30),)


def started(seconds_ago: float) -> SimpleNamespace:
    return SimpleNamespace(start_date=datetime.fromtimestamp(time.time() - seconds_ago, UTC))


def test_a_task_has_the_batches_that_were_settled_since_it_started(logs):
    logs.settle(5)
    long_ago = time.time() - 3600
    for batch in range(3):
        os.utime(logs.folder / f"commits/{batch}", (long_ago, long_ago))
    task = BatchLineage()
    task.checkpoint_location, task.kafka_config_id = str(logs.folder), "kafka_default"
    task.storage_conn_id = task.storage_options = None
    found = task.get_openlineage_facets_on_complete(started(60))
    [read] = found.inputs
    assert (read.namespace, read.name) == ("kafka://k1:9092", "orders")
    assert read.facets["kafkaOffsets"].fields == {
        "partitions": [{"partition": 0, "start": 3 * ROWS, "end": 5 * ROWS}]
    }
    assert task.get_openlineage_facets_on_failure(started(60)) == found
    assert task.get_openlineage_facets_on_complete(started(-60)) == OperatorLineage()


def test_a_task_that_runs_for_weeks_has_not_read_what_was_read_before_it(logs):
    """Spark has purged the batch that the task began with: where that is, is not known."""
    logs.settle(5)
    logs.purge(3)
    task = BatchLineage()
    task.checkpoint_location, task.kafka_config_id = str(logs.folder), "kafka_default"
    task.storage_conn_id = task.storage_options = None
    [read] = task.get_openlineage_facets_on_complete(started(60)).inputs
    assert read.facets["kafkaOffsets"].fields == {
        "partitions": [{"partition": 0, "start": None, "end": 5 * ROWS}]
    }


def test_an_emitter_has_the_batches_that_it_told(logs):
    """However long it waited: its start says nothing."""
    logs.settle(4)
    place = str(logs.folder)
    task = EmitSettledBatchesOperator(task_id="t", asset=Asset("a"), checkpoint_location=place)
    first, second, *_ = events_since(
        None, read_settled(CheckpointStore.open(place), after=None), each_batch=True
    )
    task._told = [first, second]
    [read] = task.get_openlineage_facets_on_complete(started(0)).inputs
    assert read.facets["kafkaOffsets"].fields == {
        "partitions": [{"partition": 0, "start": 0, "end": 2 * ROWS}]
    }


def test_a_task_tells_of_its_output_with_its_offsets_too(logs):
    decision = commit_of(0, written(0), offsets=logs.plan(0), decided_by="a test")
    logs._write(decision_path(0, 1), encode(decision).decode())
    logs.commit(0)
    task = BatchLineage()
    task.checkpoint_location, task.kafka_config_id = str(logs.folder), "kafka_default"
    task.storage_conn_id = task.storage_options = None
    [output] = task.get_openlineage_facets_on_complete(started(60)).outputs
    assert (output.namespace, output.name) == ("kafka://k1:9092", "clean")
    assert output.facets["kafkaOffsets"].fields == {
        "partitions": [{"partition": 0, "start": 0, "end": 10}]
    }


def test_our_operators_are_asked():
    for operator in (EmitSettledBatchesOperator, SparkStreamingOperator):
        assert callable(operator.get_openlineage_facets_on_complete)

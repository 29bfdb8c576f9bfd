"""A REST catalog that does not say what became of a commit, and one that renews a bucket's keys."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.kinds.iceberg.sink import IcebergSink
from airflow_eos.kinds.lake.upsert import LakeUpsert
from airflow_eos.local.broker import HOST
from tests.integration.lake.kinds import IcebergByRest, IcebergUpsertByRest, by_rest
from tests.integration.lake.stage import SCHEMA, Stage, batch
from tests.support.kinds.lake_by_hand import S3
from tests.support.pipelines import owner_at
from tests.support.servers.iceberg import EmbeddedIcebergRest
from tests.support.servers.s3 import EmbeddedS3
from tests.support.unsure_proxy import FAULTS, TWICE, UnsureProxy


class ByProxy(IcebergByRest):
    """The table is reached through a proxy by our sink, and by readers without."""

    def __init__(self, proxy: UnsureProxy) -> None:
        self.proxy = proxy

    def sink(self, folder: Path) -> IcebergSink:
        reached = by_rest(self.proxy.uri, self.server["options"])
        return IcebergSink(self.identifier(folder), reached, application_id="etl")


@pytest.fixture
def proxy(catalog: EmbeddedIcebergRest) -> Iterator[UnsureProxy]:
    with UnsureProxy(HOST, catalog.port).running() as running:
        yield running


@pytest.fixture
def stage(proxy: UnsureProxy, tmp_path: Path) -> Stage:
    return Stage(ByProxy(proxy), tmp_path).made()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_whose_answer_is_wrong_or_lost_is_there_once(
    stage: Stage, proxy: UnsureProxy, fault: str
):
    work = stage.promised(1)
    proxy.faults.append(fault)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert proxy.met == [fault]
    assert stage.values() == {1: 1}
    assert stage.kind.commits(stage.table) == 1


def test_a_file_at_once_whose_commit_is_told_as_refused_is_there_once(
    stage: Stage, proxy: UnsureProxy
):
    writer = stage.sink.opened(0, 0, transactional=False)
    writer.write(batch(1))
    proxy.faults.append(TWICE)
    writer.prepare("0" * 32)
    assert stage.values() == {1: 1}


class UpsertByProxy(IcebergUpsertByRest):
    def __init__(self, proxy: UnsureProxy) -> None:
        self.proxy = proxy

    def sink(self, folder: Path) -> IcebergSink:
        return replace(ByProxy(self.proxy).sink(folder), upsert=LakeUpsert(["key"]))


@pytest.mark.proof
@pytest.mark.parametrize("kind", [ByProxy, UpsertByProxy])
def test_of_300_commits_with_faults_none_is_there_twice_and_none_is_stuck(
    kind: Any, proxy: UnsureProxy, bucket: EmbeddedS3, catalog: EmbeddedIcebergRest, tmp_path: Path
):
    """A key comes again in each tenth batch; a driver lives for 20, the keys of a bucket for 75."""
    stage, choice = Stage(kind(proxy), tmp_path).made(), random.Random(51)
    sink = stage.sink
    for number in range(300):
        if number % 20 == 0:
            participant = stage.participant()
        if number % 75 == 60:
            vended_anew(bucket, catalog)
        work = prepared(sink, rows_of(f"k{number % 10}", number))
        participant.require_decidable([work])
        stage.decide(work, batch=number)
        proxy.faults.extend(choice.choices(FAULTS, k=choice.randrange(3)))
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
        proxy.faults.clear()
    assert set(proxy.met) == set(FAULTS)
    stay = range(300) if kind is ByProxy else range(290, 300)
    assert stage.values() == dict.fromkeys(stay, 1)
    assert stage.kind.commits(stage.table) == 300


def vended_anew(bucket: EmbeddedS3, catalog: EmbeddedIcebergRest) -> None:
    bucket.change_keys()
    told = json.loads(os.environ[S3]) | {"options": bucket.storage_options}
    os.environ[S3] = json.dumps(told)
    catalog.kill()
    catalog.start()


def test_keys_that_a_catalog_vends_anew_are_taken_by_tasks_and_by_commits(
    bucket: EmbeddedS3, catalog: EmbeddedIcebergRest, stage: Stage
):
    """As where they live for an hour: a query is planned once, and runs for days."""
    sink, participant = stage.sink, stage.participant()
    vended_anew(bucket, catalog)
    works = [prepared(sink, batch(value), task=value) for value in (1, 2)]
    assert participant.abort([works[1].identity]) == {works[1].identity: True}
    decision = stage.decide(works[0])
    participant.note(decision, owner_at("/a"))
    assert participant.commit(works[:1]) == {works[0].identity: Outcome.COMMITTED}
    assert stage.values() == {1: 1}
    assert stage.data_files() == {works[0].key}


class OnBranch(ByProxy):
    def sink(self, folder: Path) -> IcebergSink:
        return replace(super().sink(folder), branch="audit", schema_evolution="add")


@pytest.mark.parametrize("fault", FAULTS)
def test_partitions_a_former_spec_a_new_column_and_a_branch_by_rest(
    proxy: UnsureProxy, tmp_path: Path, fault: str
):
    """All that a commit may hold, as Apache's own server checks it, and its answer gets lost."""
    stage = Stage(OnBranch(proxy), tmp_path).made()
    parted(stage, "bucket[4]")
    sink, at = stage.sink, stage.table
    rows = pa.table({"key": ["a", "b", None], "value": [1, 2, 3], "later": [1.5, None, 2.5]})
    writer = sink.opened(0, 0)
    writer.write(rows.to_batches()[0])
    work = writer.prepare("0" * 32)
    assert work is not None
    stage.participant().require_decidable([work])
    stage.decide(work)
    parted(stage, "truncate[2]")
    proxy.faults.append(fault)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert proxy.met == [fault]
    with closing(stage.kind.catalog(at)) as catalog:  # type: ignore[attr-defined]
        table = catalog.load_table(stage.kind.identifier(at))  # type: ignore[attr-defined]
    assert table.scan().to_arrow().num_rows == 0, "main has none"
    audit = table.scan(snapshot_id=table.refs()["audit"].snapshot_id)
    assert audit.to_arrow().sort_by("value").to_pydict() == rows.to_pydict()
    specs = {task.file.spec_id for task in audit.plan_files()}
    assert specs == {work.detail["table"]["spec"]} != {table.spec().spec_id}


def parted(stage: Stage, how: str) -> None:
    with closing(stage.kind.catalog(stage.table)) as catalog:  # type: ignore[attr-defined]
        table = catalog.load_table(stage.kind.identifier(stage.table))  # type: ignore[attr-defined]
        with table.update_spec() as spec:
            spec.add_field("value", how)


def rows_of(key: str, value: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": [key], "value": [value]}, schema=SCHEMA)


def prepared(sink: IcebergSink, rows: pa.RecordBatch, task: int = 0) -> PreparedWork:
    writer = sink.opened(task, 0)
    writer.write(rows)
    work = writer.prepare("0" * 32)
    assert work is not None
    return work

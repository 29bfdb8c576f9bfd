"""Rows on a branch: looked at before they are published, and never without those of main."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from airflow_eos.core.protocol.cut import BatchEnd
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.iceberg.participant import connect
from airflow_eos.kinds.iceberg.sink import IcebergSink
from tests.integration.lake.kinds import Iceberg, IcebergParted
from tests.integration.lake.stage import Stage, batch
from tests.integration.lake.test_iceberg_partitions import loaded


class OnBranch(IcebergParted):
    def sink(self, folder: Path) -> IcebergSink:
        properties = self.properties(folder)
        return IcebergSink("db.rows", properties, application_id="etl", branch="audit")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(OnBranch(), tmp_path).made()


def deliver(stage: Stage, *values: int, number: int = 0) -> Any:
    work = stage.prepare(*values)
    stage.decide(work, batch=number)
    assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    return work


def of_main(stage: Stage, *values: int) -> None:
    loaded(stage).append(stage.kind.rows(stage.table).schema.empty_table())
    loaded(stage).append(pa.Table.from_batches([batch(*values)]))


def on(stage: Stage, ref: str) -> Counter[int]:
    table: Table = loaded(stage)
    named = table.snapshot_by_name(ref)
    if named is None:
        return Counter()
    return Counter(table.scan(snapshot_id=named.snapshot_id).to_arrow()["value"].to_pylist())


def test_rows_are_on_the_branch_alone_until_it_is_published(stage: Stage):
    of_main(stage, 1)
    deliver(stage, 2)
    of_main(stage, 3)
    deliver(stage, 4, number=1)
    assert on(stage, "main") == {1: 1, 3: 1}
    assert on(stage, "audit") == {1: 1, 2: 1, 4: 1}, "main's rows of its beginning, and ours"


def test_the_place_of_a_cut_is_on_the_branch(stage: Stage):
    of_main(stage, 1)
    work = stage.promised(2)
    participant = stage.participant()
    participant.commit([work])
    end = BatchEnd(0, "a" * 32, [work], None, lambda: None)
    seen = loaded(stage).scan(snapshot_id=participant.position(end)["snapshot"]).to_arrow()
    assert sorted(seen["value"].to_pylist()) == [1, 2]


def test_a_branch_that_was_published_and_dropped_begins_with_main_again(stage: Stage):
    deliver(stage, 1)
    publish(stage)
    assert on(stage, "main") == {1: 1}
    deliver(stage, 2, number=1)
    assert on(stage, "main") == {1: 1}
    assert on(stage, "audit") == {1: 1, 2: 1}


def publish(stage: Stage) -> None:
    """As fast_forward, and then the branch is dropped."""
    table = loaded(stage)
    head = table.refs()["audit"].snapshot_id
    with table.manage_snapshots() as refs:
        refs.set_current_snapshot(head).remove_branch("audit")


def test_a_table_without_rows_has_them_on_the_branch_alone(stage: Stage):
    deliver(stage, 1)
    assert on(stage, "main") == Counter()
    assert on(stage, "audit") == {1: 1}


def test_a_commit_again_and_a_recovery_elsewhere_know_the_branch(stage: Stage):
    work = deliver(stage, 1, 2)
    (member,) = stage.participant().members
    assert member.address["branch"] == "audit"
    properties = OnBranch().properties(stage.table)
    with closing(connect(member, properties, store=stage.store)) as elsewhere:
        assert elsewhere.commit([work]) == {work.identity: Outcome.COMMITTED}
        later = stage.prepare(3)
        stage.decide(later, batch=1)
        assert elsewhere.commit([later]) == {later.identity: Outcome.COMMITTED}
    assert on(stage, "main") == Counter()
    assert on(stage, "audit") == {1: 1, 2: 1, 3: 1}


def test_files_at_once_go_to_the_branch_too(stage: Stage):
    writer = stage.sink.opened(0, 0, transactional=False)
    writer.write(batch(1))
    writer.prepare("0" * 32)
    assert on(stage, "main") == Counter()
    assert on(stage, "audit") == {1: 1}


def test_a_tag_of_that_name_is_refused(stage: Stage):
    of_main(stage, 1)
    table = loaded(stage)
    head = table.metadata.current_snapshot_id
    assert head is not None
    with table.manage_snapshots() as refs:
        refs.create_tag(head, "audit")
    with pytest.raises(ConfigurationError, match="'audit' is a tag"):
        stage.participant()


def test_the_address_of_main_is_that_of_former_releases(tmp_path: Path):
    (member,) = Stage(Iceberg(), tmp_path).made().participant().members
    assert member.address.keys() == {"catalog", "table", "id", "location", "application"}

"""Where tables are after a batch; the systems themselves are in ``tests/integration/cuts``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_eos.core.protocol.cut import BatchEnd, stamp_of
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import ConfigurationError, SupersededError
from airflow_eos.kinds.lake.participant import LakeParticipant
from airflow_eos.kinds.mysql.sink import MySqlColumn
from airflow_eos.kinds.mysql.sink import check_columns as in_mysql
from airflow_eos.kinds.postgres.participant import PostgresParticipant
from airflow_eos.kinds.postgres.sink import PostgresColumn
from airflow_eos.kinds.postgres.sink import check_columns as in_postgres
from airflow_eos.kinds.sql import sink as sql

WORK = PreparedWork("any", "sink", "key", 1, "0" * 32, 0, None, {"table": "t"})


def table_at(version: int, told: tuple[int, dict[str, int]] | None = None) -> Any:
    """A participant whose table has that version now."""
    lake: Any = object.__new__(LakeParticipant)
    look = SimpleNamespace(snapshot_address={"version": version})
    lake._table = SimpleNamespace(address={"table": "t"}, look=lambda: look)
    lake._settled_at = told
    return lake


def end(*works: PreparedWork, former: Any = None, asked: Any = lambda: None) -> BatchEnd:
    return BatchEnd(5, "a" * 32, works, former, asked)


def test_a_table_is_at_the_version_that_told_the_outcome_of_this_batch() -> None:
    """Not at that of a batch before, which lacks rows of this one."""
    assert table_at(9, told=(5, {"version": 7})).position(end(WORK)) == {"table": "t", "version": 7}
    assert table_at(9, told=(4, {"version": 7})).position(end(WORK)) == {"table": "t", "version": 9}


@pytest.mark.parametrize(
    ("looked_at", "version"),
    [(4, 3), (-90, 3), (-95, 9), (None, 9)],
    ids=["just before", "lately", "long ago", "not in this run"],
)
def test_a_table_without_rows_of_ours_is_not_left_at_a_version_that_others_let_expire(
    looked_at: int | None, version: int
) -> None:
    """Compaction makes newer versions: the newest cut could not be read until a row came."""
    told = None if looked_at is None else (looked_at, {"version": 3})
    former = {"table": "t", "version": 3}
    assert table_at(9, told=told).position(end(former=former))["version"] == version


def test_a_version_counts_only_if_no_later_batch_had_begun_after_the_look() -> None:
    def over() -> None:
        raise SupersededError("batch 6 is planned")

    for told in (None, (5, {"version": 7})):
        with pytest.raises(SupersededError):
            table_at(9, told=told).position(end(WORK, asked=over))


def test_rows_without_a_column_for_their_batch_have_no_place() -> None:
    postgres: Any = object.__new__(PostgresParticipant)
    assert postgres.position(end(WORK)) is None
    marked = msgspec.structs.replace(WORK, detail={"table": "t", "batch_column": "b"})
    place = {"table": "t", "column": "b", "stamp": stamp_of("a" * 32, 5)}
    assert postgres.position(end(marked)) == place
    assert postgres.position(end(former=place)) == place
    assert postgres.position(end()) == {}, "nothing was delivered yet"


class Writer:
    def __init__(self) -> None:
        self.written: list[pa.RecordBatch] = []
        self.left: PreparedWork | None = WORK

    def write(self, rows: pa.RecordBatch) -> None:
        self.written.append(rows)

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        del fingerprint
        return self.left

    def abort(self) -> None: ...


@pytest.mark.parametrize("stamp", [stamp_of("a" * 32, 5), None])
def test_each_row_gets_the_number_of_its_batch(
    monkeypatch: pytest.MonkeyPatch, stamp: int | None
) -> None:
    """None: with a weaker guarantee, of which no cut is taken."""
    monkeypatch.setattr(sql, "running_stamp", lambda: stamp)
    inner = Writer()
    writer = sql.StampingWriter(inner, "eos_batch")
    writer.write(pa.record_batch({"a": [1, 2]}))
    assert inner.written[0].to_pydict() == {"a": [1, 2], "eos_batch": [stamp, stamp]}
    work = writer.prepare("0" * 32)
    assert work is not None
    assert work.detail == {"table": "t", "batch_column": "eos_batch"}
    inner.left = None
    assert writer.prepare("0" * 32) is None


@pytest.mark.parametrize("kind", [None, "int", "text", "numeric", "bigint unsigned", "generated"])
def test_a_column_that_cannot_hold_the_batch_is_refused_with_the_statement_that_adds_one(
    kind: str | None,
) -> None:
    """It said: drop it from the rows, which do not have it."""
    made = kind == "generated"
    postgres = [PostgresColumn("b", "int8", is_made="is generated" if made else None)]
    mysql = {"b": MySqlColumn("bigint", is_required=False, is_made=made)}
    if kind is None:
        postgres, mysql = [], {}
    elif not made:
        postgres, mysql = (
            [PostgresColumn("b", kind)],
            {"b": MySqlColumn(kind, is_required=False, is_made=False)},
        )
    asked = {"b": "bigint"}
    with pytest.raises(ConfigurationError, match=r"batch_column 'b' of table t: .*ADD COLUMN"):
        in_postgres(asked, postgres, "t", "b")
    with pytest.raises(ConfigurationError, match=r"batch_column 'b' of table t: .*ADD COLUMN"):
        in_mysql(asked, mysql, "t", "b")


def test_a_bigint_with_a_default_or_without_nulls_holds_the_batch() -> None:
    asked = {"b": "bigint"}
    in_postgres(asked, [PostgresColumn("b", "int8", is_required=True)], "t", "b")
    for kind in ("bigint", "bigint(20)"):
        in_mysql(asked, {"b": MySqlColumn(kind, is_required=True, is_made=False)}, "t", "b")

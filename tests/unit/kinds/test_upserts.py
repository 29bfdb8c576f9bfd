"""What an upsert says to a server, what it is told, and what no reader could read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.sql.servers import as_text, of_innodb, reason
from airflow_eos.kinds.texts import refuse_texts
from airflow_eos.kinds.upsert import postgres
from airflow_eos.kinds.upsert.postgres import as_array, pieces
from airflow_eos.kinds.upsert.redis import RedisUpsert
from airflow_eos.kinds.upsert.sink import UpsertSink
from airflow_eos.kinds.upsert.target import RowSchema, last_of_each, text_of


def texts(*values: bytes) -> pa.StringArray:
    """Texts of any bytes, as Spark makes them."""
    made = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(made), *made.buffers()[1:3], made.buffers()[0])


BAD = texts(b"caf\xe9")
NESTED = {
    "flat": BAD,
    "list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), BAD),
    "struct": pa.StructArray.from_arrays([BAD], ["v"]),
    "key of a map": pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), BAD, pa.array([1])),
    "value of a map": pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([1]), BAD),
}


@pytest.mark.parametrize("column", NESTED.values(), ids=NESTED)
def test_a_text_that_is_no_utf8_is_refused_wherever_it_is_nested(column: pa.Array):
    rows = pa.RecordBatch.from_arrays([pa.array([1]), column], names=["id", "v"])
    with pytest.raises(DeliveryError, match="A text in column v is not UTF-8"):
        refuse_texts(rows, "a reader")


def test_bytes_are_no_text_and_texts_of_utf8_are_taken():
    refuse_texts(
        pa.RecordBatch.from_arrays(
            [pa.array([b"caf\xe9"]), pa.array(["café"]), pa.array([[None]], pa.list_(pa.string()))],
            names=["bytes", "text", "nested"],
        ),
        "a reader",
    )


def test_an_array_of_postgres_has_every_text_as_it_was():
    given = pa.chunked_array([['a,"b"', "c\\d", None], ["NULL", "", "{}"]])
    assert as_array(given) == '{"a,\\"b\\"","c\\\\d",NULL,"NULL","","{}"}'
    assert as_array(pa.chunked_array([], pa.string())) == "{}"


def test_rows_go_in_the_order_of_the_key_whatever_order_a_task_has_them_in():
    rows = pa.table({"id": [3, 1, 2], "v": ["c", "a", "b"]})
    assert list(pieces(rows, RowSchema(("id",)))) == [(3, {"id": '{"1","2","3"}', "v": ABC})]


ABC = '{"a","b","c"}'


def test_long_texts_together_among_many_short_ones_are_sent_in_pieces_that_the_server_takes(
    monkeypatch: pytest.MonkeyPatch,
):
    # Each was tried among its like; a gigabyte in one statement is refused, after the decision.
    monkeypatch.setattr(postgres, "_BYTES", 10_000)
    rows = pa.table({"id": range(1100), "v": [*(["x"] * 1000), *(["y" * 1000] * 100)]})
    found = list(pieces(rows, RowSchema(("id",))))
    assert sum(count for count, _ in found) == rows.num_rows
    assert max(len(arrays["v"]) for _, arrays in found) < 12_000
    sent = [each for _, arrays in found for each in arrays["id"].strip("{}").split(",")]
    assert sent == [f'"{each}"' for each in range(1100)]


def test_a_column_that_was_made_shorter_refuses_a_text_and_no_cast_cuts_it():
    types = {"id": "bigint", "v": "character varying(9)", "n": "numeric(10,2)"}
    sent = postgres.upserted("t", list(types), ["id"], types)
    assert "%s::bigint[], %s::character varying[], %s::numeric[]" in sent


def test_a_row_longer_than_a_piece_is_sent_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres, "_BYTES", 10)
    rows = pa.table({"id": [1, 2, 3], "v": ["x" * 50, None, "z" * 50]})
    assert [count for count, _ in pieces(rows, RowSchema(("id",)))] == [1, 1, 1]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_a_task_may_hold_more_text_than_a_column_of_two_gigabytes(kind: pa.DataType):
    # Arrow sorts a column of the small type into one that cannot hold more, after the decision.
    v = pa.chunked_array([pa.array(["a", "b"]).cast(kind), pa.array([None]).cast(kind)])
    rows = pa.table({"id": [1, 1, 2], "v": v}).replace_schema_metadata({b"k": b"v"})
    kept = last_of_each(rows, ["id"])
    assert kept["v"].type in (pa.large_string(), pa.large_binary())
    assert kept["v"].cast(kind).to_pylist() == [pa.array(["b"]).cast(kind)[0].as_py(), None]
    assert kept.schema.metadata == {b"k": b"v"}
    assert text_of(kept["v"]).type == pa.large_binary()
    assert [count for count, _ in pieces(kept, RowSchema(("id",)))] == [2]


def test_a_setting_of_tls_is_refused_by_name_without_tls():
    with pytest.raises(ConfigurationError, match=r"settings ssl_cert_reqs.*rediss"):
        RedisUpsert("redis://host:6379/0?ssl_cert_reqs=none", "totals:")
    RedisUpsert("rediss://host:6379/0?ssl_cert_reqs=none", "totals:")


def test_a_value_longer_than_redis_takes_is_refused_before_it_is_decided():
    """Redis would close the connection over it, at each commit."""
    ends = pa.py_buffer(np.array([0, 512 << 20], np.int32))
    text = pa.StringArray.from_buffers(1, ends, pa.py_buffer(np.zeros(512 << 20, np.uint8)))
    rows = pa.RecordBatch.from_arrays([pa.array([1]), text], ["id", "v"])
    with pytest.raises(DeliveryError, match="a cell of Redis holds"):
        RedisUpsert("redis://unused", "totals:").refuse_rows(rows, ["id"])


class OperationalError(Exception):
    """As PyMySQL's, which carries a number and a text."""


class IntegrityError(Exception):
    """As PyMySQL's."""


def test_an_unknown_error_of_mysql_has_the_servers_text_without_what_it_quotes():
    said = reason(OperationalError(1173, "This table type requires a primary key"))
    assert said == "OperationalError 1173: This table type requires a primary key"
    assert reason(OperationalError(1118, "Row size too large (> 8126)")).endswith("(> 8126)")
    said = reason(OperationalError(9999, "Bad value 'it's a secret' at `x`.'hidden' there"))
    assert said == "OperationalError 9999: Bad value … there"


@pytest.mark.parametrize(
    "error", [OperationalError(1644, "a trigger says secret"), IntegrityError(1048, "secret")]
)
def test_an_error_of_rows_of_mysql_has_no_text_since_it_holds_values(error: Exception):
    assert "secret" not in reason(error)


def test_snapshot_isolation_is_switched_off_where_a_server_knows_it_and_nowhere_else():
    assert of_innodb({"innodb_snapshot_isolation": "ON"}) == [
        "SET SESSION innodb_snapshot_isolation = OFF"
    ]
    assert of_innodb({"read_only": "OFF"}) == []


@pytest.mark.parametrize(
    "setting", ["decode_responses=True", "encoding=latin-1", "single_connection_client=1", "odd="]
)
def test_a_setting_of_a_redis_url_that_changes_what_is_read_is_refused_by_its_name(setting: str):
    with pytest.raises(ConfigurationError, match=setting.partition("=")[0]):
        RedisUpsert(f"redis://localhost:6379?{setting}", "t:")
    RedisUpsert("redis://localhost:6379?protocol=3&db=2&client_name=eos", "t:")


def test_no_value_of_a_setting_of_redis_is_told():
    with pytest.raises(ConfigurationError, match="tiemout") as refused:
        RedisUpsert("redis://localhost:6379?tiemout=hush", "t:")
    assert "hush" not in str(refused.value)


def test_a_question_mark_in_a_password_of_redis_shows_nothing_of_it():
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        RedisUpsert("redis://:my?hunter2@localhost:6379/0", "t:")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("system", ["redis", "hbase"])
def test_a_part_of_a_connection_that_nobody_knows_is_refused_by_its_name(system: str):
    with pytest.raises(ConfigurationError, match="decode_responses"):
        as_text(system, {"url": "redis://localhost", "decode_responses": "True"})


class Full:
    """A target that takes columns and values, and says only when rows are tried that it is full."""

    def refuse_rows(self, rows: pa.RecordBatch, key: tuple[str, ...]) -> None:
        """Refuse nothing."""

    def with_limits(self) -> Full:
        return self

    def open(self, *, timeout_s: float) -> Full:
        assert timeout_s
        return self

    def tried(self, rows: pa.Table, about: RowSchema) -> None:
        raise DeliveryError(f"full: {rows.to_pylist()} by {about}")

    def close(self) -> None:
        """Close nothing."""


def test_a_task_tries_its_rows_before_it_keeps_them(tmp_path, monkeypatch):
    """Of a key that comes twice the last row is tried, which is the one that is written."""
    monkeypatch.setattr("airflow_eos.kinds.spill.task.running_batch", lambda: 7)
    full: Any = Full()
    sink = UpsertSink(full, ["id"]).bound(CheckpointStore.open(tmp_path / "checkpoint"))
    rows = pa.RecordBatch.from_pydict({"id": [1, 1], "v": ["a", "b"]})
    with pytest.raises(DeliveryError, match=r"full: \[{'id': 1, 'v': 'b'}\] by key id"):
        sink.opened(0, 0).write(rows)
    sink.opened(0, 0, transactional=False).write(rows)  # its tasks write to the target themselves

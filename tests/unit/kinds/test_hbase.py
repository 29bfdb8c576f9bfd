"""Rows as cells of HBase, and what of them is refused: without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.errors import ConfigurationError, DeliveryError, OwnershipError
from airflow_eos.kinds.spill.participant import new_key
from airflow_eos.kinds.upsert import hbase as hbase_cells
from airflow_eos.kinds.upsert.hbase import (
    LAST_EPOCH,
    NEWEST,
    Answer,
    HBaseUpsert,
    epoch_in,
    refuse_schema,
    requests_of,
    version_of,
)
from airflow_eos.kinds.upsert.target import RowSchema, batch_and_task, order_of

LONG_MAX = 2**63 - 1  # HBase writes its own clock instead
NOW_MS = 4_102_444_800_000  # the year 2100
URL = "http://127.0.0.1:1"


def number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where the next byte is."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data: bytes) -> list[tuple[int, Any]]:
    """A message of Protocol Buffers, read field by field as its specification says."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        value, at = number(data, at)
        if tag & 7 == 2:
            found.append((tag >> 3, data[at : at + value]))
            assert len(found[-1][1]) == value
            at += value
        else:
            found.append((tag >> 3, value))
    return found


def cells(bodies: list[pa.Buffer]) -> dict[bytes, dict[bytes, tuple[int, bytes]]]:
    rows = {}
    for body in bodies:
        for kind, row in fields(body.to_pybytes()):
            assert kind == 1
            (_, key), *values = fields(row)
            each = [dict(fields(cell)) for _, cell in values]
            rows[key] = {cell[2]: (cell[3], cell[4]) for cell in each}
    return rows


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_values_of_any_length_are_framed_as_they_are(length: int):
    rows = pa.table({"id": ["a", "b"], "value": [b"x" * length, b"y"]})
    version = version_of(1, 2, 3)
    found = cells(list(requests_of(rows, RowSchema(("id",)), "f", version)))
    assert found == {
        b"a": {b"f:value": (version, b"x" * length), b"f:_eos": (version, b"[]")},
        b"b": {b"f:value": (version, b"y"), b"f:_eos": (version, b"[]")},
    }


def test_requests_have_whole_rows_and_some_megabytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hbase_cells, "_REQUEST", 1000)
    monkeypatch.setattr(hbase_cells, "_ROWS", 7)
    rows = pa.table({"id": range(30), "value": ["x" * (n * 60) for n in range(30)]}).slice(1)
    bodies = list(requests_of(rows, RowSchema(("id",)), "f", 1))
    assert set(cells(bodies)) == {str(n).encode() for n in range(1, 30)}
    assert len(bodies) > 20
    assert all(len(cells([body])) == 1 for body in bodies if body.size > 1000)


def test_a_deleted_row_keeps_its_flag_alone():
    rows = pa.table({"id": ["a", "b"], "value": [1, 2], "gone": [True, None]})
    found = cells(list(requests_of(rows, RowSchema(("id",), "gone"), "f", 5)))
    assert found[b"a"] == {
        b"f:value": (5, b""),
        b"f:gone": (5, b"true"),
        b"f:_eos": (5, b'["value"]'),
    }
    assert found[b"b"][b"f:gone"] == (5, b"false")


def test_rows_of_keys_alone_have_a_cell_too():
    found = cells(list(requests_of(pa.table({"id": [b"a"]}), RowSchema(("id",)), "f", 5)))
    assert found == {b"a": {b"f:_eos": (5, b"[]")}}


def test_versions_sort_by_epoch_then_batch_then_task_between_any_clock_and_the_greatest():
    ordered = [
        (1, 0, 0),
        (1, 0, 1),
        (1, 0, (1 << 20) - 1),
        (1, 1, 0),
        (1, (1 << 31) - 1, (1 << 20) - 1),
        (2, 0, 0),
        (LAST_EPOCH, (1 << 31) - 1, (1 << 20) - 1),
    ]
    versions = [version_of(*each) for each in ordered]
    assert versions == sorted(set(versions))
    assert versions[0] > NOW_MS * 500
    assert versions[-1] < NEWEST < LONG_MAX
    assert [epoch_in(each) for each in versions] == [epoch for epoch, _, _ in ordered]


@pytest.mark.parametrize("beyond", [(LAST_EPOCH + 1, 0, 0), (1, 1 << 31, 0), (1, 0, 1 << 20)])
def test_what_no_timestamp_holds_is_refused_and_never_wraps(beyond: tuple[int, int, int]):
    with pytest.raises(DeliveryError, match="Nothing of it was written"):
        version_of(*beyond)


def test_the_order_of_a_work_is_told_as_numbers():
    assert batch_and_task(order_of(new_key(12, 3, 1))) == (12, 3)
    assert batch_and_task(order_of(new_key(10**10, 123_456, 0))) == (10**10, 123_456)


def described(**changes: Any) -> dict[str, Any]:
    family = {"name": "f", "TTL": "2147483647", "VERSIONS": "1"}
    return {"name": "t", "ColumnSchema": [{**family, **changes.pop("family", {})}], **changes}


def test_a_table_as_hbase_makes_it_is_taken():
    refuse_schema("t", "f", described())
    refuse_schema("t", "f", described(DURABILITY="SYNC_WAL", READONLY="false"))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "no table 't'.*create 't', 'f'"),
        (described(family={"name": "g"}), "no column family 'f': it has g"),
        (described(family={"TTL": "60"}), "TTL of 60 s"),
        (described(DURABILITY="SKIP_WAL"), "durability SKIP_WAL"),
        (described(READONLY="true"), "is read-only"),
    ],
)
def test_a_table_that_could_forget_is_refused(schema: dict[str, Any] | None, said: str):
    with pytest.raises(ConfigurationError, match=said):
        refuse_schema("t", "f", schema)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("", "x", "is empty or longer"),
        ("k" * 32_768, "x", "is empty or longer than 32767"),
        ("k", "x" * (10 << 20), "more than the .* that a cell of HBase"),
        ("k" * 32_767, "x", None),
    ],
    ids=["empty", "long", "large", "longest"],
)
def test_what_no_row_can_hold_is_refused_before_it_is_decided(key: str, value: str, said):
    rows = pa.RecordBatch.from_pydict({"id": [key], "value": [value]})
    target = HBaseUpsert(URL, "t/f")
    if said is None:
        target.refuse_rows(rows, ("id",))
        return
    with pytest.raises(DeliveryError, match=said):
        target.refuse_rows(rows, ("id",))


def test_columns_that_cannot_go_there_are_refused_by_name():
    target = HBaseUpsert(URL, "t/f")
    target.refuse({"id": "int", "price": "decimal(5,2)"}, ("id",), None)
    for columns in ({"id": "int", "tags": "array<string>"}, {"id": "int", "_eos": "string"}):
        with pytest.raises(ConfigurationError, match="cannot go to HBase"):
            target.refuse(columns, ("id",), None)


@pytest.mark.parametrize(
    "target", ["totals", "totals/", "/f", "a:b:c/f", "totals/f/g", "to tals/f"]
)
def test_a_target_without_its_family_is_refused(target: str):
    with pytest.raises(ConfigurationError, match="expected a table and a column family"):
        HBaseUpsert(URL, target)


@pytest.mark.parametrize(
    "url", ["host:8080", "ftp://u:hunter2@h", "http://u:hunter2@h:x", "http://"]
)
def test_a_url_that_is_none_is_refused_and_its_password_told_to_nobody(url: str):
    assert "hunter2" not in repr(HBaseUpsert(url, "t/f"))
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        HBaseUpsert(url, "t/f").open(timeout_s=1)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_server_that_is_not_there_is_named_and_no_password():
    with pytest.raises(DeliveryError, match="refused or did not answer") as refused:
        HBaseUpsert("http://u:hunter2@127.0.0.1:1", "t/f").open(timeout_s=1).check()
    assert "hunter2" not in str(refused.value)


PAGES = [b"<!DOCTYPE html><title>Log in</title>", b'{"error": "log in"}', b"[" * 100_000]
FOREIGN = r"200 with \d+ bytes that HBase's REST server does not send"


@pytest.mark.parametrize("page", [*PAGES, b"", b"\xff"], ids=len)
def test_a_page_that_a_proxy_sends_in_the_place_of_an_answer_is_an_error_of_ours(page: bytes):
    target: Any = HBaseUpsert(URL, "t/f").open(timeout_s=1)
    target._http._ask = lambda *_: Answer(200, page)
    for ask in (target.check, target.instance_id, lambda: target._http.newest_since("t", "f", 1)):
        with pytest.raises(DeliveryError, match=FOREIGN):
            ask()


@pytest.mark.parametrize("page", PAGES, ids=len)
def test_rows_that_a_proxy_has_taken_for_a_page_of_its_own_are_not_written(page: bytes):
    """HBase says nothing beside a success: rows were called delivered that nobody had written."""
    rest: Any = HBaseUpsert(URL, "t/f").open(timeout_s=1)._http
    writes = (
        lambda: rest.put_all("t", pa.py_buffer(b"rows")),
        lambda: rest.put("t", "k", "f:a", 1),
        lambda: rest.swap("t", "k", {"f:a": b"1"}, "f:a", b""),
        lambda: rest.create("t", "f"),
    )
    for write in writes:
        rest._ask = lambda *_: Answer(200, page)
        with pytest.raises(DeliveryError, match=FOREIGN):
            write()
        rest._ask = lambda *_: Answer(200, b"")
        assert write() in {None, True}
    rest._ask = lambda *_: Answer(304, b"")
    assert rest.swap("t", "k", {"f:a": b"1"}, "f:a", b"") is False
    with pytest.raises(DeliveryError, match="while writing rows to t: 304"):
        rest.put_all("t", pa.py_buffer(b"rows"))


@pytest.mark.parametrize("stands", [b"mine", b'{"owner": 7}', b"[" * 100_000], ids=len)
def test_an_owner_that_no_parser_reads_is_nobodys_guess(stands: bytes):
    target: Any = HBaseUpsert(URL, "t/f").open(timeout_s=1)
    target._http = SimpleNamespace(row=lambda *_: {"m:owner": stands})
    with pytest.raises(OwnershipError, match="cannot be read") as refused:
        target._owned()
    assert "put 'airflow_eos_upserts', 't:f', 'm:owner', ''" in str(refused.value)


def test_of_an_answer_the_exceptions_are_told_and_no_row():
    body = (
        b"Unavailable\r\norg.apache.hadoop.hbase.client.RetriesExhaustedException: row 'private'\n"
        b"\tat org.apache.hadoop.hbase.client.HTable.put(HTable.java:586)\n"
        b"Caused by: org.apache.hadoop.hbase.exceptions.FailedSanityCheckException: private"
    )
    told = Answer(503, body).thrown
    assert told == "503, RetriesExhaustedException, FailedSanityCheckException"

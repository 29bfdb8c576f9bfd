"""Upserts into a real HBase: the hazards of ``test_redis.py``, and those of its own.

Rows are read as HBase's REST server gives them, or by HBase's own client in Java.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import ConfigurationError, DeliveryError, OwnershipError, StoreError
from airflow_eos.kinds.upsert.hbase import NEWEST, HBaseUpsert, version_of
from airflow_eos.kinds.upsert.participant import UpsertParticipant, connect, made
from airflow_eos.kinds.upsert.target import RowSchema
from airflow_eos.local.jars import java_program
from tests.integration.kept.keeping import decided, keep
from tests.integration.kept.table import Again
from tests.support.pipelines import owner_at, require_at
from tests.support.servers.hbase import EmbeddedHBase

pytestmark = [pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(600)]

COMPACT = Path(__file__).parents[2] / "java" / "CompactTable.java"
OURS = "airflow_eos_upserts"


class Base:
    """Tables as a client that is not ours sees them."""

    def __init__(self, server: EmbeddedHBase) -> None:
        self.server = server
        self.url = server.url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        asked = urllib.request.Request(
            f"{self.url}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def create(self, table: str, *, family: dict[str, str] | None = None, **table_has: str) -> None:
        schema = {"name": table, **table_has, "ColumnSchema": [{"name": "f", **(family or {})}]}
        self.ask("PUT", f"{table}/schema", schema)

    def put(self, table: str, row: str, column: str, value: bytes, at: int | None = None) -> None:
        cell: dict[str, Any] = {"column": b64(column.encode()), "$": b64(value)}
        if at is not None:
            cell["timestamp"] = at
        self.ask("PUT", f"{table}/row", {"Row": [{"key": b64(row.encode()), "Cell": [cell]}]})

    def delete(self, path: str) -> None:
        self.ask("DELETE", path)

    def rows(self, table: str) -> dict[str, dict[str, bytes]]:
        found = self.ask("GET", f"{table}/*")["Row"]
        return {
            base64.b64decode(row["key"]).decode(): {
                base64.b64decode(cell["column"]).decode()[2:]: base64.b64decode(cell["$"])
                for cell in row["Cell"]
            }
            for row in found
        }

    def wait(self, *tables: str) -> None:
        """Until their regions are served again."""
        deadline = time.monotonic() + 300
        for table in tables:
            while True:
                try:
                    self.rows(table)
                    break
                except urllib.error.HTTPError:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)

    def compacted(self, table: str) -> dict[str, dict[str, bytes]]:
        """The table after a major compaction of what is in memory and in files."""
        ran = subprocess.run(
            [java_program(), "-cp", self.server.class_path, str(COMPACT), table],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        found: dict[str, dict[str, bytes]] = {}
        for line in ran.stdout.splitlines():
            row, column, _, _, value = line.split(" ")
            cells = found.setdefault(base64.b64decode(row[1:]).decode(), {})
            cells[base64.b64decode(column[1:]).decode()] = base64.b64decode(value[1:])
        return found


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedHBase]:
    with EmbeddedHBase() as server:
        yield server


@pytest.fixture
def base(server: EmbeddedHBase) -> Base:
    return Base(server)


@pytest.fixture
def table(base: Base) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    base.create(name)
    return name


def opened(
    base: Base, store: CheckpointStore, table: str, name: str = "totals"
) -> UpsertParticipant:
    return made(store, name, HBaseUpsert(base.url, f"{table}/f").open(timeout_s=30))


@pytest.fixture
def again(base: Base, table: str) -> Again:
    return partial(opened, base, table=table)


def prepare(
    store: CheckpointStore, batch: int, task: int = 0, *, deleted: str | None = None, **rows: Any
) -> PreparedWork:
    """``rows``: the value of each key, in their order; where ``deleted`` is said, None deletes."""
    columns: dict[str, Any] = {"id": list(rows), "value": list(rows.values())}
    if deleted:
        columns[deleted] = [value is None for value in rows.values()]
    table = pa.table(columns).replace_schema_metadata(RowSchema(("id",), deleted).metadata())
    return keep(store, table, kind="upsert", name="totals", batch=batch, task=task)


def values(rows: dict[str, dict[str, bytes]]) -> dict[str, str]:
    """Of the rows that are not deleted."""
    return {
        key: cells["value"].decode()
        for key, cells in rows.items()
        if cells.get("gone", b"false") == b"false"
    }


def test_nothing_is_written_before_the_commit_and_all_of_it_after(upsert, store, base, table):
    work = prepare(store, 0, a=1, b=2)
    assert base.rows(table) == {}
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert base.rows(table) == {
        "a": {"value": b"1", "_eos": b"[]"},
        "b": {"value": b"2", "_eos": b"[]"},
    }


def test_a_late_driver_never_puts_an_older_value_over_a_newer_one(upsert, store, base, table):
    older, newer = prepare(store, 9, a=1, b=1), prepare(store, 10, a=2)
    upsert.commit([newer])
    assert opened(base, store, table).commit([older]) == {older.identity: Outcome.COMMITTED}
    assert values(base.rows(table)) == {"a": "2", "b": "1"}
    assert values(base.compacted(table)) == {"a": "2", "b": "1"}


def test_a_null_hides_an_older_value_also_after_a_major_compaction(upsert, store, base, table):
    """HBase's own delete would be gone by then, and the late value would come back."""
    late = prepare(store, 5, a="late")
    upsert.commit([prepare(store, 4, a="old")])
    upsert.commit([prepare(store, 6, a=None)])
    null = {"a": {"value": b"", "_eos": b'["value"]'}}
    assert base.rows(table) == null
    assert base.compacted(table) == null
    upsert.commit([late])
    assert base.rows(table) == null


def test_a_delete_leaves_a_tombstone_that_no_late_row_brings_back(upsert, store, base, table):
    late = prepare(store, 5, deleted="gone", a=1, b=1)
    upsert.commit([prepare(store, 4, deleted="gone", a=1)])
    upsert.commit([prepare(store, 6, deleted="gone", a=None, b=2)])
    tombstone = {"value": b"", "gone": b"true", "_eos": b'["value"]'}
    assert base.rows(table)["a"] == tombstone
    assert base.compacted(table)["a"] == tombstone
    upsert.commit([late])
    assert base.rows(table)["a"] == tombstone
    assert values(base.rows(table)) == {"b": "2"}
    upsert.commit([prepare(store, 7, deleted="gone", a=3)])
    assert values(base.rows(table)) == {"a": "3", "b": "2"}


def test_hbases_own_delete_would_not_keep_a_late_row_out(base, table):
    """Why none is used: the trap itself, with HBase's own delete at the newest version."""
    base.put(table, "a", "f:value", b"old", 4)
    base.delete(f"{table}/a/f:value/6")
    base.put(table, "a", "f:value", b"late", 5)
    assert base.rows(table) == {}
    assert base.compacted(table) == {}
    base.put(table, "a", "f:value", b"late", 5)
    assert base.rows(table) == {"a": {"value": b"late"}}


def test_repeating_a_commit_that_was_cut_short_is_harmless(upsert, base, store, table):
    """Killed after it was applied and before its mark."""
    work = prepare(store, 0, a=1, b=2)
    stream = upsert._kept.read(work.key)
    upsert.commit([work])
    (Path(store.location) / upsert._kept._marker_path("done", work.key)).unlink()
    upsert._kept.store.create(upsert._kept._rows(work.key), stream)
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    before = base.ask("GET", f"{table}/*")
    assert opened(base, store, table).commit([work]) == {work.identity: Outcome.COMMITTED}
    assert base.ask("GET", f"{table}/*") == before


def test_a_key_twice_in_a_batch_has_the_last_row_of_the_highest_task(upsert, store, base, table):
    """In whatever order the works are applied."""
    first, second = prepare(store, 0, 9, a=1), prepare(store, 0, 10, a=2)
    upsert.commit([second, first])
    assert values(base.rows(table)) == {"a": "2"}


def test_what_stood_there_with_the_time_of_a_clock_is_replaced(upsert, store, base, table):
    base.put(table, "a", "f:value", b"x")
    upsert.commit([prepare(store, 0, a=1)])
    assert values(base.rows(table)) == {"a": "1"}


def test_values_are_text_as_arrow_writes_them_and_bytes_as_they_are(upsert, store, base, table):
    rows = pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "part": ["a:b"],
            "text": ["é\n"],
            "bytes": pa.array([b"\xff\x00+"], pa.binary()),
            "flag": [True],
            "money": [decimal.Decimal("1.50")],
            "day": [dt.date(2026, 1, 2)],
            'em"pty,]': [""],
            "none": pa.array([None], pa.string()),
            'no"ne,]': pa.array([None], pa.float64()),
            "long": ["x" * 100_000],
        }
    ).replace_schema_metadata(RowSchema(("id", "part")).metadata())
    upsert.commit([keep(store, rows, kind="upsert", name="totals")])
    (cells,) = base.rows(table).values()
    assert list(base.rows(table)) == ["7:a%3Ab"]
    assert json.loads(cells.pop("_eos")) == ["none", 'no"ne,]']
    assert cells == {
        "text": "é\n".encode(),
        "bytes": b"\xff\x00+",
        "flag": b"true",
        "money": b"1.50",
        "day": b"2026-01-02",
        'em"pty,]': b"",
        "none": b"",
        'no"ne,]': b"",
        "long": b"x" * 100_000,
    }


def test_more_rows_than_a_request_takes(upsert, store, base, table):
    rows: dict[str, Any] = {f"k{n}": "x" * (n % 2000) for n in range(9001)}
    upsert.commit([prepare(store, 0, **rows)])
    assert values(base.rows(table)) == rows


@pytest.mark.parametrize("killed", ["hbase", "gateway"])
def test_killed_and_started_again_it_has_what_was_committed(
    upsert, base, server, store, table, killed
):
    upsert.commit([prepare(store, 0, a=1, b=1)])
    work = prepare(store, 1, a=2)
    (server if killed == "hbase" else server.gateway).kill()
    with pytest.raises(DeliveryError, match=r"refused or did not answer while .*harmless"):
        upsert.commit([work])
    server.start()
    base.wait(OURS, table)
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert values(base.rows(table)) == {"a": "2", "b": "1"}


def test_an_hbase_that_lost_its_data_is_never_taken_for_the_same(upsert, store, base, table):
    member, work = upsert.members[0], prepare(store, 0, a=1)
    base.delete(f"{OURS}/{table}:f")
    with pytest.raises(OwnershipError, match=r"belongs to nobody.*restore it"):
        upsert.commit([work])
    with pytest.raises(StoreError, match="its mark is missing"):
        connect(member, base.url, store=store, timeout_s=30)
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}


def test_a_target_has_one_writer(upsert, base, store, table, tmp_path):
    require_at(upsert, store.location)
    other = CheckpointStore.open(tmp_path / "other")
    theirs = opened(base, other, table)
    theirs.claim(owner_at(other.location))
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint .*Put 'airflow_eos_up"):
        require_at(theirs, other.location)
    sibling = opened(base, store, table, "counts")
    sibling.claim(owner_at(store.location))
    with pytest.raises(OwnershipError, match="another output of this one"):
        require_at(sibling, store.location)


def test_an_older_copy_of_the_checkpoint_is_refused(upsert, store):
    upsert.note(decided(7), owner_at("/a"))
    upsert.note(decided(3, "c"), owner_at("/a"))
    require_at(upsert, store.location, 7, b7=(decided(7),))
    with pytest.raises(OwnershipError, match="decision of batch 7"):
        require_at(upsert, store.location, 6)


def test_a_new_checkpoint_has_a_greater_epoch_and_the_former_one_writes_nothing_more(
    upsert, base, store, table, tmp_path
):
    """Its batches begin at 0 again, and a driver of the former one may still be asleep."""
    upsert.commit([prepare(store, 500, a="old")])
    looked = upsert._target._owned()
    said = upsert._target.give_up.partition(" (in")[0].removeprefix("put ").replace("'", "")
    ours, row, column, nothing = said.split(", ")
    assert (ours, nothing) == (OURS, "")
    base.put(ours, row, column, b"")
    fresh = CheckpointStore.open(tmp_path / "fresh")
    theirs = opened(base, fresh, table)
    theirs.claim(owner_at(fresh.location))
    theirs.commit([prepare(fresh, 0, a="new")])
    assert values(base.rows(table)) == {"a": "new"}
    with pytest.raises(OwnershipError, match="Nothing was written"):
        upsert.commit([prepare(store, 501, a="late")])
    with pytest.raises(OwnershipError):
        upsert.note(decided(501), owner_at("/a"))
    upsert._target._owned_by = lambda _: looked  # and slept
    upsert.commit([prepare(store, 502, a="later")])
    assert values(base.rows(table)) == {"a": "new"}


def test_of_two_that_claim_at_once_one_has_it_and_no_epoch_is_given_twice(
    upsert, base, store, table, tmp_path, monkeypatch
):
    """One is asleep between its look and its claim; the other one has it, and gives it up."""
    slow, fast = (opened(base, CheckpointStore.open(tmp_path / each), table) for each in "ab")
    base.put(OURS, f"{table}:f", "m:owner", b"")
    target: Any = slow._target
    next_epoch = target._next_epoch

    def asleep(last: int) -> Any:
        found = next_epoch(last)
        fast.claim(owner_at("/fast"))
        assert fast._target.owner().epoch == found == 2
        base.put(OURS, f"{table}:f", "m:owner", b"")
        return found

    monkeypatch.setattr(target, "_next_epoch", asleep)
    slow.claim(owner_at("/slow"))
    assert target.owner() is None
    monkeypatch.undo()
    slow.claim(owner_at("/slow"))
    assert target.owner().epoch == 3


def test_a_server_that_lets_nobody_write_is_named_before_the_first_row(base, server, store, table):
    site = Path(server.class_path.partition(os.pathsep)[0]) / "hbase-site.xml"
    text = site.read_text()
    allowed = "</configuration>"
    forbidden = f"<property><name>hbase.rest.readonly</name><value>true</value></property>{allowed}"
    try:
        for each, said in ((text.replace(allowed, forbidden), "writing to t.*: 403"), (text, None)):
            server.gateway.kill()
            site.write_text(each)
            server.start()
            if said is not None:
                with pytest.raises(DeliveryError, match=said):
                    opened(base, store, table)
    finally:
        site.write_text(text)
    opened(base, store, table)


def test_a_server_that_refuses_timestamps_of_the_future_is_refused_before_the_first_row(store):
    slop = "hbase.hregion.keyvalue.timestamp.slop.millisecs"
    with EmbeddedHBase({slop: "3600000"}) as server:
        base = Base(server)
        base.create("t")
        with pytest.raises(DeliveryError, match="FailedSanityCheckException"):
            opened(base, store, "t")


def test_the_epoch_is_greater_also_where_our_row_was_removed(upsert, base, store, table):
    upsert.commit([prepare(store, 500, a="old")])
    base.delete(f"{OURS}/{table}:f")
    again = opened(base, store, table)
    again.claim(owner_at(store.location))
    again.commit([prepare(store, 0, a="new")])
    assert values(base.rows(table)) == {"a": "new"}


def test_a_table_of_others_with_greater_timestamps_gets_a_greater_epoch_or_is_refused(
    base, store, table
):
    base.put(table, "a", "f:value", b"x", version_of(700, 1, 1))
    upsert = opened(base, store, table)
    upsert.claim(owner_at(store.location))
    upsert.commit([prepare(store, 0, a="new")])
    assert values(base.rows(table)) == {"a": "new"}
    base.create(f"{table}x")
    base.put(f"{table}x", "a", "f:value", b"x", NEWEST)
    beyond = opened(base, store, f"{table}x", "beyond")
    with pytest.raises(DeliveryError, match="timestamps above every version"):
        beyond.claim(owner_at(store.location))


@pytest.mark.parametrize(
    ("family", "table_has", "said"),
    [
        ({"TTL": "86400"}, {}, r"has a TTL of 86400 s on f.*TTL => 'FOREVER'"),
        ({}, {"DURABILITY": "ASYNC_WAL"}, r"durability ASYNC_WAL.*SYNC_WAL"),
        ({}, {"DURABILITY": "SKIP_WAL"}, r"durability SKIP_WAL"),
        ({}, {"READONLY": "true"}, r"is read-only.*READONLY => 'false'"),
    ],
)
def test_a_table_that_could_forget_rows_is_refused(base, store, table, family, table_has, said):
    base.create(f"{table}x", family=family, **table_has)
    with pytest.raises(ConfigurationError, match=said):
        opened(base, store, f"{table}x")


@pytest.mark.parametrize(
    "family",
    [
        {"VERSIONS": "5", "MIN_VERSIONS": "0"},
        {"KEEP_DELETED_CELLS": "TRUE"},
        {"NEW_VERSION_BEHAVIOR": "true"},
        {"IN_MEMORY_COMPACTION": "EAGER"},
    ],
    ids=str,
)
def test_with_other_settings_of_versions_the_newest_is_seen_all_the_same(
    base, store, table, family
):
    base.create(f"{table}x", family=family)
    upsert = opened(base, store, f"{table}x")
    upsert.claim(owner_at(store.location))
    older, newer = prepare(store, 9, a=1, b=1), prepare(store, 10, a=2)
    upsert.commit([newer])
    upsert.commit([older])
    assert values(base.rows(f"{table}x")) == {"a": "2", "b": "1"}


def test_a_table_or_a_family_that_is_not_there_is_named_with_what_to_do(base, store, table):
    with pytest.raises(ConfigurationError, match=r"no table 'nowhere'.*create 'nowhere', 'f'"):
        opened(base, store, "nowhere")
    with pytest.raises(ConfigurationError, match=r"no column family 'g': it has f.*alter '"):
        made(store, "totals", HBaseUpsert(base.url, f"{table}/g").open(timeout_s=30))


def test_recovery_reaches_it_by_its_name_and_a_url(upsert, store, base, table):
    work = prepare(store, 0, a=1)
    member = upsert.members[0]
    assert "hbase" in str(member)
    with pytest.raises(ConfigurationError, match=rf"Which hbase holds '{table}/f'.*'http://"):
        connect(member, None, store=store, timeout_s=30)
    reached = connect(member, {"url": base.url}, store=store, timeout_s=30)
    assert reached.members == upsert.members
    assert reached.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert values(base.rows(table)) == {"a": "1"}


def test_a_target_that_was_set_back_counts_to_less_and_never_up_to_what_it_lost(base, server):
    """As a snapshot of our table that is put back does it: the older number stands again."""
    base.create("counts")
    target = HBaseUpsert(server.url, "counts/f").open(timeout_s=30)
    target.check()
    assert target.tally() == 0
    assert [target.count(known) for known in (0, 1, 2)] == [1, 2, 3]
    base.put(OURS, "counts:f", "m:tally", b"1")
    assert target.tally() == 1
    assert target.count(3) is None
    assert target.tally() == 1
    assert target.go_on(3).startswith(f"put '{OURS}', 'counts:f', 'm:tally', '3' and put")
    target.close()

"""What is missing of a promise, and which work of a delivered batch readers have."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.core.delivery import rehearsal
from airflow_eos.core.delivery.port import TaskReport
from airflow_eos.core.delivery.replay import undelivered_tasks
from airflow_eos.core.delivery.task import HASH_COLUMN, Fingerprint
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.core.protocol.promise import Promise, combined
from airflow_eos.kafka.transactions.identity import OffsetRange
from airflow_eos.kinds.upsert.target import RowSchema
from airflow_eos.sinks import FileSink, KafkaSink, MySqlSink, PostgresUpsert, UpsertSink
from tests.unit.core.recovery.facts_of import commit, prepared


def report(task: int, rows: int, content: str) -> TaskReport:
    return TaskReport(task, rows, content)


def delivered(rows: int, content: str, task: int = 0) -> PreparedWork:
    return PreparedWork("fake", "sink", f"p-{task}-0", rows, content, 0, 1, {})


def test_tasks_are_paired_by_content_whatever_their_numbers():
    tasks = [report(0, 2, "b"), report(1, 5, "a"), report(2, 0, "-")]
    assert undelivered_tasks(tasks, [delivered(5, "a", task=0)]) == [0]


def test_equal_contents_pair_one_to_one():
    tasks = [report(0, 2, "a"), report(1, 2, "a")]
    assert undelivered_tasks(tasks, [delivered(2, "a")]) == [1]


def test_the_same_hash_with_another_row_count_does_not_pair():
    assert undelivered_tasks([report(0, 2, "a")], [delivered(3, "a")]) is None


def test_what_was_delivered_under_another_cut_cannot_be_paired():
    assert undelivered_tasks([report(0, 3, "ab")], [delivered(2, "a")]) is None


def hashed(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({HASH_COLUMN: np.array(values, dtype=np.int64)})


def fingerprint(*batches: pa.RecordBatch) -> str:
    running = Fingerprint()
    for batch in batches:
        running.add(batch)
    return running.hex()


def test_a_fingerprint_knows_no_order_and_no_batch_borders():
    assert fingerprint(hashed(1, 2), hashed(3)) == fingerprint(hashed(3, 2, 1))


def test_a_fingerprint_tells_hashes_with_the_same_sum_apart():
    assert fingerprint(hashed(1, 4)) != fingerprint(hashed(2, 3))


def test_a_fingerprint_counts_repeated_rows():
    assert fingerprint(hashed(5)) != fingerprint(hashed(5, 5))


def test_fingerprints_of_tasks_add_up_to_that_of_the_batch_across_overflow():
    big = 2**63 - 1
    whole = fingerprint(hashed(big, big, -1, 7))
    assert combined([fingerprint(hashed(big, 7)), fingerprint(hashed(-1, big))]) == whole


# --- Which work of a delivered batch readers have, and whether rows would go where they went ------


A, B = (prepared(n, content=c, rows=r) for n, c, r in ((0, "a1", 60), (1, "b2", 40)))


def again(work: PreparedWork) -> PreparedWork:
    return msgspec.structs.replace(work, key=work.key.rsplit("-", 1)[0] + "-1")


def promise(*decisions: tuple[PreparedWork, ...]) -> Promise:
    made = Promise.of([commit(*works, attempt=n) for n, works in enumerate(decisions, 1)])
    assert made is not None
    return made


def test_of_a_batch_that_was_never_lost_readers_have_all_work():
    assert rehearsal.delivered(promise((A, B))) == (A, B)


def test_a_piece_that_was_lost_is_read_where_it_was_written_again():
    assert rehearsal.delivered(promise((A, B), (again(B),))) == (A, again(B))


def test_where_decisions_do_not_tell_which_piece_was_lost_nothing_is_read():
    stranger = prepared(7, epoch=1, rows=30, content="77")
    assert rehearsal.delivered(promise((A, B), (stranger,))) is None


@pytest.mark.parametrize(
    ("columns", "said"), [(["key", "value"], "would go to orders.v2"), (["value", "topic"], "")]
)
def test_rows_that_name_no_topic_go_where_the_sink_says(columns, said):
    sink = KafkaSink("h:1", "orders.v2", "p")
    place = msgspec.to_builtins(OffsetRange("orders", 0, 1, 9))
    work = msgspec.structs.replace(A, detail={"written": [place]})
    assert said in sink.elsewhere([work], columns)
    assert bool(sink.elsewhere([work], columns)) == bool(said)
    same = KafkaSink("h:1", "orders", "p")
    assert same.elsewhere([work], columns) == ""


def test_rows_of_another_table_of_the_same_name_of_a_pipeline_go_elsewhere():
    work = msgspec.structs.replace(A, detail={"table": "orders"})
    sink = MySqlSink("mysql://h/d", "orders_v2", "p")
    assert "are in table orders, and would go to orders_v2" in sink.elsewhere([work], ["id"])
    assert MySqlSink("mysql://h/d", "orders", "p").elsewhere([work], ["id"]) == ""


@pytest.mark.parametrize(("key", "deleted"), [(["id", "day"], "gone"), (["id"], None)])
def test_rows_of_another_key_or_that_delete_nothing_change_other_rows(key, deleted):
    """They are the same rows, and readers have others in the end."""
    work = msgspec.structs.replace(A, detail={"bytes": 7} | RowSchema(("id",), "gone").metadata())
    target = PostgresUpsert("postgresql://h/d", "totals")
    assert UpsertSink(target, ["id"], deleted="gone").elsewhere([work], ["id"]) == ""
    said = UpsertSink(target, key, deleted=deleted).elsewhere([work], ["id"])
    assert "by another key, or deletes by another column, than key id" in said


def test_rows_that_would_go_into_other_folders_are_read_as_other_ones():
    """A column of a file is text; one of the name of a folder is whatever it looks like."""
    flat, by_day = ({"partitions": {each: 4}} for each in ("", "d%3Ay=2026-11-26/shop=a"))
    for detail, partition_by in ((flat, ()), (by_day, ("d:y", "shop"))):
        work = msgspec.structs.replace(A, detail=detail)
        assert FileSink("/f", partition_by=partition_by).elsewhere([work], ["id"]) == ""
        said = FileSink("/f", partition_by=("shop",)).elsewhere([work], ["id"])
        assert said.endswith("and would be by shop")

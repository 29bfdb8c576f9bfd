"""What was left open is ended without a batch: a source may be silent for days, readers wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from airflow_eos.delivery.task import SinkTask, TaskOutput
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.producer import writer as writer_module
from airflow_eos.kafka.producer.writer import TransactionalWriter
from airflow_eos.kafka.transactions.identity import transactional_id_of
from tests.integration.hazards.direct import Direct, arrow


def straggle(direct: Direct) -> None:
    """What a task of a lost executor leaves: rows, acknowledged, and nobody to end them."""
    with ConnectionPool(direct.settings) as wire:
        writer = TransactionalWriter(wire, topic=direct.topic)
        writer.begin(transactional_id_of(direct.prefix, 7, 0), 60_000)
        writer.write(pa.record_batch({"value": pa.array([b"straggler"])}))
        assert writer.prepare() is not None


def test_a_start_ends_what_lost_tasks_left_open_before_there_is_a_batch(direct: Direct) -> None:
    direct.feed_numbers(30)
    direct.run()
    straggle(direct)
    assert direct.open_transactions() == [transactional_id_of(direct.prefix, 7, 0)]
    with direct.started():
        assert direct.open_transactions() == []
    direct.assert_exactly_once()


def test_a_start_commits_what_was_promised_before_the_batch_comes_again(
    direct: Direct, die_at: Callable[[str], None]
) -> None:
    direct.feed_numbers(30)
    die_at("decided")
    with pytest.raises(RuntimeError, match="decided"):
        direct.run()
    die_at("")
    assert direct.visible() == []
    with direct.started():
        assert len(direct.visible()) == 30
    direct.run()
    direct.assert_exactly_once()


def test_a_task_that_fails_after_it_wrote_leaves_nothing_open(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs it again under another id; nothing would end the first one before the decision."""
    monkeypatch.setattr(writer_module, "GATHER_BYTES", 1)
    monkeypatch.setattr(writer_module, "GATHER_BYTES_A_PARTITION", 0)

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield arrow([("key", f"{number}")])
        assert direct.open_transactions() != [], "it has written"
        raise RuntimeError("the source fails")

    with pytest.raises(RuntimeError, match="the source fails"):
        SinkTask((TaskOutput(direct.sink.name, direct.sink.opened),)).run(0, 0, rows())
    assert direct.open_transactions() == []


def test_two_attempts_of_a_task_do_not_fence_each_other(direct: Direct) -> None:
    """A speculative copy may be late; the id of the one that is kept must stay its own."""
    task = SinkTask((TaskOutput(direct.sink.name, direct.sink.opened),))
    [kept] = task.run(0, 1, iter([arrow([("key", "kept")])]))
    task.run(0, 0, iter([arrow([("key", "late")])]))
    assert kept.work is not None
    assert len(direct.open_transactions()) == 2

"""What was left open is ended without a batch, and a kept promise asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_eos.arrow.producer import writer as writer_module
from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.core.checkpoint.rulings import Ruling
from airflow_eos.core.delivery.replay import ReplayChecks
from airflow_eos.core.delivery.task import SinkTask, TaskOutput
from airflow_eos.core.protocol.decision import Decision, Outcome, encode
from airflow_eos.core.recovery.execute import participant_of
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.transactions.identity import transactional_id_of
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import plan_recovery, resolve
from tests.integration.hazards.direct import Direct, Frame, arrow


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


@pytest.mark.long
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
        # Another thread sends them, with a later row where the id was still being asked for.
        for number in range(5000):
            yield arrow([("key", f"{number}")])
            if direct.open_transactions():
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


# --- Nothing owed: a kept promise asks nobody, replays nothing and reads nothing again ------------


Die = Callable[[str], None]


def dies(pipeline: Direct, die_at: Die, place: str) -> None:
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")


def lose_what_is_open(pipeline: Direct) -> None:
    """As their timeout would, which takes seconds."""
    with closing(participant_of(pipeline.store, pipeline.settings)) as participant:
        participant.abort([each.identity for each in participant.open()])


def retention_passes(pipeline: Direct, newest: Decision) -> None:
    """Over all of the output that was written before ``newest``, and none of its own."""
    before: dict[int, int] = {}
    for work in newest.works:
        for at in work.detail["written"]:
            place: Any = at["partition"]
            before[place] = min(at["first"], before.get(place, 1 << 60))
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    wanted = [TopicPartition(pipeline.topic, p, first) for p, first in before.items()]
    for answer in admin.delete_records(wanted).values():
        answer.result(30)


def commits(pipeline: Direct) -> list[Decision]:
    return [each for each in pipeline.decisions.of_batch(0) if each.works]


@pytest.fixture
def replayed(direct: Direct, die_at: Die) -> Direct:
    """Decided and settled in part, the rest lost and replayed; what was first written is gone."""
    direct.feed_numbers(300)
    dies(direct, die_at, "settled-some")
    lose_what_is_open(direct)
    dies(direct, die_at, "settled")
    assert len(direct.visible()) == 300
    retention_passes(direct, commits(direct)[-1])
    return direct


@pytest.mark.long
def test_a_replay_that_is_delivered_owes_nothing_whatever_retention_took(replayed: Direct) -> None:
    assert plan_recovery(str(replayed.checkpoint), replayed.settings).steps == ()
    there = sorted(replayed.visible())
    replayed.run()
    assert sorted(replayed.visible()) == there
    assert len(commits(replayed)) == 2
    assert replayed.open_transactions() == []


@pytest.mark.long
@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ABORTED])
def test_a_ruling_that_stands_from_before_makes_nothing_more_known_than_was_promised(
    replayed: Direct, outcome: Outcome
) -> None:
    for work in commits(replayed)[0].works:
        ruling = Ruling(
            work=work.identity, outcome=outcome, ruled_by="ann", ruled_at_ms=1, nonce="0" * 32
        )
        replayed.store.create(f"eos/rulings/{work.key}.json", encode(ruling))
    replayed.run()
    assert len(commits(replayed)) == 2


@pytest.mark.long
def test_a_ruling_that_contradicts_what_is_proven_is_refused_with_what_is_proven(
    replayed: Direct,
) -> None:
    first, again = commits(replayed)
    lost = {work.content for work in again.works}
    for work in first.works:
        opposite = Outcome.COMMITTED if work.content in lost else Outcome.ABORTED
        with pytest.raises(ConfigurationError, match="is proven, by a later COMMIT") as refused:
            resolve(replayed.store, work.identity, opposite)
        assert [each.start for each in refused.value.remedies] == [True]
    assert replayed.store.list("eos/rulings") == []
    replayed.run()


@pytest.mark.long
def test_where_the_replay_is_lost_in_part_too_only_that_is_replayed(
    direct: Direct, die_at: Die
) -> None:
    direct.feed_numbers(300)
    dies(direct, die_at, "decided")
    lose_what_is_open(direct)
    dies(direct, die_at, "decided")  # a replay of all, of which one piece is seen
    with closing(participant_of(direct.store, direct.settings)) as participant:
        participant.commit(commits(direct)[-1].works[:1])
    lose_what_is_open(direct)
    there = len(direct.visible())
    assert 0 < there < 300
    direct.run()
    assert len(commits(direct)) == 3
    assert sum(work.rows for work in commits(direct)[-1].works) == 300 - there
    direct.assert_exactly_once()


def test_a_kept_promise_without_state_is_not_evaluated_again(
    direct: Direct, die_at: Die, kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """The input may be past retention by then, for Spark's source and for ours alike."""
    del kafka_broker, tmp_path
    direct.feed_numbers(300)
    dies(direct, die_at, "settled")

    class Gone(Frame):
        def persist(self, _level: Any) -> Frame:
            raise AssertionError("read again")

        @property
        def tasks(self) -> Any:
            raise AssertionError("read again")

        @tasks.setter
        def tasks(self, _rows: Any) -> None: ...

    whole, direct.batches[0] = direct.batches[0], Gone([])
    with direct.started() as batch:
        batch._reading = ReplayChecks(state=lambda: ())
        direct.deliver(batch, 0)
    direct.batches[0] = whole
    direct.assert_exactly_once()

"""Nothing owed: a kept promise asks nobody, replays nothing and reads nothing again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_eos.checkpoint.rulings import Ruling
from airflow_eos.delivery.replay import Reading
from airflow_eos.errors import ConfigurationError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.protocol.decision import Decision, Outcome, encode
from airflow_eos.recovery import plan_recovery, resolve
from airflow_eos.recovery.execute import participant_of
from tests.integration.hazards.direct import Direct, Frame

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


def test_a_replay_that_is_delivered_owes_nothing_whatever_retention_took(replayed: Direct) -> None:
    assert plan_recovery(str(replayed.checkpoint), replayed.settings).steps == ()
    there = sorted(replayed.visible())
    replayed.run()
    assert sorted(replayed.visible()) == there
    assert len(commits(replayed)) == 2
    assert replayed.open_transactions() == []


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
        batch._reading = Reading(state=lambda: ())
        direct.deliver(batch, 0)
    direct.batches[0] = whole
    direct.assert_exactly_once()

"""The table of evidence, a case for each row."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, write_heartbeat
from airflow_eos.core.checkpoint.progress import CheckpointState, SourceProgress
from airflow_eos.errors import TopicError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.ops.supervision import progress
from airflow_eos.ops.supervision.progress import (
    Health,
    ProgressJudge,
    ProgressReading,
    confirm_after_ms,
    judge,
)
from tests.support.beats import heartbeat

NOW = 10_000_000
MAX_AGE = 60_000
OLD, YOUNG = NOW - 600_000, NOW - 1_000


def state(committed=OLD, in_flight=None, planned=OLD) -> CheckpointState:
    return CheckpointState(
        query_id="q",
        latest_offsets=7 if in_flight is None else in_flight,
        latest_commit=7,
        in_flight=in_flight,
        committed_at_ms=committed,
        planned_at_ms=planned,
        sources=(),
    )


def beat(phase="waiting", at=YOUNG, started=0, trigger_ms=10_000) -> Heartbeat:
    told = {"beat_at_ms": at, "trigger_ms": trigger_ms, "started_at_ms": started}
    return heartbeat(phase, host="h", **told)


def seen(state_=None, heartbeat=None, unread=None, *, alive=True) -> ProgressReading:
    return ProgressReading(state_ or state(), heartbeat, unread, NOW, alive)


@pytest.mark.parametrize(
    ("observation", "health", "reason"),
    [
        (seen(state(committed=YOUNG), beat()), Health.FRESH, "batch 7 was committed 1 second ago"),
        (seen(state(committed=YOUNG)), Health.STALLED, "no driver has ever written a heartbeat"),
        (seen(), Health.STALLED, "no driver has ever written a heartbeat"),
        (
            seen(heartbeat=beat("stopped"), unread=0),
            Health.STALLED,
            "batch 7 is its last: the driver stopped",
        ),
        (seen(heartbeat=beat("failed"), unread=0), Health.STALLED, "the driver failed"),
        (
            seen(heartbeat=beat("waiting"), unread=0, alive=False),
            Health.STALLED,
            "app-1 on h has fallen silent in phase 'waiting'",
        ),
        (
            seen(state(committed=YOUNG), beat(), alive=None),
            Health.UNKNOWN,
            "whether driver app-1 is alive shows at a second look",
        ),
        (
            seen(heartbeat=beat("starting", started=YOUNG - 1_000), unread=9),
            Health.WORKING,
            "started 1 second ago",
        ),
        (
            seen(state(in_flight=8, planned=YOUNG), beat("preparing")),
            Health.WORKING,
            "batch 8 is in flight for 1 second, phase 'preparing'",
        ),
        (
            seen(state(in_flight=8), beat("settling")),
            Health.STALLED,
            "batch 8 is in flight for 10 minutes, phase 'settling'",
        ),
        (
            seen(heartbeat=beat(), unread=0),
            Health.IDLE,
            "no commit for 10 minutes, with nothing to read",
        ),
        (seen(heartbeat=beat(), unread=None), Health.IDLE, "with nothing in flight"),
        (seen(heartbeat=beat(), unread=3), Health.SUSPECT, "although 3 offsets are unread"),
        (
            seen(heartbeat=beat(trigger_ms=600_000), unread=3),
            Health.WORKING,
            "no commit for 10 minutes: by its trigger no batch is overdue",
        ),
        (seen(state(committed=None), beat(started=YOUNG - 1_000)), Health.WORKING, "started"),
        (seen(state(committed=None), None), Health.STALLED, "no batch was ever committed"),
    ],
)
def test_the_table(observation, health, reason):
    found = judge(observation, max_age_ms=MAX_AGE)
    assert found.health is health
    assert reason in found.reason


def test_a_suspicion_that_still_stands_is_a_stall():
    again = seen(heartbeat=beat(), unread=3)
    assert judge(again, max_age_ms=MAX_AGE, earlier=again).health is Health.STALLED


def test_the_first_row_after_a_quiet_night_is_no_stall():
    first = seen(heartbeat=beat(), unread=3)
    planned = seen(state(in_flight=8, planned=YOUNG), beat("preparing"), unread=None)
    assert judge(planned, max_age_ms=MAX_AGE, earlier=first).health is Health.WORKING


def test_a_driver_that_lets_its_trigger_pass_is_suspected():
    late = seen(heartbeat=beat(trigger_ms=590_000), unread=3)
    assert judge(late, max_age_ms=MAX_AGE).health is Health.SUSPECT


def test_a_suspicion_is_looked_at_again_after_more_than_a_trigger_interval():
    assert confirm_after_ms(seen(heartbeat=beat())) > 10_000


@pytest.mark.parametrize("skew_ms", [-600_000, -7_000, 7_000, 600_000])
@pytest.mark.parametrize("alive", [True, False, None])
def test_a_drivers_clock_that_is_wrong_changes_no_answer(skew_ms, alive):
    """Seven seconds, and a healthy pipeline was stalled; ten minutes, and a dead one was alive."""

    def found(by_ms: int) -> tuple[Health, str]:
        told = beat(at=YOUNG + by_ms, started=OLD + by_ms)
        answer = judge(seen(heartbeat=told, unread=0, alive=alive), max_age_ms=MAX_AGE)
        return answer.health, answer.reason

    assert found(skew_ms) == found(0)


SETTINGS = KafkaSettings.from_librdkafka({"bootstrap.servers": "none:1"})


def reads_up_to(monkeypatch, stable: int, written: int) -> None:
    """Of one partition: what has ended, and all that is there."""

    def positions(_wire: Any, places: Any, _when: int, *, committed_only: bool = True) -> Any:
        return dict.fromkeys(places, stable if committed_only else written)

    monkeypatch.setattr(progress, "ConnectionPool", lambda _: nullcontext())
    monkeypatch.setattr(progress, "partitions_of", lambda _wire, topics: [(t, 0) for t in topics])
    monkeypatch.setattr(progress, "positions", positions)


def unread_of(monkeypatch, stable: int, written: int) -> int | None:
    """How much is unread of one partition, read up to offset 5."""
    reads_up_to(monkeypatch, stable, written)
    return progress.unread_offsets(
        SETTINGS, [SourceProgress(0, "kafka", None, {"in": {0: 5}}, "-")]
    )


@pytest.mark.parametrize(
    ("stable", "written", "unread"),
    [(9, 9, 4), (5, 9, 0), (3, 9, 0), (3, 5, 0)],
    ids=["some", "none that has ended", "it reads what is open", "and all of it"],
)
def test_what_is_unread_is_counted_to_the_last_stable_offset(monkeypatch, stable, written, unread):
    assert unread_of(monkeypatch, stable, written) == unread


@pytest.mark.parametrize(
    ("began", "end", "health"),
    [
        (b'v1\n{"in":{"0":5}}', 9, Health.STALLED),
        (b'v1\n{"in":{"0":5}}', 5, Health.IDLE),
        (None, 9, Health.IDLE),
    ],
    ids=["its first plan hangs", "it waits for its first row", "of a source that does not tell"],
)
def test_a_driver_that_has_planned_no_batch_has_nothing_to_read_only_where_that_is_seen(
    tmp_path, monkeypatch, began, end, health
):
    store = CheckpointStore.open(tmp_path)
    write_heartbeat(store, beat(at=OLD, started=0))
    if began is not None:
        store.put("sources/0/0", began)
    monkeypatch.setattr(progress, "signs_of_life", lambda _: ("it beats",))
    reads_up_to(monkeypatch, end, end)
    looks = ProgressJudge(str(tmp_path), MAX_AGE)
    first = looks.look(SETTINGS, {})
    assert judge(looks.look(SETTINGS, {}), max_age_ms=MAX_AGE, earlier=first).health is health


def test_a_topic_that_ends_before_what_was_read_of_it_has_not_nothing_unread(monkeypatch):
    """It was made again: the query stands, and its sensor said that all was read."""
    with pytest.raises(TopicError, match="is not known") as refused:
        unread_of(monkeypatch, 2, 4)
    assert refused.value.remedies

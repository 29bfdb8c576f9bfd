"""The sensors: what they fire for, what they wait for, and what ends them, here or deferred."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.sdk import DAG, BaseSensorOperator, Connection, PokeReturnValue

from airflow_eos import errors
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.spark_log import UnknownVersionError
from airflow_eos.core.protocol.decision import OpenWork
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, KafkaUnavailableError
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kinds.sql.participant import LostError
from airflow_eos.ops.blocked import Blocked
from airflow_eos.ops.supervision import progress as watch
from airflow_eos.ops.supervision.progress import SeenOpen
from airflow_eos.sensors import (
    BlockedTopicSensor,
    CheckpointProgressSensor,
    TransactionTimeoutSensor,
)
from airflow_eos.triggers.polling import BlockedTopicTrigger
from tests.support.clocks import clock_of


@pytest.fixture
def lives(checkpoint) -> dict[str, bool]:
    """Whether the driver goes on while somebody looks."""
    return {"driver": True}


@pytest.fixture
def sensor(checkpoint, monkeypatch, lives):
    clock_of(monkeypatch, "airflow_eos.sensors.progress", sleep=lambda _: None)
    clock = iter(range(1_000_000))

    def signs(store):
        def sleep(_: float) -> None:
            if lives["driver"]:
                checkpoint.goes_on()

        return signs_of_life(store, sleep=sleep, clock=lambda: float(next(clock)))

    monkeypatch.setattr(watch, "signs_of_life", signs)

    def make(unread=0, **arguments):
        answers = list(unread) if isinstance(unread, list) else None
        monkeypatch.setattr(
            watch, "unread_offsets", lambda *_: answers.pop(0) if answers else unread
        )
        return CheckpointProgressSensor(
            **{
                "task_id": "progress",
                "checkpoint_location": checkpoint.location,
                "max_age": timedelta(seconds=60),
                **arguments,
            }
        )

    return make


def test_a_fresh_commit_is_progress(sensor, checkpoint):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    found = sensor().poke({})
    assert found.is_done
    assert (found.xcom_value["batch_id"], found.xcom_value["health"]) == (4, "fresh")
    json.dumps(found.xcom_value)


@pytest.mark.parametrize("age", [600, 7, 0, -600])
def test_an_idle_topic_is_not_a_stall(sensor, checkpoint, age):
    """However late or early the clock of its driver is."""
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat(age=age, started=age + 3600)
    assert sensor(unread=0).poke({}).xcom_value["health"] == "idle"


def test_rows_that_nobody_reads_are_a_stall_with_the_reason(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat()
    with pytest.raises(AirflowFailException, match=r"no commit for 1 hour, although 5 offsets"):
        sensor(unread=5).poke({})


def test_rows_that_are_read_by_the_second_look_are_no_stall(sensor, checkpoint, monkeypatch):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.beat()
    task = sensor(unread=[5])
    clock_of(monkeypatch, "airflow_eos.sensors.progress", sleep=lambda _: checkpoint.commit(5, 105))
    assert task.poke({}).xcom_value["batch_id"] == 5


@pytest.mark.parametrize("age", [600, 0, -600], ids=["its clock is late", "right", "ahead"])
def test_a_dead_driver_is_a_stall_whatever_its_clock_says(sensor, checkpoint, lives, age):
    lives["driver"] = False
    checkpoint.commit(4, 100)
    checkpoint.beat(age=age)
    with pytest.raises(AirflowFailException, match=r"batch 4 is its last: .* has fallen silent"):
        sensor(unread=0).poke({})


def test_a_batch_that_never_ends_is_a_stall(sensor, checkpoint):
    checkpoint.commit(4, 100, age=3600)
    checkpoint.plan(5, 200, age=3500)
    checkpoint.beat("settling")
    with pytest.raises(AirflowFailException, match="in flight for 58 minutes 20 seconds"):
        sensor().poke({})


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_stall_is_a_skip_with_soft_fail(sensor, checkpoint, deferrable):
    """Also at the look before it defers: later in the triggerer the same stall is one."""
    checkpoint.commit(4, 100, age=3600)
    with pytest.raises(AirflowSkipException):
        sensor(soft_fail=True, deferrable=deferrable).execute({})


@pytest.mark.parametrize(
    ("target", "age", "done"),
    [
        *(({"batch_id": 3}, 0, True), ({"batch_id": 4}, 0, True), ({"batch_id": "4"}, 0, True)),
        *(({"batch_id": 5}, 0, False), ({"batch_id": 5}, 3600, False)),  # also on an idle topic
        *(({"since_batch": 3}, 0, True), ({"since_batch": 4}, 0, False)),
        ({"since_batch": 4}, 3600, True),  # no progress is fine on an idle topic
    ],
)
def test_a_batch_or_progress_since_one_is_waited_for(sensor, checkpoint, target, age, done):
    checkpoint.commit(4, 100, age=age)
    checkpoint.beat()
    assert sensor(**target).poke({}).is_done is done


@pytest.mark.parametrize(("minutes", "done"), [(-10, True), (10, False)])
def test_progress_since_a_time(sensor, checkpoint, minutes, done):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    since = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
    assert sensor(since=since).poke({}).is_done is done


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def test_a_time_means_the_same_moment_in_every_zone(sensor, zone):
    moment = pendulum.datetime(2026, 11, 22, 6).in_timezone(zone)
    forms = (moment, str(moment), moment.to_iso8601_string())  # a template gives the second
    assert [sensor(since=each)._watch().since_ms for each in forms] == [1_795_327_200_000] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_id": 1, "since_batch": 1}, "not several"),
        ({"since": "2026-01-01T00:00:00"}, "no time zone"),
        ({"since": "2026-01-01"}, "no time zone"),
        ({"since": "P1D"}, "no time zone"),
        ({"since": "yesterday"}, "is no time"),
    ],
)
def test_targets_that_cannot_work_fail_without_retry(sensor, arguments, message):
    with pytest.raises(AirflowFailException, match=message):
        sensor(**arguments).poke({})


def test_a_half_written_checkpoint_is_an_error_and_never_a_verdict(sensor, checkpoint):
    checkpoint.commit(4, 100)
    (checkpoint.folder / "offsets" / "4").write_text("v1\n{")
    with pytest.raises(Exception, match="offsets/4"):
        sensor().poke({})


def test_the_sensor_times_out(sensor, checkpoint):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    with pytest.raises(Exception, match="timed out"):
        sensor(batch_id=5, timeout=0, poke_interval=0).execute({})


def test_deferred_it_carries_the_connections_name_and_not_its_secrets(sensor, checkpoint):
    checkpoint.commit(4, 100)
    checkpoint.beat()
    with pytest.raises(TaskDeferred) as deferred:
        sensor(batch_id=5, deferrable=True, timeout=90).execute({})
    _, arguments = deferred.value.trigger.serialize()
    assert arguments["kafka_config_id"] == "kafka_default"
    assert "hunter" not in repr(arguments)
    assert deferred.value.timeout == timedelta(seconds=90)
    assert deferred.value.method_name == "execute_complete"


def test_a_target_that_is_reached_is_not_deferred(sensor, checkpoint):
    checkpoint.commit(4, 100)
    assert sensor(batch_id=4, deferrable=True).execute({})["batch_id"] == 4


def test_the_triggers_answer_is_taken(sensor):
    assert sensor().execute_complete({}, {"error": None, "value": {"batch_id": 5}}) == {
        "batch_id": 5
    }
    with pytest.raises(AirflowFailException, match="stalled"):
        sensor().execute_complete({}, {"error": "it stalled", "value": None})


def test_template_fields_are_rendered(sensor):
    task = sensor(batch_id="{{ n }}", since="{{ t }}")
    task.render_template_fields({"n": "7", "t": "x"})
    assert (task.batch_id, task.since) == (7, "x")


# --- TransactionTimeoutSensor: which transactions run out of time ---------------------------------


@pytest.fixture
def timeout_sensor(checkpoint, monkeypatch):
    checkpoint.claim("etl")

    def make(
        *ages: float,
        timeout_s: float | None = 100,
        ahead_s: float = 0,
        tells: bool = True,
        **arguments,
    ):
        """``ahead_s`` is how far the system's clock is ahead; ``tells`` whether it says so."""
        now_ms = time.time_ns() // 1_000_000 + round(ahead_s * 1000)
        listed = tuple(
            OpenWork(
                kind="kafka",
                participant="sink",
                key=f"etl-{number}-0-{number}-0",
                opened_at_ms=now_ms - round(age * 1000),
                timeout_ms=None if timeout_s is None else round(timeout_s * 1000),
            )
            for number, age in enumerate(ages)
        )
        asked: list[str] = []

        def connect(members: Sequence[Member], _reach: object, **_options: object) -> Any:
            asked.append(members[0].address["transactional_id_prefix"])
            system = {"open": lambda: listed, "close": lambda: None}
            return SimpleNamespace(**system, clock_ms=lambda: now_ms if tells else None)

        monkeypatch.setattr("airflow_eos.core.recovery.execute.connect", connect)
        task = TransactionTimeoutSensor(
            **{"task_id": "timeouts", "checkpoint_location": checkpoint.location, **arguments}
        )
        return task, asked

    return make


@pytest.mark.parametrize("ahead_s", [-600, 0, 600])
@pytest.mark.parametrize(
    ("age", "part_left", "fires"),
    [(10, 0.5, False), (49, 0.5, False), (51, 0.5, True), (150, 0.5, True), (51, 0.25, False)],
)
def test_it_fires_below_the_part_that_is_left_whatever_a_clock_says_that_is_not_the_brokers(
    timeout_sensor, age, part_left, fires, ahead_s
):
    task, _ = timeout_sensor(age, part_left=part_left, ahead_s=ahead_s)
    assert task.poke({}).is_done is fires


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_a_system_that_does_not_tell_its_time_is_counted_from_the_first_look(
    timeout_sensor, ahead_s
):
    task, _ = timeout_sensor(90, ahead_s=ahead_s, tells=False)
    task.seen = SeenOpen(iter([0, 49, 51]).__next__)
    assert [task.poke({}).is_done for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("tells", "open_work", "deferrable"),
    [(False, 1, False), (True, 1, False), (False, 0, False), (False, 1, True)],
)
def test_a_look_that_forgets_is_refused_where_an_age_is_what_was_seen(
    timeout_sensor, tells, open_work, deferrable
):
    """In mode reschedule each look is a process of its own: it would never fire.

    A trigger looks again and again in one process, whatever the mode.
    """
    task, _ = timeout_sensor(
        *[10] * open_work, tells=tells, mode="reschedule", deferrable=deferrable
    )
    if tells or not open_work or deferrable:
        assert not task.poke({}).is_done
        return
    with pytest.raises(AirflowFailException, match=r"forgets since when sink etl-0-0-0-0 is open"):
        task.poke({})


def test_what_has_ended_is_forgotten_and_what_comes_after_it_begins_anew():
    seen = SeenOpen(iter([0, 60, 120]).__next__)
    one, other = (OpenWork("kafka", "sink", key, 0, 100) for key in ("a", "b"))
    assert [seen.lasts_ms(each) for each in ([one], [other], [one, other])] == [
        [0],
        [0],
        [0, 60_000],
    ]


def test_the_most_urgent_comes_first_and_the_others_not_at_all(timeout_sensor):
    task, asked = timeout_sensor(10, 60, 90)
    found = task.poke({}).xcom_value
    assert [each["key"] for each in found] == ["etl-2-0-2-0", "etl-1-0-1-0"]
    assert found[0]["time_left_ms"] == pytest.approx(10_000, abs=1000)
    assert asked == ["etl"]
    json.dumps(found)


def test_nothing_open_is_nothing_to_fire_about(timeout_sensor):
    task, _ = timeout_sensor()
    assert task.poke({}).is_done is False


def test_a_given_prefix_needs_no_checkpoint(timeout_sensor):
    task, asked = timeout_sensor(checkpoint_location=None, transactional_id_prefix="other")
    task.poke({})
    assert asked == ["other"]


@pytest.mark.parametrize("part_left", [0, -1, 1.5])
def test_a_part_that_is_none_is_refused_where_it_is_given(timeout_sensor, part_left):
    with pytest.raises(ConfigurationError, match="part_left"):
        timeout_sensor(part_left=part_left)


def test_a_checkpoint_that_names_no_pipeline_fails_without_retry(timeout_sensor, tmp_path):
    task, _ = timeout_sensor(checkpoint_location=str(tmp_path))
    with pytest.raises(AirflowFailException, match="names no pipeline"):
        task.poke({})


def test_deferred_it_fires_through_its_trigger(timeout_sensor):
    task, _ = timeout_sensor(10, deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute({})
    task, _ = timeout_sensor(60, deferrable=True)
    assert task.execute({})[0]["key"] == "etl-0-0-0-0"


@pytest.mark.parametrize(("age", "fires"), [(599, False), (601, True)])
def test_work_that_nothing_ends_fires_when_it_is_old(timeout_sensor, age, fires):
    """A prepared transaction of Postgres holds locks until somebody ends it."""
    task, _ = timeout_sensor(age, timeout_s=None)
    assert task.poke({}).is_done is fires


# --- BlockedTopicSensor: fires for what it finds, here or in the triggerer, and waits otherwise ---


HELD = {
    "topic": "orders",
    "partition": 0,
    "stable": 3,
    "owner": "Flink",
    "transactional_id": "job-0-1",
    "age_ms": 900_001,
}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[tuple[tuple[str, ...], int]] = []

    def find(*answers: list[dict[str, Any]]) -> list[Any]:
        left = list(answers)

        def look(self: watch.BlockedJudge, _kafka: object) -> list[dict[str, Any]]:
            asked.append((self.topics, self.max_age_ms))
            return left.pop(0)

        monkeypatch.setattr(watch.BlockedJudge, "look", look)
        return asked

    return find


def test_it_waits_while_nothing_is_held_up_and_fires_with_what_is(looks: Any) -> None:
    asked = looks([], [HELD])
    task = BlockedTopicSensor(task_id="blocked", topics="orders", max_age="15 minutes")
    assert not task.poke({}).is_done
    found = task.poke({})
    assert (found.is_done, found.xcom_value) == (True, [HELD])
    assert asked == [(("orders",), 900_000)] * 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_readers_that_stand_still_behind_what_no_broker_names_are_not_held_up_by_nobody(
    monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """The sensor waited until its timeout, which with ``soft_fail`` is that all is well."""
    at = iter((5, 9 if goes_on else 5))
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": "none:1"})
    monkeypatch.setattr(BlockedTopicSensor, "_settings", lambda _: (settings, {}))
    monkeypatch.setattr(watch, "ConnectionPool", lambda _: nullcontext())
    monkeypatch.setattr(watch, "_AGAIN_S", 0.0)
    monkeypatch.setattr(
        watch, "find_blocked", lambda *_, **__: Blocked((), unnamed=(f"orders-0 at {next(at)}",))
    )
    task = BlockedTopicSensor(task_id="blocked", topics="orders", soft_fail=True, timeout=0)
    with pytest.raises(AirflowSkipException if goes_on else KafkaUnavailableError):
        task.execute({})


def test_the_triggerer_goes_on_looking_with_the_same_arguments(looks: Any) -> None:
    looks([], [], [HELD])
    task = BlockedTopicSensor(
        task_id="blocked", topics=["orders"], deferrable=True, poke_interval=0.01
    )
    with pytest.raises(TaskDeferred) as handed_over:
        task.execute({})
    path, arguments = handed_over.value.trigger.serialize()
    assert path.endswith("BlockedTopicTrigger")
    trigger = BlockedTopicTrigger(**arguments)

    async def looked() -> Any:
        settings: Any = None
        assert await trigger.look(settings, {}, {}) is None
        return await trigger.look(settings, {}, {})

    answer = asyncio.run(looked())
    assert task.resume_execution("execute_complete", {"event": answer}, {}) == [HELD]


def test_a_log_shows_no_line_and_no_command_of_another_programs_name(
    looks: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    looks([HELD | {"transactional_id": "x\nERROR all is lost\x1b[2J"}])
    BlockedTopicSensor(task_id="blocked", topics="orders").poke({})
    assert "x ERROR all is lost\\x1b[2J" in capsys.readouterr().out


# --- A trouble ends a deferred sensor as it ends one that pokes: only what is final is final ------


PASSING = [errors.KafkaUnavailableError, errors.StoreError, errors.CheckpointFormatError]
FINAL = [errors.ConfigurationError, errors.OwnershipError]


@pytest.fixture
def ended_with(monkeypatch):
    """How a sensor ends whose look fails, without ``deferrable`` and with it."""

    async def aget(_, conn_id):
        extra = '{"bootstrap.servers": "kafka:9092"}'
        return Connection(conn_id=conn_id, conn_type="kafka", extra=extra)

    monkeypatch.setattr(KafkaSettingsHook, "aget_connection", classmethod(aget))

    def sensor(*looks, **arguments) -> TransactionTimeoutSensor:
        left = list(looks)

        def look(*_):
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(watch.TimeoutJudge, "look", look)
        return TransactionTimeoutSensor(
            task_id="timeouts", transactional_id_prefix="etl", **arguments
        )

    def poked(error: Exception, **arguments) -> BaseException:
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is the question
            sensor(error, **arguments).execute({})
        return ended.value

    def deferred(error: Exception, **arguments) -> BaseException:
        task = sensor([], error, deferrable=True, **arguments)
        with pytest.raises(TaskDeferred) as handed_over:
            task.execute({})

        async def event():
            return await anext(handed_over.value.trigger.run())

        answer = asyncio.run(asyncio.wait_for(event(), 300)).payload
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one is the question
            task.resume_execution(handed_over.value.method_name, {"event": answer}, {})
        return ended.value

    return lambda error, **given: (poked(error, **given), deferred(error, **given))


@pytest.mark.parametrize("kind", PASSING, ids=lambda kind: kind.__name__)
def test_a_broker_or_store_that_is_away_for_a_moment_is_left_to_retries(ended_with, kind):
    poked, deferred = ended_with(kind("away"))
    assert type(deferred) is type(poked) is kind
    assert str(deferred) == str(poked) == "away"


@pytest.mark.parametrize("kind", [UnknownVersionError, LostError], ids=lambda kind: kind.__name__)
def test_an_error_of_a_room_of_its_own_says_what_it_is_through_a_trigger_too(ended_with, kind):
    """By its own name nobody finds it: an AttributeError would stand in its place."""
    poked, deferred = ended_with(kind("a newer Spark wrote it"))
    assert type(poked) is kind
    assert isinstance(poked, type(deferred))
    assert str(deferred) == str(poked)


@pytest.mark.parametrize("kind", FINAL, ids=lambda kind: kind.__name__)
def test_what_only_a_person_can_change_is_final(ended_with, kind):
    poked, deferred = ended_with(kind("cannot work"))
    assert type(deferred) is type(poked) is AirflowFailException
    assert str(deferred) == str(poked) == f"{kind.__name__}: cannot work"


@pytest.mark.parametrize("kind", [*FINAL, *PASSING], ids=lambda kind: kind.__name__)
def test_soft_fail_skips_no_question_that_got_no_answer(ended_with, kind):
    """Skipped, a watchdog would be green that has not been able to ask."""
    for ended in ended_with(kind("cannot work"), soft_fail=True):
        assert not isinstance(ended, AirflowSkipException)
        assert "cannot work" in str(ended)


def test_whoever_asks_for_never_fail_gets_a_skip_whatever_happened(ended_with):
    poked, _ = ended_with(KafkaUnavailableError("away"), never_fail=True)
    assert isinstance(poked, AirflowSkipException)


@pytest.mark.parametrize("answers", [False, True])
def test_soft_fail_skips_no_timeout_of_looks_that_silent_fail_has_logged(monkeypatch, answers):
    def look(*_: Any) -> list[dict[str, Any]]:
        if answers:
            return []
        raise KafkaUnavailableError("away")

    monkeypatch.setattr(watch.TimeoutJudge, "look", look)
    task = TransactionTimeoutSensor(
        task_id="t", transactional_id_prefix="etl", soft_fail=True, silent_fail=True, timeout=0
    )
    with pytest.raises(AirflowSkipException if answers else KafkaUnavailableError):
        task.execute({})


@pytest.mark.parametrize(
    ("said", "is_skip"), [("Trigger timeout", True), ("Trigger failure", False)]
)
def test_a_wait_that_was_deferred_is_skipped_where_it_was_over_and_red_where_it_died(said, is_skip):
    task = TransactionTimeoutSensor(task_id="t", transactional_id_prefix="etl", soft_fail=True)
    with pytest.raises(AirflowException) as ended:
        task.resume_execution("__fail__", {"error": said}, {})
    assert isinstance(ended.value, AirflowSkipException) is is_skip


def test_below_airflow_3_3_a_wait_that_was_deferred_is_skipped_too(monkeypatch):
    def late(*_):
        raise AirflowSensorTimeout("late")

    monkeypatch.setattr(BaseSensorOperator, "resume_execution", late)
    task = TransactionTimeoutSensor(task_id="t", transactional_id_prefix="etl", soft_fail=True)
    with pytest.raises(AirflowSkipException):
        task.resume_execution("__fail__", {}, {})


# --- What all sensors are told, they also take from the DAG ---------------------------------------


OF_THE_DAG = {
    "kafka_config_id": "kafka_of_orders",
    "storage_conn_id": "lake",
    "storage_options": {"aws_region": "eu-central-1"},
    "deferrable": True,
}


@pytest.mark.parametrize("kind", [CheckpointProgressSensor, TransactionTimeoutSensor])
def test_default_arguments_of_a_dag_reach_a_sensor_and_its_own_win(kind):
    with DAG("watch", schedule=None, default_args=OF_THE_DAG):
        sensor = kind(task_id="a", checkpoint_location="/q")
        other = kind(task_id="b", checkpoint_location="/q", storage_conn_id="other")
    assert {name: getattr(sensor, name) for name in OF_THE_DAG} == OF_THE_DAG
    assert (other.storage_conn_id, other.deferrable) == ("other", True)


@pytest.mark.parametrize("kind", [CheckpointProgressSensor, TransactionTimeoutSensor])
def test_every_field_that_is_templated_is_one_that_the_sensor_has(kind):
    sensor = kind(task_id="a", checkpoint_location="/q")
    assert [name for name in kind.template_fields if not hasattr(sensor, name)] == []


@pytest.mark.parametrize(
    ("allowed", "waits_s", "raises"),
    [
        (timedelta(seconds=20), 20, AirflowTaskTimeout),
        (None, 60, AirflowSensorTimeout),
        (timedelta(hours=1), 60, AirflowSensorTimeout),
    ],
)
def test_a_deferred_sensor_waits_no_longer_than_its_execution_timeout(
    monkeypatch, allowed, waits_s, raises
):
    task = CheckpointProgressSensor(
        task_id="t",
        checkpoint_location="/ck",
        since_batch=1,
        timeout=60,
        execution_timeout=allowed,
        deferrable=True,
    )
    monkeypatch.setattr(CheckpointProgressSensor, "poke", lambda *_: PokeReturnValue(is_done=False))
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({})
    assert deferred.value.timeout == timedelta(seconds=waits_s)
    with pytest.raises(raises):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, {})

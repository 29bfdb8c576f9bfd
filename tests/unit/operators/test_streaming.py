"""SparkStreamingOperator: what it starts, when it starts it again, and when it is green."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DrainRequest,
    StartedBy,
    drain_requested,
    read_heartbeat,
    request_drain,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.backend import HEARTBEAT, drain_path
from airflow_eos.core.checkpoint.recovery_notes import refusal_of
from airflow_eos.core.delivery.policy import CheckpointPolicy, FailureRate, FixedDelay
from airflow_eos.core.protocol.decision import WorkIdentity
from airflow_eos.errors import (
    AppFailedError,
    AppStoppedError,
    ConfigurationError,
    ContinuityError,
    DeliveryError,
    KafkaUnavailableError,
    StoreError,
)
from airflow_eos.ops.packaging import content_of, leave_behind, private_folder
from airflow_eos.recovery import Action, Step
from tests.unit.operators.conftest import PASSWORD, FakeSpark, heartbeat, started_by

CRASH = AirflowException("Cannot execute: spark-submit. Error code is: 137.")


def step(action: Action, **other) -> Step:
    return Step(
        action=action, reason="why", work=WorkIdentity("kafka", "sink", "etl-0-0-1-2"), **other
    )


# --- green only when it is true


def test_an_app_that_stopped_in_order_is_a_success(operator, spark, says):
    spark.runs = [says("stopped")]
    assert operator().execute({}) == {"batch_id": None, "restarts": 0, "end": "succeeded"}


@pytest.mark.parametrize("phase", ["starting", "waiting", "preparing", "settling", "failed"])
def test_exit_0_in_any_other_phase_is_never_green(operator, spark, says, phase):
    spark.runs = [says(phase)]
    with pytest.raises(AppFailedError, match=f"exited with 0.*{phase}"):
        operator(max_restarts=0).execute({})


def test_exit_0_without_a_heartbeat_of_this_run_is_never_green(operator, spark, store):
    write_heartbeat(store, heartbeat("stopped", started_at_ms=1, beat_at_ms=1))
    spark.runs = [lambda _: None]
    with pytest.raises(AppFailedError, match="wrote no heartbeat"):
        operator(max_restarts=0).execute({})


def test_a_failed_app_with_a_good_heartbeat_is_never_green(operator, spark, says):
    spark.runs = [says("stopped", CRASH)]
    with pytest.raises(AppFailedError, match="137"):
        operator(max_restarts=0).execute({})


def test_promised_rows_that_are_still_missing_at_the_end_are_never_green(
    operator, spark, says, kafka
):
    replay = Step(action=Action.REPLAY, reason="timed out", batch_id=7)
    kafka.plans = [kafka.empty(), kafka.empty(steps=(replay,), in_flight=7)]
    spark.runs = [says("stopped")]
    with pytest.raises(DeliveryError, match="batch 7 still owes"):
        operator().execute({})


@pytest.mark.parametrize(("newest", "calls"), [("s0", ["plan", "force"]), ("s1", ["plan"])])
def test_what_a_driver_has_open_that_came_later_is_only_looked_at(
    operator, kafka, store, newest, calls
):
    """Else the end of the one before would take the running batch away from it."""
    write_heartbeat(store, heartbeat(started_by=life_of(submission=newest)))
    event = {"submission": "s0", "end": "DRAINED", "found": "x", "failures": [], "began_s": 1.0}
    replay = Step(action=Action.REPLAY, reason="timed out", batch_id=7)
    kafka.plans = [kafka.empty(steps=(replay,), in_flight=7)] if newest == "s1" else []
    operator().execute_complete(of_task(), event)
    assert kafka.calls == calls


DRAINED = {"submission": "s0", "end": "DRAINED", "found": "ops: a release", "began_s": 1.0}


@pytest.mark.parametrize("what", ["the look behind it", "the look before it"])
@pytest.mark.parametrize("end", ["DRAINED", "SUCCEEDED"])
def test_what_fails_behind_a_drain_by_a_person_is_not_retried_into_a_start(
    operator, kafka, store, monkeypatch, what, end
):
    """A retry of a task looks like its clearing, which starts the app."""

    def away(*_, **__):
        raise KafkaUnavailableError("no broker")

    write_heartbeat(store, heartbeat("stopped", end="drained", started_by=life_of(submission="s0")))
    if what == "the look behind it":
        monkeypatch.setattr(kafka, "make_plan", away)
        monkeypatch.setattr("airflow_eos.ops.supervision.recovery.make_plan", away)
    else:
        monkeypatch.setattr("airflow_eos.kafka.client.connection.ConnectionPool", away)
    event = {**DRAINED, "end": end, "failures": []}
    if end == "SUCCEEDED":
        with pytest.raises(KafkaUnavailableError):
            operator().execute_complete(of_task(), event)
        return
    with pytest.raises(AirflowFailException, match=r"drained \(ops: a release\).*no broker"):
        operator().execute_complete(of_task(), event)


@pytest.mark.parametrize(("newest", "stays"), [("s0", False), ("s1", True)])
def test_the_end_of_an_app_takes_no_package_away_from_the_one_that_came_after_it(
    operator, kafka, store, newest, stays
):
    """In deploy mode client a deferred app runs from a folder that no process holds."""
    with private_folder(store.location) as folder:
        leave_behind(folder)
    write_heartbeat(store, heartbeat(started_by=life_of(submission=newest)))
    operator().execute_complete(of_task(), {**DRAINED, "failures": []})
    assert folder.exists() is stays
    shutil.rmtree(folder, ignore_errors=True)


def test_its_links_are_there_as_soon_as_the_driver_beats(operator, spark, store):
    context = of_task()
    before_its_end: list[str] = []

    def lives(fake):
        here = heartbeat(host=socket.gethostname(), started_by=started_by(fake))
        write_heartbeat(store, here)
        until_s = time.monotonic() + 300
        while not context["ti"].pushed and time.monotonic() < until_s:
            time.sleep(0.005)
        before_its_end.extend(each for each in context["ti"].pushed.values() if "4040" in each)
        write_heartbeat(store, heartbeat("stopped", end="finished", started_by=started_by(fake)))

    spark.runs = [lives]
    operator(deferrable=False, patience=timedelta(minutes=1)).execute(context)
    assert before_its_end == [f"http://{socket.gethostname()}:4040"]


# --- restarts


def test_it_restarts_as_often_as_allowed_and_says_why_it_gave_up(operator, spark, says):
    spark.runs = [says("preparing", CRASH)] * 4
    with pytest.raises(AppFailedError, match=r"failed 4 times.*137"):
        operator(max_restarts=3).execute({})
    assert len(spark.calls) == 4


def test_what_no_restart_can_heal_is_neither_restarted_nor_retried(operator, spark, says):
    spark.runs = [says("failed", AirflowException("Cannot execute. Error code is: 78."))]
    with pytest.raises(AirflowFailException, match="no restart can heal"):
        operator(max_restarts=3).execute({})
    assert len(spark.calls) == 1


def test_an_app_that_is_refused_before_its_first_heartbeat_is_told_in_the_checkpoint(
    operator, spark, store, says
):
    def refuses(_: FakeSpark) -> None:
        raise AirflowException("Cannot execute. Error code is: 78.")

    spark.runs = [refuses]
    with pytest.raises(AirflowFailException, match="no restart can heal"):
        operator().execute({})
    found = refusal_of(store, read_heartbeat(store))
    assert found is not None
    assert "exited with status 78" in found.reason
    spark.runs = [says("stopped")]
    operator().execute({})
    assert refusal_of(store, None) is None, "a start that begins is not refused yet"


def test_a_start_that_recovery_refuses_for_good_is_told_in_the_checkpoint(
    operator, spark, store, monkeypatch
):
    def refuse(*_: object, **__: object) -> None:
        raise ContinuityError("batch 7 begins too early.")

    monkeypatch.setattr("airflow_eos.operators.submission.recover_before_start", refuse)
    with pytest.raises(AirflowFailException, match="too early"):
        operator().execute({})
    assert spark.calls == []
    found = refusal_of(store, None)
    assert found is not None
    assert found.reason.startswith("ContinuityError: batch 7 begins too early.")


@pytest.mark.parametrize("changed", ["app.py", "more.py", "by-conf.py"])
def test_what_was_rehearsed_is_what_each_start_and_restart_starts(
    operator, spark, says, tmp_path, changed
):
    for name in ("app.py", "more.py", "by-conf.py"):
        (tmp_path / name).write_text("1")
    files = {"py_files": str(tmp_path / "more.py"), "files": "hdfs://nn/f"}
    conf = {"spark.submit.pyFiles": f"file://{tmp_path}/by-conf.py"}
    app = str(tmp_path / "app.py")
    held = content_of(app, conf=conf, **files)

    def fails(fake: FakeSpark) -> None:
        says("preparing")(fake)
        (tmp_path / changed).write_text("2")
        raise CRASH

    spark.runs = [fails]
    with pytest.raises(AirflowFailException, match=f"{changed}: changed since it was rehearsed"):
        operator(application=app, conf=conf, content=held, max_restarts=3, **files).execute({})
    with pytest.raises(AirflowFailException, match="nobody has approved what is there now"):
        operator(application=app, conf=conf, content=held, **files).execute({})
    assert len(spark.calls) == 1
    (tmp_path / changed).write_text("1")
    spark.runs = [says("stopped")]
    operator(application=app, conf=conf, content=held, **files).execute({})
    assert len(spark.calls) == 2


def test_a_file_that_was_not_rehearsed_is_not_started(operator, spark, tmp_path):
    for name in ("app.py", "more.py"):
        (tmp_path / name).write_text("1")
    app = str(tmp_path / "app.py")
    task = operator(
        application=app, content=content_of(app, conf=None), py_files=str(tmp_path / "*.py")
    )
    with pytest.raises(AirflowFailException, match=r"more\.py: changed since .*, or not among"):
        task.execute({})
    (tmp_path / "app.py").unlink()
    with pytest.raises(AirflowFailException, match="cannot be read on this worker"):
        operator(application=app, content="{}").execute({})
    assert not spark.calls


def test_a_restart_that_goes_well_is_a_success(operator, spark, says):
    spark.runs = [says("settling", CRASH), says("stopped")]
    assert operator().execute({})["restarts"] == 1


def test_another_strategy_decides_when_it_starts_again(operator, spark, says):
    rate = FailureRate(failures=1, within=timedelta(hours=1), pause=timedelta(0))
    spark.runs = [says("preparing", CRASH)] * 2
    policy = CheckpointPolicy(restart=rate)
    with pytest.raises(AppFailedError, match=r"failed 2 times.*FailureRate\(failures=1"):
        operator(policy=policy, restart_delay=timedelta(seconds=10)).execute({})
    assert len(spark.calls) == 2


def test_a_strategy_said_twice_is_refused_when_the_dag_is_read(operator):
    with pytest.raises(ConfigurationError, match="max_restarts"):
        operator(policy=CheckpointPolicy(restart=FixedDelay(9)), max_restarts=5)


def test_the_app_is_told_the_policy(operator, spark, says):
    spark.runs = [says("stopped")]
    policy = CheckpointPolicy(
        interval=timedelta(seconds=20), timeout=timedelta(minutes=2), num_retained=30
    )
    operator(policy=policy).execute({})
    environment = spark.popen[0]["env"]
    assert environment["EOS_TRIGGER_INTERVAL_MS"] == "20000"
    assert environment["EOS_BATCH_TIMEOUT_MS"] == "120000"
    assert environment["EOS_NUM_RETAINED"] == "30"
    assert "EOS_MIN_PAUSE_MS" not in environment


def test_a_start_opens_the_checkpoint_once_and_kafka_once(
    operator, spark, says, kafka, monkeypatch
):
    opened, reached = [], []
    real = CheckpointStore.open

    def counted(*given, **known):
        opened.append(given)
        return real(*given, **known)

    monkeypatch.setattr(CheckpointStore, "open", counted)

    def started(hook):
        reached.append((kafka.reached, kafka.opened))
        assert all(each.closed for each in kafka.wires), "not for as long as the app runs"
        says("stopped")(hook)

    spark.runs = [started]
    operator().execute({})

    assert len(opened) == 1, "also for the look behind the app"
    assert (reached, kafka.reached, kafka.opened) == ([(1, 1)], 2, 2)


def test_recovery_runs_before_every_start_and_after_the_end(operator, spark, says, kafka):
    spark.calls = kafka.calls  # one list, so that the order shows
    spark.runs = [says("settling", CRASH), says("stopped")]
    operator().execute({})
    assert kafka.calls == [
        *("plan", "execute", "submit /apps/etl.py"),
        *("plan", "force", "submit /apps/etl.py"),  # its own app was seen to die
        *("plan", "force"),
    ]


def test_without_recover_before_start_the_plan_is_printed_only(operator, spark, says, kafka):
    spark.runs = [says("stopped")]
    operator(recover_before_start=False).execute({})
    assert kafka.calls == ["plan", "plan", "force"]


# --- another driver, open questions


@pytest.fixture
def beating(store):
    """Another driver, alive until the test ends or it is told to fall silent."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def fall_silent() -> None:
        ended.set()
        for each in threads:
            each.join()

    def begin(**other) -> SimpleNamespace:
        def beat():
            where = {"host": "elsewhere", "pid": 4711, "interval_ms": 3000}
            write_heartbeat(store, heartbeat("waiting", **{**where, **other}))

        def run():
            while not ended.wait(0.01):
                beat()

        beat()
        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return SimpleNamespace(set=fall_silent)  # and no beat comes after what is written next

    yield begin
    fall_silent()


@pytest.fixture
def once_taken_over(caplog):
    """``once_taken_over(event)``: what becomes of the living app when the operator has it."""
    caplog.set_level("INFO", logger="airflow_eos.ops.supervision.run")
    threads: list[threading.Thread] = []

    def begin(event: Callable[[], object]) -> None:
        def run() -> None:
            deadline = time.monotonic() + 300
            while "Taking the app over" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.005)
            event()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield begin
    for each in threads:
        each.join()


def of_task(run_id="r1", **other) -> dict[str, Any]:
    ti = {"dag_id": "d", "task_id": "etl", "run_id": run_id, "map_index": -1, **other}
    pushed: dict[str, str] = {}
    push = lambda key, value: pushed.update({key: value})  # noqa: E731 - as Airflow calls it
    return {"ti": SimpleNamespace(**ti, pushed=pushed, xcom_push=push)}


def asked_to_drain(fake: FakeSpark, store: CheckpointStore) -> DrainRequest | None:
    """The request that stands to the app that runs last."""
    return drain_requested(store, submission=started_by(fake).submission)


def life_of(run_id="r1", **other) -> StartedBy:
    told = {"dag_id": "d", "task_id": "etl", "run_id": run_id, "map_index": -1, **other}
    return StartedBy(**{"submission": "the-first", **told})


@pytest.mark.parametrize(
    ("whose", "named"),
    [
        (None, "nobody in Airflow"),
        (life_of("r0"), "task d.etl of run r0"),
        (life_of(task_id="other"), "task d.other of run r1"),
        (life_of(dag_id="x"), "task x.etl of run r1"),
        (life_of(map_index=2), r"task d.etl\[2\] of run r1"),
    ],
    ids=["by hand", "another run", "another task", "another DAG", "another map index"],
)
def test_a_living_app_of_somebody_else_is_refused_by_name_and_not_retried(
    operator, spark, kafka, beating, whose, named
):
    beating(started_by=whose)
    expected = rf"already running.*process 4711 on elsewhere.*started by {named}"
    with pytest.raises(AirflowFailException, match=expected):
        operator().execute(of_task())
    assert spark.calls == kafka.calls == []


def test_a_living_app_of_an_earlier_try_is_watched_to_its_end_and_no_second_one_started(
    operator, spark, beating, store, kafka, once_taken_over
):
    ended = beating(started_by=life_of())

    def finish():
        ended.set()
        write_heartbeat(store, heartbeat("stopped", end="finished", started_by=life_of()))

    once_taken_over(finish)
    assert operator().execute(of_task())["end"] == "succeeded"
    assert spark.calls == []
    assert kafka.calls == ["plan", "force"], "the look whether something is left open"


def test_an_adopted_app_that_the_try_before_drains_is_not_green_and_another_is_started(
    operator, spark, beating, store, says, once_taken_over
):
    """The former try's on_kill comes after this one has looked, and taken the app over."""
    ended = beating(started_by=life_of())

    def drained():
        ended.set()
        off = {"end": "drained", "reason": "airflow: on_kill", "drained_by": "airflow"}
        write_heartbeat(store, heartbeat("stopped", started_by=life_of(), **off))

    once_taken_over(drained)
    spark.runs = [says("stopped")]
    assert operator().execute(of_task()) == {"batch_id": None, "restarts": 0, "end": "succeeded"}
    assert len(spark.calls) == 1


def test_an_adopted_app_that_falls_silent_is_recovered_and_started_again(
    operator, spark, beating, says, kafka, once_taken_over
):
    ended = beating(started_by=life_of(), interval_ms=300)
    once_taken_over(ended.set)
    spark.runs = [says("stopped")]
    task = operator(patience=timedelta(seconds=0.3))
    assert task.execute(of_task())["restarts"] == 1
    assert kafka.calls == ["plan", "force", "plan", "force"]
    assert len(spark.calls) == 1


def test_an_adopted_app_that_says_that_it_failed_is_never_green(
    operator, beating, store, spark, once_taken_over
):
    ended = beating(started_by=life_of())

    def fail():
        ended.set()
        died = heartbeat("failed", end="failed", reason="RowError: too big", started_by=life_of())
        write_heartbeat(store, died)

    once_taken_over(fail)
    with pytest.raises(AppFailedError, match="RowError: too big"):
        operator(max_restarts=0).execute(of_task())
    assert spark.calls == []


def test_an_app_of_ours_that_still_drains_is_waited_for_and_then_started_anew(
    operator, spark, beating, store, says
):
    ended = beating(started_by=life_of())
    request_drain(store, requested_by="airflow", reason="cleared", submission="the-first")

    def drained():
        time.sleep(0.3)
        ended.set()
        write_heartbeat(store, heartbeat("stopped", end="drained", started_by=life_of()))

    thread = threading.Thread(target=drained)
    thread.start()
    spark.runs = [says("stopped")]
    assert operator().execute(of_task())["restarts"] == 0
    thread.join()
    assert len(spark.calls) == 1


def test_a_driver_that_fell_silent_a_moment_ago_is_waited_for(operator, spark, store, says):
    write_heartbeat(store, heartbeat("preparing", interval_ms=100))
    spark.runs = [says("stopped")]
    operator().execute({})
    assert spark.calls


def test_a_driver_whose_clock_is_an_hour_ahead_is_dead_once_it_stands_still(
    operator, spark, store, says
):
    ahead_ms = time.time_ns() // 1_000_000 + 3_600_000
    write_heartbeat(store, heartbeat("preparing", beat_at_ms=ahead_ms))
    spark.runs = [says("stopped")]
    operator().execute({})
    assert spark.calls


def test_after_a_crash_another_driver_is_still_noticed(operator, spark, beating):
    def taken_over(_):
        beating()
        time.sleep(0.05)
        raise CRASH

    spark.runs = [taken_over]
    with pytest.raises(AirflowFailException, match="elsewhere"):
        operator().execute({})
    assert len(spark.calls) == 1


def test_a_superseded_app_gives_way_to_the_newer_one_of_its_task(
    operator, spark, beating, store, once_taken_over, monkeypatch
):
    looked, real = threading.Event(), CheckpointStore.get

    def get(self, path):
        found = real(self, path)
        if path == HEARTBEAT:
            looked.set()
        return found

    def superseded(_):
        looked.clear()  # a driver is newer if it comes after a look
        monkeypatch.setattr(CheckpointStore, "get", get)
        assert looked.wait(300)
        ended = beating(started_by=life_of())
        once_taken_over(partial(finish, ended))
        raise CRASH

    def finish(ended):
        ended.set()
        write_heartbeat(store, heartbeat("stopped", end="finished", started_by=life_of()))

    spark.runs = [superseded]
    assert operator().execute(of_task()) == {"batch_id": None, "restarts": 0, "end": "succeeded"}
    assert len(spark.calls) == 1, "never a third"


def test_a_store_that_does_not_answer_says_nothing(operator, spark, says, monkeypatch):
    real, asked = CheckpointStore.get, []

    def away_at_first(self, path):
        asked.append(path)
        if len(asked) < 5:
            raise StoreError("no answer")
        return real(self, path)

    monkeypatch.setattr(CheckpointStore, "get", away_at_first)
    spark.runs = [says("stopped")]
    assert operator().execute({})["restarts"] == 0


@pytest.mark.parametrize("action", [Action.ASK, Action.ORPHAN])
def test_what_only_a_person_may_decide_fails_without_retry_and_without_a_start(
    operator, spark, kafka, action
):
    kafka.plans = [kafka.empty(steps=(step(action),))]
    with pytest.raises(AirflowFailException, match=action.name):
        operator().execute({})
    assert spark.calls == []


def test_a_first_start_has_nothing_to_recover(operator, spark, tmp_path, kafka):
    from airflow_eos.core.checkpoint import CheckpointStore

    new = CheckpointStore.open(tmp_path / "new")
    spark.runs = [
        lambda _: write_heartbeat(new, heartbeat("stopped", started_by=started_by(spark)))
    ]
    operator(checkpoint_location=new.location).execute({})
    assert kafka.calls == []
    assert [each.closed for each in kafka.wires] == [True], "what no recovery took over"


# --- pre-flight


def test_a_budget_that_does_not_hold_fails_with_the_numbers(operator, spark):
    with pytest.raises(AirflowFailException, match=r"60 s.*1 s.*60 s.*300 s.*361 s"):
        operator(transaction_timeout=timedelta(minutes=1)).execute({})
    assert spark.calls == []


def test_a_timeout_above_the_brokers_fails_with_the_numbers(operator, spark, kafka):
    with pytest.raises(AirflowFailException, match=r"3600 s.*transaction.max.timeout.ms.*900 s"):
        operator(transaction_timeout=timedelta(hours=1)).execute({})
    assert spark.calls == []
    assert [each.closed for each in kafka.wires] == [True]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ({"deploy_mode": "cluster"}, {}),
        ({"conf": {"spark.submit.deployMode": "cluster"}}, {}),
        ({}, {"deploy-mode": "cluster"}),
    ],
)
def test_cluster_mode_is_refused_where_spark_has_none_for_python(
    operator, spark, monkeypatch, arguments, extra
):
    connection = {"conn_type": "spark", "host": "spark://master", "port": 7077, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(AirflowFailException, match=r"spark://master:7077.*client"):
        operator(**arguments).execute({})
    assert spark.calls == []


def test_a_missing_spark_connection_does_not_fall_back_to_yarn(operator, spark):
    # Outside of a task Airflow 3.1 cannot ask for a connection, and says that instead.
    with pytest.raises(Exception, match=r"nowhere|SUPERVISOR_COMMS"):
        operator(conn_id="nowhere").execute({})
    assert spark.constructed == []


# --- stop means drain


def when_started(spark, act):
    """Run ``act`` in the main thread's stead, once the app runs."""

    def wait():
        while not spark.calls:
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_on_kill_asks_to_drain_and_the_task_is_not_green(operator, spark, store):
    def drains(_):
        while asked_to_drain(spark, store) is None:
            time.sleep(0.005)
        write_heartbeat(store, heartbeat("stopped", started_by=started_by(spark)))

    spark.runs = [drains]
    task = operator()
    killer = when_started(spark, task.on_kill)
    with pytest.raises(AppStoppedError, match="on_kill"):
        task.execute({})
    killer.join()
    assert "on_kill" in asked_to_drain(spark, store).reason
    assert not spark.killed


def test_an_app_that_does_not_drain_in_time_is_killed(operator, spark):
    def hangs(fake):
        while not fake.killed:
            time.sleep(0.005)
        raise CRASH

    spark.runs = [hangs]
    task = operator(drain_timeout=timedelta(seconds=0.1))
    killer = when_started(spark, task.on_kill)
    with pytest.raises(AppStoppedError):
        task.execute({})
    killer.join()
    assert spark.killed


def test_a_drain_request_is_written_again_where_a_starting_driver_removed_it(
    operator, spark, store
):
    def starts_late(_):
        for _ in range(2):
            while asked_to_drain(spark, store) is None:
                time.sleep(0.005)
            if not seen:
                seen.append(1)
                store.delete([drain_path(started_by(spark).submission)])
        write_heartbeat(store, heartbeat("stopped", started_by=started_by(spark)))

    seen: list[int] = []
    spark.runs = [starts_late]
    task = operator()
    killer = when_started(spark, task.on_kill)
    with pytest.raises(AppStoppedError):
        task.execute({})
    killer.join()
    assert not spark.killed


def test_an_execution_timeout_drains_before_the_secrets_file_goes(
    operator, spark, store, monkeypatch
):
    """Airflow raises in the middle of ``execute`` and calls ``on_kill`` only afterwards."""

    def drains(fake):
        while asked_to_drain(spark, store) is None:
            time.sleep(0.005)
        kept.append(Path(fake.popen[-1]["env"]["EOS_KAFKA_CONFIG_FILE"]).exists())

    class Timeout(BaseException):
        pass

    kept: list[bool] = []
    spark.runs = [drains]
    task = operator()

    def interrupted(_):
        if spark.calls and asked_to_drain(spark, store) is None:
            raise Timeout
        time.sleep(0.005)

    from airflow_eos.ops.supervision import run

    run_init = run.StreamRun.__init__

    def with_interrupt(self, *args, **kwargs):
        run_init(self, *args, sleep=interrupted, **kwargs)

    monkeypatch.setattr(run.StreamRun, "__init__", with_interrupt)
    with pytest.raises(Timeout):
        task.execute({})
    assert kept == [True]
    assert not Path(spark.popen[-1]["env"]["EOS_KAFKA_CONFIG_FILE"]).exists()


def test_the_app_lives_in_a_session_of_its_own(operator, spark, says):
    """Airflow kills the whole process group of a cleared task 5 s after SIGTERM."""
    spark.runs = [says("stopped")]
    operator().execute({})
    assert spark.popen[0]["start_new_session"] is True


# --- secrets and what the app finds


def test_the_app_finds_its_settings_and_the_secret_leaves_nothing_behind(operator, spark, store):
    seen = {}

    def app(fake):
        path = Path(fake.popen[-1]["env"]["EOS_KAFKA_CONFIG_FILE"])
        seen["config"] = json.loads(path.read_text())
        seen["mode"] = stat.S_IMODE(path.stat().st_mode)
        seen["folder"] = path.parent, stat.S_IMODE(path.parent.stat().st_mode)
        write_heartbeat(store, heartbeat("stopped", started_by=started_by(spark)))

    spark.runs = [app]
    operator(transactional_id_prefix="etl", env_vars={"MINE": 1}).execute({})
    assert seen["config"]["sasl.password"] == PASSWORD
    assert seen["mode"] == 0o600
    assert seen["folder"][1] == 0o700
    assert not seen["folder"][0].exists()
    environment = spark.popen[0]["env"]
    assert environment["EOS_CHECKPOINT_LOCATION"] == store.location
    assert environment["EOS_TRANSACTIONAL_ID_PREFIX"] == "etl"
    assert environment["EOS_TRIGGER_INTERVAL_MS"] == "1000"
    assert environment["EOS_BATCH_WITHIN_MS"] == "60000"
    assert environment["EOS_RECOVER_WITHIN_MS"] == "300000"
    assert environment["EOS_TRANSACTION_TIMEOUT_MS"] == "900000"
    assert environment["MINE"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


def test_no_secret_in_arguments_environment_log_or_fields(operator, spark, says, caplog):
    spark.runs = [says("failed", CRASH), says("stopped")]
    task = operator()
    with caplog.at_level(logging.DEBUG):
        task.execute({})
    fields = {name: getattr(task, name) for name in task.template_fields}
    shown = [spark.constructed, spark.popen, fields, caplog.text, vars(task)]
    assert PASSWORD not in repr(shown)


def test_a_start_removes_what_a_killed_task_left_for_the_same_checkpoint(
    operator, spark, says, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder(store.location) as left:
        pass
    left.mkdir()
    (left / "kafka.json").write_text(PASSWORD)
    spark.runs = [says("stopped")]
    operator().execute({})
    assert not left.exists()


def test_each_start_finds_its_secrets_though_the_one_before_has_removed_them(
    operator, spark, says, monkeypatch
):
    def reads_and_crashes(fake):
        for variable in ("EOS_KAFKA_CONFIG_FILE", "EOS_STORAGE_OPTIONS_FILE"):
            Path(fake.popen[-1]["env"][variable]).unlink()
        raise CRASH

    connection = {"conn_type": "aws", "login": "AKIA", "password": "of-the-store"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    spark.runs = [reads_and_crashes, says("stopped")]
    task = operator(storage_conn_id="lake", storage_options={"aws_region": "eu-west-1"})
    assert task.execute({})["restarts"] == 1


def test_a_restart_has_the_password_of_now_and_not_that_of_the_try(
    operator, spark, says, kafka, monkeypatch
):
    """A try lasts for months: each change of a password cost one of its retries."""

    def changed(**extra: str) -> None:
        told = json.loads(os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"])
        told["extra"] |= extra
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(told))

    def is_told(fake) -> None:
        read.append(Path(fake.popen[-1]["env"]["EOS_KAFKA_CONFIG_FILE"]).read_text())

    def crashes(fake) -> None:
        is_told(fake)
        changed(**{"sasl.password": "of-now"})
        raise CRASH

    def stops(fake) -> None:
        is_told(fake)
        changed(**{"sasl.password": "of-the-end"})
        says("stopped")(fake)

    read: list[str] = []
    spark.runs = [crashes, stops]
    operator().execute({})
    assert [json.loads(each)["sasl.password"] for each in read] == [PASSWORD, "of-now"]
    told = [each.librdkafka()["sasl.password"] for each in kafka.settings]
    assert told == [PASSWORD, "of-now", "of-the-end"]


def test_the_app_opens_the_checkpoints_store_with_the_connections_keys(
    operator, spark, store, monkeypatch, caplog
):
    def app(fake):
        path = Path(fake.popen[-1]["env"]["EOS_STORAGE_OPTIONS_FILE"])
        seen.update(json.loads(path.read_text()))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        write_heartbeat(store, heartbeat("stopped", started_by=started_by(spark)))

    seen: dict[str, str] = {}
    connection = {"conn_type": "aws", "login": "AKIA", "password": "of-the-store"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    spark.runs = [app]
    task = operator(storage_conn_id="lake", storage_options={"aws_region": "eu-west-1"})
    with caplog.at_level(logging.DEBUG):
        task.execute({})
    assert seen == {
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "of-the-store",
        "aws_region": "eu-west-1",
    }
    assert "of-the-store" not in repr([spark.constructed, spark.popen, caplog.text, vars(task)])


def test_a_key_in_the_dag_file_is_refused_before_anything_is_started(operator, spark):
    with pytest.raises(AirflowFailException, match=r"aws_secret_access_key.*storage_conn_id"):
        operator(storage_options={"aws_secret_access_key": "x"}).execute({})
    assert spark.constructed == []


def test_sparks_own_redaction_goes_on_and_learns_our_names(operator, spark, says):
    spark.runs = [says("stopped")] * 2
    operator().execute({})
    operator(conf={"spark.redaction.regex": "(?i)mine"}).execute({})
    default, own = (re.compile(each["conf"]["spark.redaction.regex"]) for each in spark.constructed)
    for name in ("kafka.ssl.keystore.key", "kafka.sasl.jaas.config", "kafka.ssl.key.password"):
        assert default.search(name)
        assert own.search(name)
    assert default.search("spark.hadoop.fs.s3a.access.key")
    assert own.search("MINE")
    assert not default.search("kafka.bootstrap.servers")


def test_what_spark_submit_is_given(operator, spark, says):
    spark.runs = [says("stopped")]
    operator(
        application_args=["--topic", 7],
        conf={"a": "b"},
        py_files="x.py",
        spark_submit={"driver_memory": "1g"},
    ).execute({})
    assert spark.constructed[0] == {
        "conn_id": "spark_default",
        "conf": {"a": "b", "spark.redaction.regex": ANY},
        "py_files": "x.py",
        "files": None,
        "name": "etl",
        "application_args": ["--topic", "7"],
        "deploy_mode": "client",
        "driver_memory": "1g",
    }


def test_the_package_is_shipped_beside_the_users_files(operator, spark, store):
    def app(fake):
        mine, shipped = fake.constructed[-1]["py_files"].split(",")
        names = zipfile.ZipFile(shipped).namelist()
        assert mine == "x.py"
        assert "airflow_eos/core/delivery/batch.py" in names
        write_heartbeat(store, heartbeat("stopped", started_by=started_by(spark)))

    spark.runs = [app]
    operator(ship_package=True, py_files="x.py", max_restarts=0).execute({})


def test_template_fields_are_rendered(operator):
    task = operator(
        checkpoint_location="{{ root }}/ck",
        application_args=["--day", "{{ ds }}"],
        conf={"spark.app": "{{ ds }}"},
    )
    task.render_template_fields({"root": "/data", "ds": "2026-01-01"})
    assert task.checkpoint_location == "/data/ck"
    assert task.application_args == ["--day", "2026-01-01"]
    assert task.conf == {"spark.app": "2026-01-01"}
    assert "storage_options" not in task.template_fields


def test_no_secret_is_in_what_the_page_of_rendered_templates_shows(operator, monkeypatch):
    """Airflow masks by names of its own, and the hook prints its command line."""
    masked: list[str] = []
    monkeypatch.setattr("airflow_eos.hooks.store.mask_secret", masked.append)
    account = "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net"
    task = operator(
        conf={account: "{{ key }}", "spark.app": "x"},
        env_vars={"JAAS_CONFIG_FILE": "/etc/jaas", "DB_PASSWORD": "hush-hush"},
        application_args=["--registry", "http://me:of-mine@registry/"],
    )
    task.render_template_fields({"key": "of-the-lake"})
    assert sorted(masked) == ["hush-hush", "of-mine", "of-the-lake"]


@pytest.mark.parametrize(
    "given",
    [
        {"application_args": ["--db-password", "hush-hush"]},
        {"application_args": ["--db-password=hush-hush", "--password-file", "/etc/it"]},
        {"application_args": ["--to", "jdbc:mysql://h/shop?user=me&password=hush-hush&ssl=1"]},
        {"application_args": ["--url=jdbc:sqlserver://h/shop?password=hush-hush"]},
        {"conf": {"spark.app": 'Login required username="me" password="hush-hush";'}},
        {"outputs": "host=db user=me password='hush-hush' dbname=shop"},
        {"outputs": '[{"kind": "x", "options": {"user": "me", "password": "hush-hush"}}]'},
    ],
    ids=["option", "joined", "jdbc", "joined jdbc", "jaas", "dsn", "json"],
)
def test_no_secret_within_a_text_is_in_what_the_page_of_rendered_templates_shows(
    operator, monkeypatch, given
):
    masked: list[str] = []
    monkeypatch.setattr("airflow_eos.hooks.store.mask_secret", masked.append)
    operator(**given).render_template_fields({})
    assert set(masked) == {"hush-hush"}


def test_a_secret_of_conf_is_said_to_be_on_the_command_line(operator, spark, says, monkeypatch):
    warned: list[str] = []
    log = SimpleNamespace(warning=lambda text, *given: warned.append(text % given))
    spark.runs = [says("stopped")]
    task = operator(conf={"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.app": "x"})
    monkeypatch.setattr(type(task), "log", log)
    task.execute({})
    [said] = [each for each in warned if each.startswith("conf has")]
    assert "conf has spark.hadoop.fs.s3a.secret.key: everybody" in said
    assert "hunter2" not in said

"""SparkStreamingOperator where the driver is no child: deploy mode cluster, and deferred."""

from __future__ import annotations

import json
import logging
import stat
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.triggers.base import BaseTrigger

from airflow_eos.core.checkpoint import StartedBy, drain_requested, read_heartbeat, write_heartbeat
from airflow_eos.core.checkpoint.drain import request_to
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, Phase
from airflow_eos.errors import AppFailedError, AppStoppedError
from airflow_eos.hooks.spark import SubmitTarget
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.operators.submission import rules_of
from airflow_eos.ops.packaging import private_folder
from airflow_eos.ops.supervision import heartbeat_monitor as stopping
from airflow_eos.ops.supervision.exit_status import ended
from airflow_eos.plugins.page import EosPagePlugin
from tests.support.beats import beside
from tests.unit.operators.conftest import PASSWORD, FakeSpark, heartbeat, started_by
from tests.unit.operators.test_streaming import asked_to_drain, of_task

CLUSTER: dict[str, Any] = {
    "master": "yarn",
    "deploy_mode": "cluster",
    "host": "node-7",
    "interval_ms": 500,  # so that a busy machine makes nobody silent
}
IN_IMAGE = "local:///apps/etl.py"
MOUNTED = {"EOS_KAFKA_CONFIG_FILE": "/etc/eos/kafka.json"}


# Below Airflow 3.3 a task that its user's stop is to reach does not defer.
DEFERS: dict[str, Any] = {
    "deferrable": True,
    "cancel": "drain" if hasattr(BaseTrigger, "on_kill") else "leave",
}


SOON = timedelta(seconds=0.5)
"""What never comes is waited for so long; what comes has minutes, since the machine may be busy."""


@pytest.fixture
def yarn(monkeypatch):
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


@pytest.fixture
def kubernetes(monkeypatch):
    extra = {"deploy-mode": "cluster", "namespace": "etl"}
    connection = {"conn_type": "spark", "host": "k8s://https://api", "port": 6443, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def stopped_once(task: SparkStreamingOperator, reached: Callable[[], bool]) -> threading.Thread:
    """Airflow's call, from a thread, once something is so."""

    def wait() -> None:
        while not reached():
            time.sleep(0.005)
        task.on_kill()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def told(fake: FakeSpark) -> Any:
    """The driver's variables, which the manager hands on."""
    return fake.constructed[-1]["env_vars"]


def told_files(fake: FakeSpark) -> list[str]:
    """What is shipped, as Spark names it."""
    return str(fake.constructed[-1]["files"]).split(",")


@pytest.fixture
def driver(store):
    """A driver that comes up on another machine after the submit, beats, and says ``phases``."""
    threads = []

    def app(*phases, after_s=0.05, **last):
        def run(fake: FakeSpark) -> None:
            us = StartedBy.of_text(told(fake)[STARTED_BY])

            def drive() -> None:
                time.sleep(after_s)
                for phase in phases[:-1]:
                    write_heartbeat(store, heartbeat(phase, started_by=us, **CLUSTER))
                    time.sleep(0.05)
                end = heartbeat(phases[-1], started_by=us, **CLUSTER, **last)
                write_heartbeat(store, end)

            threads.append(threading.Thread(target=drive))
            threads[-1].start()

        return run

    yield app
    for each in threads:
        each.join()


def test_the_submit_returns_and_the_heartbeat_is_watched_to_its_end(operator, yarn, spark, driver):
    spark.runs = [driver("starting", "waiting", "stopped", end="finished")]
    assert operator().execute(of_task())["end"] == "succeeded"
    assert len(spark.calls) == 1


def test_a_driver_elsewhere_that_fails_is_recovered_and_started_again(
    operator, yarn, spark, driver, kafka
):
    spark.calls = kafka.calls
    spark.runs = [
        driver("waiting", "failed", end="failed", reason="RowError: x"),
        driver("waiting", "stopped", end="finished"),
    ]
    assert operator().execute(of_task())["restarts"] == 1
    assert kafka.calls == [
        *("plan", "execute", "submit /apps/etl.py"),
        *("plan", "force", "submit /apps/etl.py"),
        *("plan", "force"),
    ]


def test_yarn_restarts_nothing_by_itself_and_spark_submit_does_not_wait(
    operator, yarn, spark, driver
):
    spark.runs = [driver("stopped", end="finished")]
    operator().execute(of_task())
    conf = spark.constructed[0]["conf"]
    assert conf["spark.yarn.maxAppAttempts"] == "1"
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert spark.constructed[0]["deploy_mode"] == "cluster"


def test_a_setting_by_which_two_would_restart_the_driver_is_refused(operator, yarn, spark):
    with pytest.raises(AirflowFailException, match=r"maxAppAttempts=3.*Leave it out"):
        operator(conf={"spark.yarn.maxAppAttempts": "3"}).execute(of_task())
    assert spark.calls == []


def test_secrets_go_to_yarn_as_files_and_stand_in_no_argument(
    operator, yarn, spark, driver, caplog
):
    files = {}

    def submitted(fake):
        for shipped in fake.constructed[-1]["files"].split(","):
            path, _, alias = shipped.partition("#")
            files[alias] = Path(path).read_text()
            assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        driver("stopped", end="finished")(fake)

    spark.runs = [submitted]
    outputs = [{"name": "orders", "kind": "kafka", "topic": "a"}]
    with caplog.at_level(logging.DEBUG):
        operator(outputs=outputs, transactional_id_prefix="p").execute(of_task())
    assert json.loads(files["eos-kafka.json"])["sasl.password"] == PASSWORD
    assert json.loads(files["eos-outputs.json"]) == outputs
    assert told(spark)["EOS_KAFKA_CONFIG_FILE"] == "eos-kafka.json"
    assert told(spark)["EOS_OUTPUTS"] == "eos-outputs.json"
    assert told(spark)["EOS_READ_ONCE"] == "EOS_KAFKA_CONFIG_FILE"
    assert not any(set("\"'$`\\") & set(value) for value in told(spark).values())
    assert PASSWORD not in repr([spark.constructed, spark.popen, caplog.text])


@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_file_that_a_person_keeps_is_neither_replaced_nor_removed(
    operator, spark, says, driver, mode, monkeypatch
):
    host = {"host": "yarn", "extra": {"deploy-mode": mode}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **host}))
    spark.runs = [driver("stopped", end="finished") if mode == "cluster" else says("stopped")]
    operator(application=IN_IMAGE, env_vars=MOUNTED).execute(of_task())
    handed = told(spark) if mode == "cluster" else spark.popen[0]["env"]
    assert handed["EOS_KAFKA_CONFIG_FILE"] == "/etc/eos/kafka.json"
    assert handed["EOS_READ_ONCE"] == ""
    assert not spark.constructed[0]["files"]


def test_secrets_are_gone_from_the_worker_once_they_were_submitted(operator, yarn, spark, store):
    """The driver does not come up before they are."""
    driving: list[threading.Thread] = []

    def submitted(fake):
        shipped = [Path(each.partition("#")[0]) for each in told_files(fake)]
        assert shipped
        assert all(each.exists() for each in shipped)
        us = StartedBy.of_text(told(fake)[STARTED_BY])

        def drive():
            while any(each.exists() for each in shipped):
                time.sleep(0.005)
            write_heartbeat(store, heartbeat("waiting", started_by=us, **CLUSTER))
            write_heartbeat(store, heartbeat("stopped", started_by=us, end="finished", **CLUSTER))

        driving.append(threading.Thread(target=drive))
        driving[0].start()

    spark.runs = [submitted]
    assert operator().execute(of_task())["end"] == "succeeded"
    driving[0].join()


def test_a_deferred_task_leaves_nothing_of_a_driver_in_the_cluster_on_its_worker(
    operator, yarn, spark, driver, store
):
    folders: list[Path] = []

    def submitted(fake):
        folders.extend(Path(each.partition("#")[0]).parent for each in told_files(fake))
        driver(*["waiting"] * 20)(fake)

    spark.runs = [submitted]
    with pytest.raises(TaskDeferred):
        operator(**DEFERS).execute(of_task())
    assert len(folders) == 1
    assert not folders[0].exists()


def test_a_driver_that_never_comes_up_is_told_to_end_should_it_still_come(
    operator, yarn, spark, store
):
    spark.runs = [lambda _: None]
    with pytest.raises(AppFailedError, match=r"never seen.*of the submit"):
        operator(max_restarts=0, submit_timeout=SOON).execute(of_task())
    us = StartedBy.of_text(told(spark)[STARTED_BY])
    assert drain_requested(store, submission=us.submission) is not None


def test_killed_between_the_submit_and_the_first_heartbeat_the_next_try_starts_no_second_one(
    operator, yarn, spark, store, monkeypatch
):
    """The submit went through, and nobody has written that down anywhere."""

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    def lives(fake):
        us = StartedBy.of_text(told(fake)[STARTED_BY])

        def drive():
            while not taken_over.wait(0.01):
                write_heartbeat(store, heartbeat("waiting", started_by=us, **CLUSTER))
            write_heartbeat(store, heartbeat("stopped", started_by=us, end="finished", **CLUSTER))

        driving.append(threading.Thread(target=drive))
        driving[0].start()

    def watched(*seen):
        taken_over.set()
        return ended(*seen)

    driving: list[threading.Thread] = []
    taken_over = threading.Event()
    spark.runs = [lives]
    with monkeypatch.context() as dying:
        dying.setattr("airflow_eos.ops.supervision.run.ended", die)
        with pytest.raises(Killed):
            operator(cancel="leave").execute(of_task())
    while read_heartbeat(store) is None:
        time.sleep(0.005)
    monkeypatch.setattr("airflow_eos.ops.supervision.run.ended", watched)
    assert operator().execute(of_task())["end"] == "succeeded"
    driving[0].join()
    assert len(spark.calls) == 1


def test_a_driver_elsewhere_that_does_not_drain_is_killed_by_its_manager(
    operator, yarn, spark, store, monkeypatch
):
    asked, beats = [], threading.Event()

    def lives(fake):
        us = StartedBy.of_text(told(fake)[STARTED_BY])

        def beat():
            while not beats.wait(0.01):
                write_heartbeat(
                    store, heartbeat(started_by=us, application_id="application_1_2", **CLUSTER)
                )

        threading.Thread(target=beat, daemon=True).start()

    def manager(command):
        asked.append(command)
        if "-kill" in command:
            beats.set()
        return "application_1_2 etl", "done"

    monkeypatch.setattr(stopping, "_asked", manager)
    spark.runs = [lives]
    task = operator(drain_timeout=timedelta(seconds=0.2))
    killer = stopped_once(task, lambda: read_heartbeat(store) is not None)
    with pytest.raises(AppStoppedError):
        task.execute(of_task())
    killer.join()
    beats.set()
    us = StartedBy.of_text(told(spark)[STARTED_BY])
    assert {tuple(each[-2:]) for each in asked} == {
        ("-appTags", f"eos-{us.submission}"),
        ("-kill", "application_1_2"),
    }
    assert drain_requested(store, submission=us.submission) is not None


def test_a_submit_whose_reply_was_lost_is_no_failure_of_the_driver_that_lives(
    operator, yarn, spark, driver, store
):
    """YARN has accepted it, and the connection broke before spark-submit knew."""
    comes_up = driver(*["waiting"] * 8, "stopped", after_s=0, end="finished")

    def reply_lost(fake):
        comes_up(fake)
        while read_heartbeat(store) is None:
            time.sleep(0.005)
        raise RuntimeError("Cannot execute: spark-submit. Error code is: 1.")

    spark.runs = [reply_lost]
    assert operator().execute(of_task()) == {"batch_id": None, "restarts": 0, "end": "succeeded"}
    assert len(spark.calls) == 1


def test_a_submit_that_failed_is_called_off_before_another_is_made(
    operator, yarn, spark, driver, store
):
    """It may have been accepted all the same, and come up later."""
    first = []

    def lost(fake):
        first.append(StartedBy.of_text(told(fake)[STARTED_BY]).submission)
        raise RuntimeError("Cannot execute: spark-submit. Error code is: 1.")

    def second(fake):
        assert drain_requested(store, submission=first[0]) is not None
        driver("stopped", end="finished")(fake)

    spark.runs = [lost, second]
    assert operator().execute(of_task())["restarts"] == 1
    us = StartedBy.of_text(told(spark)[STARTED_BY])
    assert drain_requested(store, submission=us.submission) is None


def test_kubernetes_gets_its_secrets_mounted_or_is_refused_by_what_to_set(
    operator, kubernetes, spark, driver
):
    with pytest.raises(AirflowFailException, match=r"kubernetes.driver.secrets.*EOS_KAFKA_CONFIG"):
        operator(application=IN_IMAGE, max_restarts=0).execute(of_task())
    assert spark.constructed == []
    spark.runs = [driver("stopped", end="finished")]
    operator(application=IN_IMAGE, env_vars=MOUNTED).execute(of_task())
    made = spark.constructed[0]
    assert made["track_driver_via_k8s_api"] is True
    assert made["conf"]["spark.kubernetes.submission.waitAppCompletion"] == "false"
    submission = StartedBy.of_text(made["env_vars"][STARTED_BY]).submission
    assert made["conf"]["spark.kubernetes.driver.pod.name"] == f"eos-{submission}-driver"
    assert "EOS_READ_ONCE" not in made["env_vars"], "a mounted secret cannot be removed"


def test_a_pod_whose_name_is_given_could_be_followed_by_no_other_and_is_refused(
    operator, kubernetes, spark
):
    """Kubernetes answers "already exists" to each restart: the pod that died is still there."""
    given = {"application": IN_IMAGE, "env_vars": MOUNTED}
    with pytest.raises(AirflowFailException, match=r"pod.name=orders.*Leave it out: each start"):
        operator(conf={"spark.kubernetes.driver.pod.name": "orders"}, **given).execute(of_task())
    assert spark.constructed == []


@pytest.mark.parametrize(
    ("arguments", "lacks"),
    [
        ({"application": "/opt/app.py"}, "/opt/app.py"),
        ({"application": "file:///opt/app.py"}, "file:///opt/app.py"),
        ({"jars": "local:///a.jar,/b.jar"}, "/b.jar"),
        ({"py_files": "x.py"}, "x.py"),
        ({"ship_package": True}, r"this package \(ship_package\)"),
    ],
)
def test_kubernetes_is_refused_what_nothing_brings_into_a_pod(
    operator, kubernetes, spark, driver, arguments, lacks
):
    """Spark itself fails in a trace, and each restart would again."""
    given = {"application": IN_IMAGE, "env_vars": MOUNTED, **arguments}
    with pytest.raises(AirflowFailException, match=f"brings {lacks} to the driver's pod"):
        operator(**given).execute(of_task())
    assert spark.constructed == []
    spark.runs = [driver("stopped", end="finished")]
    operator(conf={"spark.kubernetes.file.upload.path": "s3a://lake/up"}, **given).execute(
        of_task()
    )
    assert len(spark.constructed) == 1


def test_a_secret_in_a_variable_is_refused_where_variables_are_on_the_command_line(
    operator, yarn, spark, driver
):
    secret = {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    with pytest.raises(AirflowFailException, match=r"AWS_SECRET_ACCESS_KEY.*--files") as refused:
        operator(env_vars=secret).execute(of_task())
    assert "hunter2" not in str(refused.value)
    assert spark.constructed == []
    spark.runs = [driver("stopped", end="finished")]
    operator(env_vars={"REGISTRY_PASSWORD_FILE": "registry"}).execute(of_task())
    assert told(spark)["REGISTRY_PASSWORD_FILE"] == "registry"


def test_without_the_provider_for_kubernetes_the_task_says_what_to_install(
    operator, kubernetes, kafka, monkeypatch
):
    def lacks(**_):
        raise RuntimeError("kubernetes dependencies are not installed!")

    monkeypatch.setattr("airflow_eos.hooks.spark.SparkSubmitHook", lacks)
    task = operator(application=IN_IMAGE, env_vars=MOUNTED)
    with pytest.raises(AirflowFailException, match="providers-cncf-kubernetes"):
        task.execute(of_task())


# --- deferred


def test_once_it_beats_the_task_defers_and_the_app_keeps_what_it_runs_from(operator, spark, store):
    ended = threading.Event()

    def lives(fake):
        while not ended.wait(0.01):
            write_heartbeat(store, heartbeat(started_by=started_by(fake)))
        write_heartbeat(store, heartbeat("stopped", end="finished", started_by=started_by(fake)))

    spark.runs = [lives]
    task, context = operator(**DEFERS), of_task()
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    kept = Path(spark.popen[0]["env"]["EOS_KAFKA_CONFIG_FILE"]).parent
    assert kept.exists()
    (page,) = EosPagePlugin.external_views
    shown = f"/plugin/{page['url_route']}#/"
    assert any(shown in str(each) for each in context["ti"].pushed.values())
    assert asked_to_drain(spark, store) is None
    assert deferred.value.method_name == "execute_complete"
    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_eos.triggers.app.AppTrigger"
    assert PASSWORD not in json.dumps(arguments)
    ended.set()
    while read_heartbeat(store).phase != "stopped":
        time.sleep(0.005)
    event = {"submission": arguments["watch"]["submission"], "end": "SUCCEEDED", "found": "x"}
    done = task.execute_complete(of_task(), {**event, "failures": [], "began_s": 1.0})
    assert done == {"batch_id": None, "restarts": 0, "end": "succeeded"}
    assert not kept.exists()


@pytest.fixture
def driving(store):
    """The app of a try before, which lives until somebody asks it to stop."""
    us = StartedBy(dag_id="d", task_id="etl", run_id="r1", map_index=-1, submission="s0")

    def lives(ended: threading.Event) -> None:
        n = 0
        while not ended.wait(0.01):
            n += 1
            phase: Phase = "waiting" if request_to(store, "s0") is None else "stopped"
            write_heartbeat(store, heartbeat(phase, started_by=us, beat_at_ms=n))
            if phase == "stopped":
                return

    write_heartbeat(store, heartbeat(started_by=us))
    with beside(lives):
        yield


UNWATCHED = {
    "raised": "ValueError",
    "error": "x",
    "submission": "s0",
    "began_s": 1.0,
    "failures": [],
}


@pytest.mark.usefixtures("driving")
def test_the_time_of_a_task_goes_along_from_deferral_to_deferral(operator):
    """Airflow counts anew in each process, and not at all in between: the timeout never came."""
    allowed = {**DEFERS, "execution_timeout": timedelta(hours=1)}
    with pytest.raises(TaskDeferred) as first:
        operator(**allowed).execute(of_task())
    assert timedelta(minutes=50) < first.value.timeout <= timedelta(hours=1)
    until_s = time.time() + 600
    assert 0 <= until_s + 3000 - (first.value.kwargs or {})["until_s"] < 600
    with pytest.raises(TaskDeferred) as second:
        operator(**allowed).execute_complete(of_task(), UNWATCHED, until_s=until_s)
    assert timedelta(0) < second.value.timeout <= timedelta(seconds=600)
    assert second.value.kwargs == {"until_s": until_s}


@pytest.mark.usefixtures("driving")
@pytest.mark.parametrize(
    "resumed",
    [
        ("__fail__", {"error": "Trigger timeout"}),
        ("execute_complete", {"event": UNWATCHED, "until_s": 1.0}),
    ],
    ids=["by the scheduler", "by an event that came too late"],
)
@pytest.mark.parametrize(("cancel", "asked"), [("drain", True), ("leave", False)])
def test_a_task_that_ran_out_of_time_while_it_was_deferred_stops_its_app(
    operator, store, spark, resumed, cancel, asked
):
    """It went on, and nobody watched it."""
    task = operator(deferrable=True, cancel=cancel, execution_timeout=timedelta(hours=1))
    with pytest.raises(AirflowTaskTimeout):
        task.resume_execution(*resumed, of_task())
    request = request_to(store, "s0")
    assert (request is not None) is asked
    assert spark.calls == [], "nothing is started"


def test_a_deferred_app_that_vanished_is_recovered_and_started_again_and_deferred_again(
    operator, spark, store, kafka
):
    over = threading.Event()

    def lives(fake):
        while not over.wait(0.01):
            write_heartbeat(store, heartbeat(started_by=started_by(fake)))

    spark.runs = [lives]
    event = {"submission": "s0", "end": "VANISHED", "found": "silent", "began_s": 1.0}
    with pytest.raises(TaskDeferred) as deferred:
        operator(**DEFERS).execute_complete(of_task(), {**event, "failures": [[1.0, 2.0]]})
    over.set()
    watch = deferred.value.trigger.serialize()[1]["watch"]
    assert len(watch["failures"]) == 2
    assert watch["submission"] != "s0"
    event["failures"] = [[1.0, 2.0]] * 3
    with pytest.raises(AppFailedError, match=r"failed 4 times.*vanished"):
        operator(**DEFERS, submit_timeout=SOON, patience=SOON).execute_complete(of_task(), event)


def test_a_deferred_app_that_the_try_before_drained_is_started_again_and_costs_no_restart(
    operator, spark, says
):
    spark.runs = [says("stopped")]
    event = {"submission": "s0", "end": "CALLED_OFF", "found": "x", "began_s": 1.0, "failures": []}
    assert operator().execute_complete(of_task(), event)["restarts"] == 0
    assert len(spark.calls) == 1


def test_where_the_trigger_could_not_go_on_the_app_that_lives_is_taken_over_again(
    operator, spark, store
):
    us = StartedBy(dag_id="d", task_id="etl", run_id="r1", map_index=-1, submission="s0")
    ended = threading.Event()

    def lives():
        while not ended.wait(0.01):
            write_heartbeat(store, heartbeat(started_by=us))

    write_heartbeat(store, heartbeat(started_by=us))
    thread = threading.Thread(target=lives)
    thread.start()
    event = {"raised": "ValueError", "error": "x", "submission": "s0", "began_s": 1.0}
    with pytest.raises(TaskDeferred) as deferred:
        operator(**DEFERS).execute_complete(of_task(), {**event, "failures": [[1.0, 2.0]]})
    ended.set()
    thread.join()
    watch = deferred.value.trigger.serialize()[1]["watch"]
    assert (watch["submission"], watch["failures"]) == ("s0", [[1.0, 2.0]])
    assert spark.calls == []


@pytest.mark.parametrize(("cancel", "stays"), [("drain", True), ("leave", False)])
def test_where_no_trigger_is_told_of_a_users_stop_the_task_stays_to_be_told(
    operator, yarn, spark, monkeypatch, cancel, stays
):
    """Airflow below 3.3."""
    monkeypatch.delattr(BaseTrigger, "on_kill", raising=False)
    task = operator(deferrable=True, cancel=cancel)
    target = SubmitTarget.of("spark_default", deploy_mode=None, conf={})
    assert rules_of(task, target).hand_over is not stays


@pytest.mark.skipif(
    not hasattr(BaseTrigger, "on_kill"), reason="Airflow < 3.3 tells no trigger of a user's stop"
)
@pytest.mark.parametrize("cancel", ["drain", "kill", "leave"])
def test_where_the_trigger_is_told_of_a_users_stop_the_task_leaves(operator, yarn, spark, cancel):
    task = operator(deferrable=True, cancel=cancel)
    target = SubmitTarget.of("spark_default", deploy_mode=None, conf={})
    assert rules_of(task, target).hand_over


def test_in_a_pod_of_its_own_the_task_stays_with_its_driver(operator, spark, says, monkeypatch):
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    spark.runs = [says("stopped")]
    assert operator(deferrable=True).execute(of_task())["end"] == "succeeded"


def test_deferrable_is_airflows_default(operator, monkeypatch):
    assert operator().deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert operator().deferrable is True


def test_what_is_kept_for_an_app_is_removed_by_the_next_start(operator, spark, says, store):
    from airflow_eos.ops.packaging import leave_behind

    with private_folder(store.location) as left:
        leave_behind(left)
    assert left.exists()
    spark.runs = [says("stopped")]
    operator().execute(of_task())
    assert not left.exists()


# --- cancel


def test_leave_lets_the_app_go_on_for_the_next_try(operator, spark, store):
    done = threading.Event()

    def lives(fake):
        while not done.wait(0.01):
            write_heartbeat(store, heartbeat(started_by=started_by(fake)))

    spark.runs = [lives]
    task = operator(cancel="leave")
    killer = stopped_once(task, lambda: bool(spark.calls))
    with pytest.raises(AppStoppedError):
        task.execute(of_task())
    killer.join()
    assert not spark.killed
    assert asked_to_drain(spark, store) is None
    kept = Path(spark.popen[0]["env"]["EOS_KAFKA_CONFIG_FILE"])
    assert kept.exists(), "the app may still have to read what it was told"
    done.set()


def test_kill_does_not_ask_first(operator, spark, store):
    def hangs(fake):
        while not fake.killed:
            time.sleep(0.005)

    spark.runs = [hangs]
    task = operator(cancel="kill")
    killer = stopped_once(task, lambda: bool(spark.calls))
    with pytest.raises(AppStoppedError):
        task.execute(of_task())
    killer.join()
    assert spark.killed
    assert asked_to_drain(spark, store) is None

"""SparkSubmission against the real ``SparkSubmitHook``; which failures are tried again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import airflow.sdk
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.errors import (
    NO_RETRY_HEALS,
    AppFailedError,
    ConfigurationError,
    KafkaUnavailableError,
)
from airflow_eos.hooks.arguments import no_retry_where_useless
from airflow_eos.hooks.spark import SparkSubmission, SubmitTarget
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.ops.packaging import Secrets


@pytest.fixture
def submission(tmp_path, monkeypatch):
    """An app in shell, started as spark-submit would be."""
    connection = {"conn_type": "spark", "host": "local[1]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "postgres://user:hunter-two@host/db")

    def make(script: str, **env: str) -> SparkSubmission:
        binary = tmp_path / "spark-submit"
        binary.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        binary.chmod(0o700)
        arguments = {"spark_binary": str(binary), "application_args": ["--topic", "orders"]}
        return SparkSubmission("app.py", env=env, arguments=arguments)

    return make


def finish(started: SparkSubmission) -> None:
    deadline = time.monotonic() + 300
    while started.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until(path: Path, seconds: float = 300) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


def test_exit_0_is_no_failure(submission):
    app = submission("exit 0")
    assert not app.running
    app.start()
    finish(app)
    assert app.failure is None


def test_another_exit_status_is_a_failure_with_the_last_output(submission):
    app = submission("echo SupersededError: batch 7; exit 3")
    app.start()
    finish(app)
    assert "Error code is: 3" in str(app.failure)
    assert "SupersededError: batch 7" in str(app.failure)


def test_settings_reach_the_app_by_its_environment_and_no_command_line(submission, tmp_path):
    app = submission(
        'echo "$@" > argv; echo "$EOS_KAFKA_CONFIG_FILE:$AIRFLOW_CONN_OTHER" > env',
        EOS_KAFKA_CONFIG_FILE="/private/kafka.json",
    )
    app.start()
    finish(app)
    assert "kafka.json" not in (tmp_path / "argv").read_text()
    assert "app.py --topic orders" in (tmp_path / "argv").read_text()
    # Airflow's own connections are none of the driver's business.
    assert (tmp_path / "env").read_text() == "/private/kafka.json:\n"


def test_a_kill_ends_the_app(submission, tmp_path):
    app = submission("echo $$ > pid; exec sleep 600")
    app.start()
    until(tmp_path / "pid")
    while app.running:  # the hook may know of its process a moment after that has begun
        app.kill()
        time.sleep(0.01)
    assert app.failure is not None


def test_a_signal_to_the_tasks_process_group_does_not_reach_the_app(submission, tmp_path):
    """Airflow ends a cleared task by ``killpg``; the app must live to drain."""
    app = submission("echo $$ > pid; exec sleep 600")
    app.start()
    pid = int(until(tmp_path / "pid"))
    try:
        assert os.getpgid(pid) != os.getpgid(0)
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
        finish(app)


def test_the_app_lives_to_drain_after_airflow_has_killed_its_task(submission, tmp_path):
    """5 s after a user's clear the task's whole process group gets SIGKILL."""
    submission("echo $$ > pid; while [ ! -e drain.json ]; do sleep 0.05; done; echo ok > drained")
    task = """
import sys, time
from airflow_eos.hooks.spark import SparkSubmission
app = SparkSubmission("app.py", env={}, arguments={"spark_binary": sys.argv[1]})
app.start()
time.sleep(600)
"""
    command = [sys.executable, "-c", task, str(tmp_path / "spark-submit")]
    process = subprocess.Popen(command, start_new_session=True)
    until(tmp_path / "pid")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(120)
    (tmp_path / "drain.json").touch()
    assert until(tmp_path / "drained") == "ok\n"


def test_the_tasks_socket_to_its_supervisor_is_not_the_apps(submission, tmp_path):
    """Airflow puts it on fd 0: who inherits it keeps the supervisor of a killed task waiting."""
    app = submission('for fd in /proc/$$/fd/*; do echo "$fd $(readlink $fd)"; done > fds')
    supervisor, task = socket.socketpair()
    theirs, ours = socket.socketpair()
    kept = os.dup(0)
    os.dup2(task.fileno(), 0)  # inheritable, as the supervisor does it
    try:
        app.start()
        finish(app)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        for each in (supervisor, task, theirs, ours):
            each.close()
    opened = dict(line.split(" ", 1) for line in (tmp_path / "fds").read_text().splitlines())
    fds = {name.rsplit("/", 1)[1]: what for name, what in opened.items()}
    assert fds["0"] == "/dev/null"
    assert not [what for what in fds.values() if what.startswith("socket:")]


def test_an_app_that_talks_while_it_drains_does_not_block_on_a_full_pipe(submission):
    line = "0123456789" * 8
    app = submission(f"i=0; while [ $i -lt 3000 ]; do echo {line}; i=$((i+1)); done")
    app.start()
    finish(app)
    assert app.failure is None


def test_an_app_that_prints_what_is_no_text_goes_on_and_is_watched(submission, tmp_path):
    """Its process was taken for ended: left behind, unread, with another started beside it."""
    app = submission("printf '\\377\\n'; sleep 0.5; echo on > goes")
    app.start()
    finish(app)
    assert app.failure is None
    assert (tmp_path / "goes").read_text() == "on\n"


# --- Where an app is submitted to, and how its secrets get there ----------------------------------


KUBERNETES = "k8s://https://api:6443"
SECRETS = Secrets(kafka={"sasl.password": "hunter2"}, storage={})


@pytest.mark.parametrize("master", [KUBERNETES, "yarn", "local[2]"])
def test_a_driver_on_this_machine_reads_our_files_whoever_runs_its_executors(tmp_path, master):
    handed = SubmitTarget(conn_id="spark", master=master).hand_over(SECRETS, tmp_path, {})
    assert handed.told["EOS_KAFKA_CONFIG_FILE"] == str(tmp_path / "kafka.json")
    assert handed.shipped == {}


def test_kubernetes_is_asked_for_a_mounted_secret_where_the_driver_is_in_a_pod(tmp_path):
    target = SubmitTarget(conn_id="spark", master=KUBERNETES, is_cluster=True)
    with pytest.raises(ConfigurationError, match="EOS_KAFKA_CONFIG_FILE"):
        target.hand_over(SECRETS, tmp_path, {})


# --- What no retry can heal is not retried, and what may be retried is the user's to tell apart ---


@pytest.mark.parametrize("kind", NO_RETRY_HEALS)
def test_what_only_a_person_can_change_fails_where_no_policy_is_asked(kind):
    named = pytest.raises(AirflowFailException, match=rf"{kind.__name__}: why")
    with named, no_retry_where_useless():
        raise kind("why")


@pytest.mark.skipif(
    not hasattr(airflow.sdk, "ExceptionRetryPolicy"),
    reason="Airflow < 3.3 has no ExceptionRetryPolicy",
)
def test_a_retry_policy_is_the_users_and_knows_our_errors_by_name():
    delay = timedelta(minutes=10)
    rule = airflow.sdk.RetryRule("airflow_eos.errors.AppFailedError", retry_delay=delay)
    policy = airflow.sdk.ExceptionRetryPolicy(rules=[rule])
    task = SparkStreamingOperator(
        task_id="etl", application="a.py", checkpoint_location="/c", retry_policy=policy
    )
    assert task.retry_policy is policy
    with pytest.raises(AppFailedError) as failed, no_retry_where_useless():
        raise AppFailedError("it failed twice")
    assert policy.evaluate(failed.value, 1, 3).retry_delay == delay
    assert policy.evaluate(KafkaUnavailableError("away"), 1, 3).retry_delay is None

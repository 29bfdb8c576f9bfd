"""End a driver that is no child: the right process or none, and a sentence that says which."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from airflow_eos.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.checkpoint.starter import STARTED_BY
from airflow_eos.supervision.stopping import kill_elsewhere, kill_if_it_beats

from .lives import beat, started

pytestmark = pytest.mark.unit

HERE = socket.gethostname()


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, STARTED_BY: started().as_text()}
    process = subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=-1)
    yield process
    process.kill()
    process.wait()


def test_a_driver_of_an_earlier_try_on_this_machine_is_killed(driver):
    said = kill_elsewhere(beat(host=HERE, pid=driver.pid, deploy_mode="client", master="local"))
    assert said.endswith("was killed")
    assert driver.wait(10) == -9


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"host": "elsewhere"}, "another machine"),
        ({"started_by": started("another-start")}, "not the driver any more"),
        ({"started_by": None}, "not the driver any more"),
    ],
    ids=["another machine", "the pid is of another process by now", "started by hand"],
)
def test_no_other_process_is_ever_killed(driver, other, says):
    told = {"host": HERE, "pid": driver.pid, "deploy_mode": "client", "master": "local", **other}
    assert says in kill_elsewhere(beat(**told))
    assert driver.poll() is None


def test_a_process_that_is_gone_is_said_to_be(driver):
    driver.kill()
    driver.wait()
    gone = beat(host=HERE, pid=driver.pid, deploy_mode="client", master="local")
    assert "not the driver any more" in kill_elsewhere(gone)


@pytest.mark.parametrize(
    ("heartbeat", "program", "arguments"),
    [
        (
            beat(master="yarn", deploy_mode="cluster", application_id="application_1_2"),
            "spark-class",
            "org.apache.hadoop.yarn.client.cli.ApplicationCLI application -kill application_1_2",
        ),
        (
            beat(
                master="k8s://https://api",
                deploy_mode="cluster",
                host="eos-1-driver",
                namespace="streams",
            ),
            "spark-submit",
            "--master k8s://https://api --kill streams:eos-1-driver",
        ),
        (
            beat(master="k8s://https://api", deploy_mode="cluster", host="eos-1-driver"),
            "spark-submit",
            "--master k8s://https://api --kill eos-1-driver",
        ),
    ],
    ids=["yarn", "kubernetes", "kubernetes, a release that did not say where"],
)
def test_the_manager_is_asked_with_its_own_words(
    tmp_path, monkeypatch, heartbeat, program, arguments
):
    fake = tmp_path / program
    fake.write_text('#!/bin/sh\necho "$@" > "$0.asked"\necho "no such application" >&2\nexit 3\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    said = kill_elsewhere(heartbeat)
    assert (tmp_path / f"{program}.asked").read_text().strip() == arguments
    assert said.endswith("ended with 3: no such application")


def test_a_manager_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "could not be run" in kill_elsewhere(beat(master="yarn", deploy_mode="cluster"))
    unknown = beat(master="mesos://m", deploy_mode="cluster")
    assert "no way is known" in kill_elsewhere(unknown)


@pytest.mark.parametrize(
    "heartbeat",
    [None, beat("stopped"), beat("failed"), beat(started_by=started("another"))],
    ids=["none", "stopped", "failed", "of another start"],
)
def test_what_has_ended_or_is_another_start_is_left_alone(tmp_path, heartbeat, monkeypatch):
    store = CheckpointStore.open(tmp_path)
    if heartbeat is not None:
        write_heartbeat(store, heartbeat)
    monkeypatch.setattr("airflow_eos.supervision.stopping.kill_elsewhere", pytest.fail)
    assert "it has ended" in kill_if_it_beats(store, "s1")

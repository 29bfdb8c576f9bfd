"""End a driver that is no child: the right process or none, and a sentence that says which."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from airflow_eos.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.checkpoint.heartbeat import STARTED_BY
from airflow_eos.supervision.heartbeat_monitor import (
    ClusterManager,
    kill_elsewhere,
    kill_if_it_beats,
)

from tests.unit.supervision.lives import US, beat, started

HERE = socket.gethostname()


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, STARTED_BY: started().as_text()}
    process = subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=-1)
    yield process
    process.kill()
    process.wait()


def test_a_driver_of_an_earlier_try_on_this_machine_is_killed(driver):
    said = kill_elsewhere(beat(host=HERE, pid=driver.pid), ClusterManager())
    assert said.endswith("was killed")
    assert driver.wait(120) == -9


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"host": "elsewhere"}, "another machine"),
        ({"started_by": started("another-start")}, "not the driver any more"),
        ({"started_by": None}, "no start of a task"),
        ({"deploy_mode": "cluster"}, "deploy mode"),
        ({"pid": -1}, "not the driver any more"),
    ],
    ids=["another machine", "another's pid by now", "started by hand", "elsewhere", "everybody"],
)
def test_no_other_process_is_ever_killed(driver, other, says):
    told = {"host": HERE, "pid": driver.pid, **other}
    assert says in kill_elsewhere(beat(**told), ClusterManager())
    assert driver.poll() is None


def test_a_process_that_is_gone_is_said_to_be(driver):
    driver.kill()
    driver.wait()
    assert "not the driver any more" in kill_elsewhere(
        beat(host=HERE, pid=driver.pid), ClusterManager()
    )


def test_a_process_of_another_user_is_left_alone(driver, monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    said = kill_elsewhere(beat(host=HERE, pid=driver.pid), ClusterManager())
    assert said.endswith("belongs to another user")


API = "k8s://https://api"
PODS = ClusterManager(master=API, is_cluster=True, namespace="streams")
YARN = ClusterManager(master="yarn", is_cluster=True)
ANSWERS = """#!/bin/sh
echo "$@" >> "$0.asked"
echo "application_1_2 etl SPARK ops default RUNNING UNDEFINED 10% http://host"
echo "no such application" >&2
exit 3
"""


def in_a_pod(**other):
    place = {"host": "eos-s1-driver", "namespace": "streams", "master": API}
    return beat(**{**place, "deploy_mode": "cluster", **other})


def on_yarn(**other):
    said = {"master": "yarn", "deploy_mode": "cluster", "application_id": "application_1_2"}
    return beat(**{**said, **other})


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What managers were asked: the arguments of the two programs that ask them."""
    for program in ("spark-class", "spark-submit"):
        fake = tmp_path / program
        fake.write_text(ANSWERS)
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def found() -> list[str]:
        files = sorted(tmp_path.glob("*.asked"))
        return [line for file in files for line in file.read_text().splitlines()]

    return found


def test_the_managers_of_the_task_are_asked_by_its_own_names(asked):
    said = kill_elsewhere(in_a_pod(), PODS)
    assert asked() == [f"--master {API} --kill streams:eos-s1-driver"]
    assert said.endswith("ended with 3: no such application")


def test_a_pod_that_the_users_settings_name_is_that_one(asked):
    own = ClusterManager(master=API, is_cluster=True, namespace="streams", pod="etl")
    kill_elsewhere(in_a_pod(host="etl", master="k8s://api/"), own)
    assert asked() == [f"--master {API} --kill streams:etl"]


def test_yarn_ends_what_carries_the_tag_of_the_start(asked):
    kill_elsewhere(on_yarn(), YARN)
    cli = "org.apache.hadoop.yarn.client.cli.ApplicationCLI application"
    assert asked() == [f"{cli} -list -appTags eos-s1", f"{cli} -kill application_1_2"]


@pytest.mark.parametrize("said", ["application_1_3", "application_1_2 -appId x", "", "*"])
def test_an_application_that_yarn_knows_under_no_such_tag_is_not_ended(asked, said):
    """Anybody's id may stand in a heartbeat."""
    assert "nobody was asked to end" in kill_elsewhere(on_yarn(application_id=said), YARN)
    assert len(asked()) == 1, "the list alone"


@pytest.mark.parametrize(
    "heartbeat",
    [
        in_a_pod(master="k8s://http://127.0.0.1:1"),
        in_a_pod(host="*"),
        in_a_pod(host="eos-s2-driver"),
        in_a_pod(namespace="kube-system"),
        in_a_pod(namespace=""),
        in_a_pod(deploy_mode="client"),
        in_a_pod(started_by=None),
        in_a_pod(host="eos-*-driver", started_by=started("*")),
        in_a_pod(host="eos-a b-driver", started_by=started("a b")),
        on_yarn(),
    ],
    ids=lambda each: f"{each.master}, {each.namespace}, {each.host}, {each.deploy_mode}",
)
def test_where_a_heartbeat_says_otherwise_nobody_is_asked(asked, heartbeat):
    said = kill_elsewhere(heartbeat, PODS)
    assert said.startswith("nobody was asked to end the driver that the heartbeat names")
    assert asked() == []


def test_what_a_heartbeat_says_is_shown_without_its_escapes_and_cut(asked):
    said = kill_elsewhere(in_a_pod(host="\x1b[2J\n" + "x" * 10_000), PODS)
    assert said.isprintable()
    assert len(said) < 500


def test_a_manager_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "could not be run" in kill_elsewhere(on_yarn(), YARN)
    assert "could not be run" in kill_elsewhere(in_a_pod(), PODS)


def test_a_start_of_another_task_is_not_taken_for_ours_by_its_name():
    """Its managers know a driver by the name of the start, which anybody may read there."""
    other = started(task_id="another").begun_anew().submission
    ours = US.begun_anew().submission
    assert US.is_same_task(started(ours))
    assert not US.is_same_task(started(other))
    assert started(ours).begun_anew().submission != ours
    assert len(ClusterManager().pod_of(ours)) <= 63, "else the host is not called as the pod is"


@pytest.mark.parametrize(
    "heartbeat",
    [None, beat("stopped"), beat("failed"), beat(started_by=started("another"))],
    ids=["none", "stopped", "failed", "of another start"],
)
def test_what_has_ended_or_is_another_start_is_left_alone(tmp_path, heartbeat, monkeypatch):
    store = CheckpointStore.open(tmp_path)
    if heartbeat is not None:
        write_heartbeat(store, heartbeat)
    monkeypatch.setattr("airflow_eos.supervision.heartbeat_monitor.kill_elsewhere", pytest.fail)
    assert "it has ended" in kill_if_it_beats(store, "s1", ClusterManager())

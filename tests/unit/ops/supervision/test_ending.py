"""How an app ended, how it is ended, by a stop or by a drill: the right process or none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat, write_heartbeat
from airflow_eos.core.checkpoint.heartbeat import STARTED_BY, Heartbeat, StartedBy
from airflow_eos.errors import RecoveryError
from airflow_eos.ops.supervision.drill import Drill
from airflow_eos.ops.supervision.exit_status import (
    IN_ORDER,
    ExitKind,
    NextAction,
    Patience,
    Process,
    choose,
    ended,
)
from airflow_eos.ops.supervision.heartbeat_monitor import (
    ClusterManager,
    kill_elsewhere,
    kill_if_it_beats,
)
from tests.unit.ops.supervision.lives import US, beat, seen, started

PATIENCE = Patience(silent_s=60, first_beat_s=600)
RUNS, EXITED = Process(running=True), Process(running=False)
LOST = Process(running=False, failure=RuntimeError("Error code is: 1"), detached=True)
CRASHED = Process(running=False, failure=RuntimeError("Error code is: 137"))
NEWER = beat(term=2, started_by=started("s2"), application_id="app-2")
BY_HAND = beat(term=2, started_by=None, application_id="app-2")
BEFORE = beat("stopped", started_by=started("s0"))
STUCK = beat("failed", reason="E: y")
OFF = beat("stopped", end="drained", drained_by="airflow")
BY_ANN = beat("stopped", end="drained", drained_by="page ann")
BY_OPS = beat("stopped", end="drained", reason="ops: x")


@pytest.mark.parametrize(
    ("look", "process", "since_s", "expected", "says"),
    [
        (seen(beat()), RUNS, 9999, None, ""),
        (seen(None), RUNS, 599, None, ""),
        (seen(None), RUNS, 600, ExitKind.NEVER_SEEN, "600 s of the submit"),
        (seen(beat(), silent_s=60), RUNS, 0, ExitKind.STALLED, "stand still for 60 s"),
        (seen(beat("failed", end="failed", reason="E: y"), silent_s=59), RUNS, 0, None, ""),
        (seen(STUCK, silent_s=60), RUNS, 0, ExitKind.FAILED, "7 is still there"),
        (seen(beat("failed", end="superseded"), silent_s=60), RUNS, 0, ExitKind.SUPERSEDED, ""),
        (seen(beat("stopped", end="drained"), silent_s=599), RUNS, 0, None, ""),
        (seen(beat("stopped", end="finished"), silent_s=600), RUNS, 0, ExitKind.SUCCEEDED, "600 s"),
        (seen(beat("stopped", end="drained"), silent_s=600), RUNS, 0, ExitKind.DRAINED, ""),
        (seen(NEWER, silent_s=60), RUNS, 599, None, ""),
        (seen(NEWER, silent_s=60), RUNS, 600, ExitKind.SUPERSEDED, "app-2"),
        (seen(beat("stopped", end="finished")), EXITED, 0, ExitKind.SUCCEEDED, "last batch 4"),
        (seen(beat("stopped", end="drained")), EXITED, 0, ExitKind.DRAINED, "last batch 4"),
        (seen(beat("stopped"), moved=False), EXITED, 0, ExitKind.SUCCEEDED, ""),
        (seen(beat("waiting")), EXITED, 0, ExitKind.FAILED, "exited with 0"),
        (seen(beat("failed")), EXITED, 0, ExitKind.FAILED, "exited with 0"),
        (seen(None), EXITED, 0, ExitKind.FAILED, "no heartbeat of this start"),
        (seen(BEFORE, moved=False), EXITED, 0, ExitKind.FAILED, ""),
        (seen(beat("stopped")), CRASHED, 0, ExitKind.FAILED, "137"),
        (seen(beat("failed", reason="RowError: x")), CRASHED, 0, ExitKind.FAILED, "RowError: x"),
        (seen(beat("failed", end="superseded")), CRASHED, 0, ExitKind.SUPERSEDED, ""),
        (seen(NEWER), CRASHED, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(NEWER), EXITED, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(beat()), LOST, 9999, None, ""),
        (seen(beat("stopped", end="finished")), LOST, 0, ExitKind.SUCCEEDED, ""),
        (seen(beat("failed", reason="E: y")), LOST, 0, ExitKind.FAILED, "E: y"),
        (seen(beat(), silent_s=60), LOST, 0, ExitKind.VANISHED, "silent for 60 s"),
        (seen(None), LOST, 0, ExitKind.FAILED, "exited with status 1"),
        (seen(beat()), None, 9999, None, ""),
        (seen(beat("stopped", end="finished")), None, 0, ExitKind.SUCCEEDED, ""),
        (seen(BY_OPS), None, 0, ExitKind.DRAINED, "ops: x"),
        (seen(BY_ANN), None, 0, ExitKind.DRAINED, ""),
        (seen(OFF), None, 0, ExitKind.CALLED_OFF, ""),
        (seen(OFF), EXITED, 0, ExitKind.CALLED_OFF, ""),
        (seen(beat("failed", end="failed", reason="E: y")), None, 0, ExitKind.FAILED, "E: y"),
        (seen(beat("failed", end="superseded")), None, 0, ExitKind.SUPERSEDED, ""),
        (seen(beat(), silent_s=59), None, 9999, None, ""),
        (seen(beat(), silent_s=60), None, 0, ExitKind.VANISHED, "silent for 60 s"),
        (seen(beat("stopped"), silent_s=999), None, 0, ExitKind.SUCCEEDED, ""),
        (seen(NEWER), None, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(BY_HAND), None, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(NEWER, moved=False), None, 599, None, ""),
        (seen(beat("stopped"), term=2), None, 9999, None, ""),
        (seen(beat(), term=2, silent_s=60), None, 9999, ExitKind.SUPERSEDED, "term 2"),
        (seen(None), None, 599, None, ""),
        (seen(None), None, 600, ExitKind.NEVER_SEEN, "600 s of the submit"),
    ],
)
def test_how_it_ended(look, process, since_s, expected, says):
    how = ended(look, "s1", process, PATIENCE, since_s)
    assert (how and how.end) is expected
    assert says in str(how)


def test_who_is_given_up_is_not_taken_over_again_by_the_next_look():
    for silent_s in (0.5, 5.9, 6.0, 7.0):
        look = seen(beat(), silent_s=silent_s)
        how = ended(look, "s1", None, Patience(0.1, 600), 0)
        assert (how is not None) is (choose(look, US, None).action is NextAction.START)


def test_only_a_driver_that_says_that_it_stopped_is_ever_in_order():
    assert {ExitKind.SUCCEEDED, ExitKind.DRAINED} == IN_ORDER
    for phase in ("starting", "waiting", "preparing", "settling", "failed"):
        for process in (RUNS, EXITED, CRASHED, None):
            for silent_s in (0, 9999):
                how = ended(seen(beat(phase), silent_s=silent_s), "s1", process, PATIENCE, 9999)
                assert how is None or not how.in_order


@pytest.mark.parametrize(
    ("heartbeat", "process", "hopeless"),
    [
        (beat("failed", restart_heals=False), None, True),
        (beat("failed", restart_heals=True), None, False),
        (beat("failed", restart_heals=None), None, False),
        (beat("waiting", restart_heals=False), None, False),
        (beat("failed", restart_heals=False), CRASHED, True),
        (beat("failed", restart_heals=True), CRASHED, False),
        (None, CRASHED, False),
        (None, Process(running=False, failure=RuntimeError("Error code is: 78.")), True),
        (None, Process(running=False, failure=RuntimeError("Error code is: 178.")), False),
    ],
)
def test_what_no_restart_can_heal_is_told_apart(heartbeat, process, hopeless):
    how = ended(seen(heartbeat), "s1", process, PATIENCE, 0)
    assert (how is not None and how.hopeless) is hopeless


COMMAND = "Cannot execute: spark-submit " + "--conf a=b " * 300


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("-9", "the app was killed (signal 9): exit status -9"),
        ("137", "the app was killed (signal 9): exit status 137"),
        ("143", "the app was killed (signal 15): exit status 143"),
        ("1", "the app exited with status 1; see its log"),
        ("255", "the app exited with status 255; see its log"),
        ("78", "it refuses to run as it is"),
    ],
)
def test_a_process_that_failed_is_told_in_a_few_words_and_not_by_its_command_line(status, says):
    failure = RuntimeError(f"{COMMAND}. Error code is: {status}.")
    how = ended(seen(None), "s1", Process(running=False, failure=failure), PATIENCE, 0)
    assert says in str(how)
    assert len(str(how)) < 200
    said = beat("failed", reason="STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE: another form")
    how = ended(seen(said), "s1", Process(running=False, failure=failure), PATIENCE, 0)
    assert how.found.startswith("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE: another form (the driver ")


def test_what_spark_submit_could_not_even_begin_is_one_line_and_cut():
    failure = OSError("no such file\n" + "x" * 10_000)
    how = ended(seen(None), "s1", Process(running=False, failure=failure), PATIENCE, 0)
    assert how.found.startswith("no such file x")
    assert len(how.found) == 300


# --- End a driver that is no child: the right process or none, and a sentence that says which -----


HERE = socket.gethostname()


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, STARTED_BY: started().as_text()}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    process = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()  # before it runs, its environment cannot be read
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


def test_what_a_manager_prints_need_be_no_text(asked, tmp_path):
    (tmp_path / "spark-submit").write_text("#!/bin/sh\nprintf 'pod \\377 deleted\\n'\n")
    assert kill_elsewhere(in_a_pod(), PODS).endswith("ended with 0: pod \ufffd deleted")


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
    monkeypatch.setattr("airflow_eos.ops.supervision.heartbeat_monitor.kill_elsewhere", pytest.fail)
    assert "it has ended" in kill_if_it_beats(store, "s1", ClusterManager())


# --- A drill ends only its own driver, and measures until the next one has committed --------------


OURS = StartedBy(dag_id="eos_drill", task_id="run", run_id="r1", map_index=-1, submission="s")


@dataclass
class World:
    """A pipeline whose driver commits what it is fed, a second later; time is told by sleeping."""

    store: CheckpointStore
    restarts_after_s: float = 20
    heeds_kill: bool = True
    now: float = 0
    kills: list[str] = field(default_factory=list)
    batch: int = 7
    fed: int = 0
    comes_back_at: float | None = None

    def driver(self, application_id: str, **changes: object) -> None:
        told = beat(started_by=OURS, application_id=application_id, phase="waiting")
        now_ms = int(self.now * 1000) + 1_000
        made = msgspec.structs.replace(told, beat_at_ms=now_ms, interval_ms=1_000, **changes)
        write_heartbeat(self.store, made)

    def commit(self) -> None:
        self.batch += 1
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
        self.store.put(f"offsets/{self.batch}", f"v1\n{head}\n{{}}".encode())
        self.store.put(f"commits/{self.batch}", b'v1\n{"nextBatchWatermarkMs":0}')

    def feed(self) -> None:
        self.fed += 1

    def kill(self, heartbeat: Heartbeat) -> str:
        self.kills.append(heartbeat.application_id)
        if self.heeds_kill:
            self.comes_back_at = self.now + self.restarts_after_s
        return f"process {heartbeat.pid} was killed"

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.comes_back_at is not None:
            if self.now >= self.comes_back_at:
                self.driver("app-2")
                self.commit()
                self.comes_back_at = None
        elif not self.kills or not self.heeds_kill:
            found = read_heartbeat(self.store)
            assert found is not None
            self.driver("app-1", started_by=found.started_by)
            self.commit()

    def drill(self, **changes: float) -> Drill:
        return Drill(
            store=self.store,
            is_ours=lambda heart: heart.started_by == OURS,
            feed=self.feed,
            first_batch_within_s=changes.get("first", 30),
            recovered_within_s=changes.get("recovered", 100),
            kill=self.kill,
            sleep=self.sleep,
            clock=lambda: self.now,
        )


@pytest.fixture
def world(tmp_path) -> World:
    made = World(CheckpointStore.open(tmp_path))
    made.commit()
    made.driver("app-1")
    return made


def test_it_counts_from_the_kill_to_the_commit_of_the_successor(world):
    found = world.drill().run()
    assert world.kills == ["app-1"]
    assert (found.driver, found.successor, found.seconds) == ("app-1", "app-2", 20)
    assert found.batch == world.batch
    assert world.fed == 2, "rows for both: else there might be nothing to commit"
    assert found.as_json(20)["ok"]
    assert not found.as_json(19.9)["ok"]


@pytest.mark.parametrize(
    "started_by", [None, msgspec.structs.replace(OURS, run_id="r0")], ids=["by hand", "another run"]
)
def test_a_driver_that_is_not_its_own_is_never_ended(world, started_by):
    world.driver("app-1", started_by=started_by)
    with pytest.raises(RecoveryError, match="No driver of this run has committed"):
        world.drill().run()
    assert world.kills == []


def test_a_driver_is_not_ended_before_it_has_committed(world):
    world.sleep = lambda seconds: setattr(world, "now", world.now + seconds)
    with pytest.raises(RecoveryError, match=r"No driver of this run .* within 30 s"):
        world.drill().run()
    assert world.kills == []


def test_a_kill_that_did_nothing_is_no_quick_recovery(world):
    """Its next commit is its own; what could not be ended is said, with what to do."""
    world.heeds_kill = False
    with pytest.raises(RecoveryError, match=r"app-1 lives on.*driver's machine"):
        world.drill().run()


def test_a_driver_that_beats_until_its_cluster_has_ended_it_does_not_live_on(world, monkeypatch):
    """A cluster manager takes seconds: what was beaten before its end was not beaten after."""
    at_once = world.kill

    def kill(heartbeat: Heartbeat) -> str:
        world.now += 10
        world.driver("app-1")
        said: str = at_once(heartbeat)
        return said

    monkeypatch.setattr(world, "kill", kill)
    found = world.drill().run()
    assert (found.successor, found.seconds) == ("app-2", 30)


def test_nobody_in_its_place_ends_the_drill(world):
    world.restarts_after_s = 1_000
    with pytest.raises(RecoveryError, match=r"was killed, and no other driver .* within 100 s"):
        world.drill().run()

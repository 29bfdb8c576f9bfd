"""A try's process is killed while its app lives: the next try takes the app over, on real parts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    Heartbeat,
    Verdict,
    newest_term,
    read_heartbeat,
    request_drain,
)
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.local import spark_jars
from airflow_eos.ops.supervision.heartbeat_monitor import ClusterManager, kill_elsewhere
from demo.leftovers import end_every_process_with, processes_with
from tests.integration.airflow.one_try import operator, task_instance
from tests.integration.airflow.test_streaming import ROWS, Etl
from tests.support.pipeline import ROOT, wait_until

pytestmark = [pytest.mark.usefixtures("connections"), pytest.mark.slow]


class Killed:
    """An app whose task's process was killed, and lives."""

    def __init__(self, broker, topic: Callable[..., str], folder: Path) -> None:
        self.etl = Etl(broker, topic, folder)
        self.store = CheckpointStore.open(self.etl.checkpoint)
        self.arguments: dict[str, Any] = {
            "application": str(ROOT / "spark_apps" / "orders_etl.py"),
            "checkpoint_location": self.etl.checkpoint,
            "transactional_id_prefix": self.etl.input,
            "application_args": [
                *("--input-topic", self.etl.input, "--output-topic", self.etl.output),
                *("--dead-letter-topic", self.etl.rejected, "--max-offsets-per-trigger", "50"),
            ],
            "jars": ",".join(str(jar) for jar in spark_jars()),
            "conf": {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"},
            "restart_delay": 1,
            "patience": 20,
        }

    @property
    def heartbeat(self) -> Heartbeat:
        found = read_heartbeat(self.store)
        assert found is not None
        return found

    @property
    def committed(self) -> int:
        return read_state(self.store).latest_commit or 0

    def read_all(self) -> bool:
        state = read_state(self.store)
        read = [
            sum(ends.values()) for source in state.sources for ends in (source.end or {}).values()
        ]
        return state.in_flight is None and sum(read) == ROWS

    @contextmanager
    def a_try_that_is_killed(self) -> Iterator[Heartbeat]:
        """Its app goes on; whatever happens, nothing of it is left."""
        command = [sys.executable, "-m", "tests.integration.airflow.one_try"]
        first = subprocess.Popen(
            [*command, json.dumps(self.arguments)], cwd=ROOT, start_new_session=True
        )
        try:
            wait_until(
                lambda: self.committed > 1 or first.poll() is not None,
                timeout=300,
                what="the app to deliver",
            )
            assert first.poll() is None
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            yield self.heartbeat
        finally:
            if first.poll() is None:
                first.kill()
                first.wait()
            kill_elsewhere(self.heartbeat, ClusterManager())


@pytest.fixture
def killed(kafka_broker, topic, tmp_path) -> Killed:
    return Killed(kafka_broker, topic, tmp_path)


@pytest.mark.proof
def test_the_next_try_adopts_the_app_of_a_killed_one_and_no_other_app_is_started(killed):
    killed.arguments["patience"] = 300  # nobody falls silent
    with killed.a_try_that_is_killed() as before:
        assert before.deploy_mode == "client"
        assert before.started_by.task == ("orders", "etl", "r1", -1)
        with pytest.raises(AirflowFailException, match=r"started by task orders.etl of run r1"):
            operator(killed.arguments).execute(task_instance(run_id="r2"))

        second = operator(killed.arguments)
        drain = threading.Thread(target=_drain_when_read, args=[killed])
        drain.start()
        result = second.execute(task_instance())
        drain.join()

        assert (result["end"], result["restarts"]) == ("drained", 0)
        after = killed.heartbeat
        assert (after.application_id, after.pid) == (before.application_id, before.pid)
        assert newest_term(killed.store) == 1, "exactly one app has ever delivered"
        report = killed.etl.audit()
        assert (report["ok"], report["rows_in"]) == (True, ROWS)


@pytest.mark.proof
def test_an_adopted_app_that_is_killed_is_recovered_and_started_again(killed):
    with killed.a_try_that_is_killed() as before:
        killed.arguments["patience"] = 8
        second = operator(killed.arguments)

        def kill_it_then_drain() -> None:
            wait_until(lambda: second._stream is not None, timeout=300, what="the second try")
            wait_until(
                lambda: second._stream._app is not None, timeout=300, what="the app to be adopted"
            )
            assert "was killed" in kill_elsewhere(before, ClusterManager())
            wait_until(
                lambda: killed.heartbeat.application_id != before.application_id,
                timeout=300,
                what="another app",
            )
            _drain_when_read(killed)

        killer = threading.Thread(target=kill_it_then_drain)
        killer.start()
        result = second.execute(task_instance())
        killer.join()

        assert (result["end"], result["restarts"]) == ("drained", 1)
        assert newest_term(killed.store) == 2
        report = killed.etl.audit()
        assert (report["ok"], report["rows_in"]) == (True, ROWS)


class Unborn:
    """A start of an app whose try is killed before the app gives a sign of life."""

    def __init__(self, killed: Killed, folder: Path, *, stopped: bool) -> None:
        self.killed, self.hits = killed, folder / "hits"
        self.hits.mkdir()
        self.mark = f"EOS_TEST_START={killed.etl.input}"
        killed.arguments["env_vars"] = {
            "EOS_TEST_START": killed.etl.input,
            "EOS_FAILPOINTS_DIR": str(self.hits),
            "EOS_FAILPOINTS": "term-taken=stop" if stopped else "",
        }

    def processes(self, word: str = "", *, program: str = "") -> list[psutil.Process]:
        """Those of any start that live, by their command line."""
        found = []
        for pid in processes_with(self.mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                line = process.cmdline() or [""]
                if "org.apache.spark.launcher.Main" in line:  # it only makes the command
                    continue
                if any(word in each for each in line) and program in line[0]:
                    found.append(process)
        return found

    def jvms(self) -> list[psutil.Process]:
        return self.processes("org.apache.spark.deploy.SparkSubmit", program="java")

    def submit_and_die(self, reached: Callable[[Unborn], bool]) -> None:
        """One try, killed with its process group as soon as ``reached``."""
        command = [sys.executable, "-m", "tests.integration.airflow.one_try"]
        first = subprocess.Popen(
            [*command, json.dumps(self.killed.arguments)], cwd=ROOT, start_new_session=True
        )
        try:
            wait_until(
                lambda: reached(self) or first.poll() is not None,
                timeout=300,
                every=0.02,
                what="the moment",
            )
            assert first.poll() is None
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()

    def wake_late(self) -> None:
        """What was stopped before it beat goes on, once another driver delivers in its place."""
        wait_until(
            lambda: newest_term(self.killed.store) > 1 and self.killed.committed > 1,
            timeout=300,
            what="another driver to deliver",
        )
        for each in self.processes():
            each.resume()

    def drain_the_last(self) -> None:
        """Once the spare one has ended, which nobody does but itself, and all is read."""
        wait_until(
            lambda: len(self.jvms()) == 1 and self.killed.committed > 1,
            timeout=300,
            what="the spare app to end by itself",
        )
        _drain_when_read(self.killed)


MOMENTS: dict[str, Callable[[Unborn], bool]] = {
    "submitted": lambda unborn: bool(unborn.processes()),
    "jvm": lambda unborn: bool(unborn.jvms()),
    "driver": lambda unborn: bool(unborn.processes("orders_etl.py", program="python")),
    "term": lambda unborn: newest_term(unborn.killed.store) > 0,
    "not-beaten": lambda unborn: (unborn.hits / "term-taken.hit").exists(),
}
"""Every step between the submit and the first heartbeat, as it can be seen from outside."""


@pytest.mark.proof
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_try_killed_before_the_first_heartbeat_leaves_one_app_that_delivers(
    killed, tmp_path, moment
):
    unborn = Unborn(killed, tmp_path, stopped=moment == "not-beaten")
    others = [threading.Thread(target=unborn.drain_the_last)]
    if moment == "not-beaten":
        others.append(threading.Thread(target=unborn.wake_late))
    try:
        unborn.submit_and_die(MOMENTS[moment])
        assert unborn.processes(), "what was submitted lives on"
        for each in others:
            each.start()
        result = operator(killed.arguments).execute(task_instance())
        for each in others:
            each.join()
        assert (result["end"], result["restarts"]) == ("drained", 0)
        # On a busy machine the first one may have been the only one there when it had committed.
        wait_until(lambda: not unborn.jvms(), timeout=120, what="the spare app to end by itself")
    finally:
        end_every_process_with(unborn.mark)
    terms = [decision.term or 0 for decision in commits(killed)]
    assert terms == sorted(terms), "a driver delivered after a newer one had begun to"
    report = killed.etl.audit()
    assert (report["ok"], report["rows_in"]) == (True, ROWS)


def commits(killed: Killed) -> list[Decision]:
    """What was decided to be delivered, in order."""
    log = DecisionLog(killed.store)
    return [
        decision
        for batch in range(killed.committed + 1)
        for decision in log.of_batch(batch)
        if decision.verdict is Verdict.COMMIT
    ]


def _drain_when_read(killed: Killed) -> None:
    wait_until(killed.read_all, timeout=300, what="all rows to be read")
    term = newest_term(killed.store)
    request_drain(killed.store, requested_by="a test", reason="all is read", term=term)

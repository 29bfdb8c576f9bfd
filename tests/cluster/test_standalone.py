"""Spark standalone: executors on machines that have nothing of ours, and that are lost.

Client mode, the only one that Spark has for Python there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, newest_term
from airflow_eos.core.checkpoint.standby import hand_over, standbys
from tests.cluster.by_dag import submitted_by_dag
from tests.cluster.conftest import StreamFactory
from tests.cluster.stream import PATIENCE_S, Stream, end, family, stopped
from tests.support.pipeline import wait_until
from tests.support.servers.standalone import EmbeddedStandalone

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

CLUSTER = "Spark standalone, three workers"
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "3",
    "spark.ui.enabled": "false",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
# Each in a batch of its own, as far as that can be said beforehand.
ON_THE_DRIVER = (
    *("sealed@1", "before-prepare@2", "prepared@3", "decided@4"),
    *("settled-some@13", "settled@6"),
)
IN_A_TASK = ("task-wrote@7", "task-prepared@8")


def shipped(environment: Path) -> dict[str, str]:
    return {
        "spark.archives": f"{environment}#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }


def test_a_bare_interpreter_is_refused_in_one_sentence_before_the_first_row(
    standalone: EmbeddedStandalone, stream: StreamFactory
) -> None:
    """Also: nothing of ours has leaked to the machines, or the other tests would prove nothing."""
    bare = stream(CLUSTER)
    bare.feed(10)
    process = bare.submit(
        standalone.url, {**SMALL, "spark.cores.max": "1", "spark.pyspark.python": "python3"}
    )
    assert process.wait(PATIENCE_S) != 0
    (said,) = [line for line in bare.said().splitlines() if "ConfigurationError" in line]
    assert "python3" in said
    assert "msgspec" in said
    assert "airflow-eos package --environment" in said
    assert bare.visible() == 0


def test_a_machine_is_lost_at_every_step_of_a_batch(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    """One app all the while: eight machines lost, eight new ones."""
    one = stream(CLUSTER)
    process = submit_with_places(one, standalone, environment, tmp_path)
    left = {place.partition("@")[0] for place in (*ON_THE_DRIVER, *IN_A_TASK)}
    while left:
        one.feed(300)
        lost_at = set()
        while one.visible() < one.fed:
            for place in sorted(hit(tmp_path) & left):
                lose_a_machine(standalone, process)
                lost_at.add(place)
                left.discard(place)
            one.require_progress(process)
        if lost_at:
            one.judge(f"a worker machine at {' and '.join(sorted(lost_at))}")
    end(process)


def test_the_driver_is_killed_recovered_from_the_shell_and_resumed(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    one = stream(CLUSTER)
    one.feed(1000)
    first = submit_with_places(one, standalone, environment, tmp_path, "decided=kill@2", batch=300)
    first.wait(PATIENCE_S)
    assert hit(tmp_path) == {"decided"}, one.said()
    end(first)
    one.recover()
    one.feed(300)
    second = one.submit(standalone.url, {**SMALL, **shipped(environment)}, trigger="available-now")
    assert second.wait(PATIENCE_S) == 0, one.said()
    one.judge("the driver at `decided`; recovered from the shell")


def test_a_driver_that_stands_by_follows_one_that_was_killed_and_hands_over_in_its_turn(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path
) -> None:
    """Each has an executor of its own: one without would wait for the cluster, and not stand by."""
    one = stream(CLUSTER)
    store = CheckpointStore.open(one.checkpoint)
    conf = {**SMALL, **shipped(environment), "spark.cores.max": "1"}

    def until_one_stands_by(process: subprocess.Popen[bytes]) -> None:
        while not standbys(store):
            one.require_progress(process)

    one.feed(300)
    first = one.submit(standalone.url, conf)
    one.wait_until_visible(first)
    second = one.submit(standalone.url, conf, standby=True)
    until_one_stands_by(second)
    end(first)
    one.feed(300)
    one.wait_until_visible(second)
    one.judge("the driver; one that stood by follows")
    third = one.submit(standalone.url, conf, standby=True)
    until_one_stands_by(third)
    hand_over(store, requested_by="a test", reason="to the third")
    assert second.wait(PATIENCE_S) == 0, one.said()
    one.feed(300)
    one.wait_until_visible(third)
    one.judge("none: handed over to one that stood by")
    assert newest_term(store) == 3
    end(third)


def test_a_dag_submits_recovers_and_resumes_it_on_standalone(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    one = stream(CLUSTER)
    one.feed(1000)
    with submitted_by_dag(
        one,
        {"conn_type": "spark", "host": standalone.url},
        conf={**SMALL, **shipped(environment), "spark.pyspark.driver.python": sys.executable},
        env_vars={"EOS_FAILPOINTS": "decided=kill@2", "EOS_FAILPOINTS_DIR": str(tmp_path)},
    ) as by_dag:
        by_dag.wait_until_killed(tmp_path / "decided.hit")
        one.feed(300)
        by_dag.succeed()
    one.judge("the driver at `decided`; submitted, recovered and resumed by the DAG")


def submit_with_places(
    one: Stream,
    standalone: EmbeddedStandalone,
    environment: Path,
    places: Path,
    on_the_driver: str | None = None,
    batch: int = 2000,
) -> subprocess.Popen[bytes]:
    driver = on_the_driver or stopping(ON_THE_DRIVER)
    tasks = "" if on_the_driver else stopping(IN_A_TASK)
    there = {
        "spark.executorEnv.EOS_FAILPOINTS": tasks,
        "spark.executorEnv.EOS_FAILPOINTS_DIR": str(places),
    }
    return one.submit(
        standalone.url,
        {**SMALL, **shipped(environment), **there},
        env={"EOS_FAILPOINTS": driver, "EOS_FAILPOINTS_DIR": str(places)},
        batch=batch,
    )


def stopping(places: tuple[str, ...]) -> str:
    named = (place.partition("@") for place in places)
    return ",".join(f"{name}=stop{at}{nth}" for name, at, nth in named)


def hit(places: Path) -> set[str]:
    return {file.stem for file in places.glob("*.hit")}


def lose_a_machine(standalone: EmbeddedStandalone, driver: subprocess.Popen[bytes]) -> None:
    """The one where a task stands still, or where all stand still because the driver does: any."""
    waiting: list[int] = []

    def somebody_stands_still() -> bool:
        waiting[:] = stopped(family(driver))
        return bool(waiting) or any(stopped(machine.pids()) for machine in standalone.workers)

    wait_until(somebody_stands_still, timeout=120, what="the process that the failpoint stops")
    with_a_task = [machine for machine in standalone.workers if stopped(machine.pids())]
    standalone.lose((with_a_task or standalone.workers)[0])
    standalone.add_worker()
    for pid in waiting:
        os.kill(pid, signal.SIGCONT)

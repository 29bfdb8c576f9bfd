"""A stream that a DAG of a real Airflow submits, watches, recovers and starts again."""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore, newest_term, read_heartbeat
from airflow_eos.local import spark_jars
from demo.airflow import PrivateAirflow
from demo.rest import DagRun
from tests.cluster.stream import APP, PATIENCE_S, ROOT, Stream
from tests.support.jvm import SHORT_LIVED
from tests.support.pipeline import wait_until

DAGS = Path(__file__).with_name("dags")
DAG_ID = "stream"


@dataclass(frozen=True)
class ByDag:
    """A run of the DAG; nobody but Airflow does anything for the stream."""

    stream: Stream
    airflow: PrivateAirflow
    run: DagRun

    def state(self) -> str:
        """Of the run, as Airflow says."""
        (found,) = self.airflow.api.runs(DAG_ID)
        return found.state

    def is_running(self) -> bool:
        """Whether it has not ended; who does not answer, on a busy machine, is asked again."""
        try:
            return self.state() in {"queued", "running"}
        except (TimeoutError, urllib.error.URLError, http.client.HTTPException, ConnectionError):
            return True

    def wait_until_killed(self, hit: Path) -> None:
        """Until the failpoint has killed the driver; fails at once where the run has ended."""

        def killed() -> bool:
            assert hit.exists() or self.is_running(), f"the run has ended before\n{self.said()}"
            return hit.exists()

        wait_until(killed, timeout=PATIENCE_S, every=2, what="the failpoint")

    def succeed(self) -> None:
        """Wait for the end: green, in the first try, by one restart, as the checkpoint says too."""
        try:
            wait_until(
                lambda: not self.is_running(), timeout=PATIENCE_S, every=2, what="the DAG's end"
            )
            assert self.state() == "success"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None
        task = f"/api/v2/dags/{DAG_ID}/dagRuns/{self.run.run_id}/taskInstances/run"
        assert self._ask(task)["try_number"] == 1
        ended = self._ask(f"{task}/xcomEntries/return_value")["value"]
        ended = json.loads(ended) if isinstance(ended, str) else ended
        assert (ended["end"], ended["restarts"]) == ("succeeded", 1)
        store = CheckpointStore.open(
            self.stream.checkpoint, storage_options=dict(self.stream.storage_options) or None
        )
        beat = read_heartbeat(store)
        assert beat is not None
        assert (beat.phase, beat.started_by.dag_id) == ("stopped", DAG_ID)
        assert newest_term(store) == 2, "one driver was killed, and one came after it"

    def said(self) -> str:
        """What the task said last."""
        logs = sorted((self.stream.folder / "airflow" / "logs").rglob("attempt=*.log"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-8000:]}" for log in logs)

    def _ask(self, path: str) -> Any:
        return self.airflow.api._call("GET", path)


@contextmanager
def submitted_by_dag(
    stream: Stream,
    spark: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    connections: Mapping[str, Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Iterator[ByDag]:
    """Trigger a DAG that runs the stream until all is read.

    Args:
        stream: fed already.
        spark: the connection.
        environment: more of it, of an Airflow worker that submits there.
        connections: others than Spark's and Kafka's.
        **arguments: more of the operator's.
    """
    task = {
        "application": str(APP),
        "application_args": stream.arguments(),
        "jars": ",".join(map(str, spark_jars())),
        "checkpoint_location": stream.checkpoint,
        "transactional_id_prefix": stream.name,
        **arguments,
    }
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": stream.bootstrap}}
    with PrivateAirflow(stream.folder / "airflow", DAGS, parallelism=1) as airflow:
        airflow.start(
            connections={"spark_default": spark, "kafka_default": kafka, **(connections or {})},
            settings={"CLUSTER_STREAM": task},
            environment={
                "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": SHORT_LIVED,
                **(environment or {}),
            },
        )
        airflow.wait_until_ready({DAG_ID})
        run = airflow.api.trigger(DAG_ID)
        stream.begin()
        yield ByDag(stream, airflow, run)


def without_pythonpath(folder: Path, program: Path) -> str:
    """A ``PATH`` whose ``spark-submit`` is that program, without the variable.

    In deploy mode ``cluster`` it would be the containers', too; here Airflow itself needs it.
    """
    folder.mkdir()
    wrapper = folder / program.name
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{program}" "$@"\n')
    wrapper.chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])

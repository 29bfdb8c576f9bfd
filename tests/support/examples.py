"""Run an example app from ``spark_apps``, or the DAG that runs it, with kills on the way."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_eos.local import EmbeddedKafka, avro_jars, spark_jars
from airflow_eos.operators import SparkStreamingOperator
from tests.support.host import Host
from tests.support.pipeline import KILLED, finish

ROOT = Path(__file__).parents[2]
APP_TIMEOUT_S = 240
STORE = "spark.sql.streaming.stateStore.providerClass"


@dataclass(frozen=True)
class Example:
    """One app with a prefix and a checkpoint of its own.

    Attributes:
        app: name of its file in ``spark_apps``, and of its entry in ``dags/eos_examples.py``.
        arguments: of this app, beside those that all have.
        outputs: by configuration; none: the app's own.
        reach: by name of an output, how to get there.
    """

    app: str
    broker: EmbeddedKafka
    folder: Path
    host: Host
    arguments: Sequence[str]
    outputs: Sequence[Mapping[str, Any]] = ()
    reach: Mapping[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def told(self) -> list[str]:
        prefix = f"{self.app}-{self.folder.name}"
        return ["--trigger", "available-now", "--prefix", prefix, *self.arguments]

    def killed(self, place: str) -> None:
        """A driver runs and is killed there: ``name``, or ``name@N`` for the Nth time."""
        self.run(failpoints=killing(place), expect=KILLED)

    def run(self, *, failpoints: str = "", expect: int = 0) -> str:
        """The app until all is read, in the JVM of the host; returns what it printed."""
        reach = self.folder / "reach.json"
        reach.write_text(json.dumps(self.reach))
        environment = {
            **os.environ,
            "EOS_FAILPOINTS": failpoints,
            "EOS_PARTICIPANTS_FILE": str(reach),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self.host.door(),
        }
        arguments = [
            *("--bootstrap-servers", self.broker.bootstrap_servers),
            *("--checkpoint", str(self.checkpoint)),
            *(("--outputs", json.dumps(self.outputs)) if self.outputs else ()),
            *self.told,
        ]
        script = str(ROOT / "spark_apps" / f"{self.app}.py")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.example", script, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        output = finish(process, APP_TIMEOUT_S)
        assert process.returncode == expect, f"exit {process.returncode}\n{output[-6000:]}"
        return output

    def assert_rocksdb(self) -> None:
        """Its state is in RocksDB, and batches write logs of their changes."""
        logs = (self.checkpoint / "offsets").glob("[0-9]*")
        newest = max(logs, key=lambda log: int(log.name)).read_text()
        store = json.loads(newest.splitlines()[1])["conf"][STORE]
        assert store.endswith(".RocksDBStateStoreProvider"), store
        assert list(self.checkpoint.glob("state/**/*.changelog")), "whole copies were written"

    def task(self, *places: str) -> SparkStreamingOperator:
        """The task ``run`` of its DAG, of the file as it is; its app is killed at each place once.

        Airflow's connections are in the environment already.
        """
        settings: dict[str, Any] = {
            "checkpoint": str(self.checkpoint),
            "arguments": self.told,
            "jars": ",".join(str(jar) for jar in (*spark_jars(), *avro_jars())),
            "env": {
                "EOS_FAILPOINTS": ",".join(map(killing, places)),
                "EOS_FAILPOINTS_DIR": str(self.folder),
            },
            "participant_conn_ids": {name: connection_id(name) for name in self.reach},
            "restart_delay": 1,
        } | ({"outputs": self.outputs} if self.outputs else {})
        os.environ["EOS_EXAMPLES"] = json.dumps({self.app: settings})
        try:
            made = runpy.run_path(str(ROOT / "dags" / "eos_examples.py"))
        finally:
            del os.environ["EOS_EXAMPLES"]
        task = made[f"eos_{self.app}"].get_task("run")
        assert isinstance(task, SparkStreamingOperator)
        return task


def connection_id(output: str) -> str:
    """Airflow's name for how to get to an output."""
    return f"example_{output}"


def killing(place: str) -> str:
    """A failpoint."""
    name, _, nth = place.partition("@")
    return f"{name}=kill@{nth or 1}"

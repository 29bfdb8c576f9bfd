"""The programs that ``benchmarks.state`` compares: ours on two stores of Spark, and Flink."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import flink
from benchmarks.report import ROOT
from benchmarks.state_way import Way

TASKS = 2
"""Tasks that keep state, as many as there are cores; Flink's parallelism too."""
HEAP = "8g"
"""Heap of Spark's JVM: its default store keeps all versions of all keys there."""
FLINK_HEAP, FLINK_MANAGED = "2g", "1gb"
_FILL_ROWS = 1_000_000


class SparkWay(Way):
    """Our sink on Spark, exactly once; the name of the way is that of the store."""

    def fill(self, rows: int) -> None:
        """Read the topic in a run of its own."""
        self.drain(most=_FILL_ROWS)
        assert self.settled(rows)

    def drain(self, most: int) -> None:
        """Run to the end of the topic in batches of so many rows."""
        self._start(most=most, least=0, until="")
        assert self.process is not None
        if self.process.wait(900) != 0:
            self._failed(f"ended with {self.process.returncode}")
        self.process = None

    def begin(self) -> None:
        """Start the app; a batch is a burst, and begins when all of its rows are there."""
        self._start(most=0, least=self.burst, until=str(self.checkpoint) + ".stop")

    def end(self) -> list[dict[str, Any]]:
        """Drain the app; return the parts of each batch as Spark measured them, in ms."""
        assert self.process is not None
        Path(str(self.checkpoint) + ".stop").touch()
        if self.process.wait(120) != 0:
            self._failed(f"ended with {self.process.returncode}")
        self.process = None
        told: list[dict[str, Any]] = json.loads(self._batches.read_text(encoding="utf-8"))
        return told

    @property
    def _batches(self) -> Path:
        return self.stage.folder / f"{self.name}.batches"

    def _start(self, **settings: Any) -> None:
        app = {
            "bootstrap": self.stage.bootstrap,
            "input": self.input,
            "output": self.output,
            "checkpoint": str(self.checkpoint),
            "prefix": self.name,
            "tasks": TASKS,
            "store": self.name,
            "heap": HEAP,
            "local": str(self.local),
            "batches": str(self._batches),
            **settings,
        }
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.state_app", json.dumps(app)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )


class FlinkWay(Way):
    """Flink on RocksDB, with an incremental checkpoint when all counts of a burst are written."""

    _port = 0

    def fill(self, rows: int) -> None:
        """Start the job, which stays; wait until its first checkpoint has all keys."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        with self.log.open("a", encoding="utf-8") as log:
            self.process = flink.start(
                job=Path(__file__).parent / "flink_state_job.py",
                heap=FLINK_HEAP,
                log=log,
                bootstrap=self.stage.bootstrap,
                input=self.input,
                output=self.output,
                prefix=self.name,
                checkpoints=str(self.checkpoint),
                local=str(self.local),
                rest=self._port,
                managed=FLINK_MANAGED,
                tasks=TASKS,
            )
        self.wait(lambda: self.ends(committed=False) >= rows, "written all counts")
        self.settle()
        self.wait(lambda: self.settled(rows), "made them visible")

    def begin(self) -> None:
        """Do nothing, as the job runs already."""

    def settle(self) -> None:
        """Ask for a checkpoint at once, so that no burst waits for the end of an interval."""
        self._rest(f"/jobs/{self._job()}/checkpoints", {"checkpointType": "CONFIGURED"})

    def end(self) -> list[dict[str, Any]]:
        """Kill the job; return Flink's time in ms and size of each checkpoint, the oldest first."""
        told = self._rest(f"/jobs/{self._job()}/checkpoints")["history"]
        self.kill()
        names = ("end_to_end_duration", "checkpointed_size", "state_size")
        return [{name: each[name] for name in names} for each in reversed(told)]

    def _job(self) -> str:
        (job,) = self._rest("/jobs")["jobs"]
        return str(job["id"])

    def _rest(self, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            told: dict[str, Any] = json.loads(answer.read())
            return told

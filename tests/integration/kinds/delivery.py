"""One pipeline to one kind: killed, taken over and recovered, and what readers then find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Plan, plan_recovery
from tests.support.host import Host
from tests.support.kinds import Kind, Place, kind_called
from tests.support.kinds.theirs import INSTALLED
from tests.support.pipeline import KILLED, ROOT, Pipeline

BATCH = 2000
"""Rows of a batch."""


@dataclass(frozen=True)
class Delivery:
    kind: Kind
    at: Place
    pipeline: Pipeline
    spark: SparkSession

    @classmethod
    def made(
        cls,
        kind: str,
        broker: EmbeddedKafka,
        servers: Mapping[str, str],
        host: Host,
        spark: SparkSession,
        folder: Path,
    ) -> Delivery:
        pipeline = Pipeline(broker, folder, host=host)
        at = Place(kind, pipeline.name, str(folder), dict(servers))
        its = kind_called(kind)
        its.create(at)
        pipeline.settings = {"place": msgspec.to_builtins(at), "kind": its.query}
        return cls(its, at, pipeline, spark)

    def killed(self, place: str) -> None:
        """A driver runs and is killed there: ``name``, or ``name@N`` for the Nth time."""
        self.pipeline.run(expect=KILLED, failpoints=acting("kill", place))

    def resume(self, **changes: Any) -> None:
        """Somebody takes over, on another machine, until all is delivered."""
        self.pipeline.resume(self.spark, **changes)

    def inputs(self) -> set[int]:
        """How many rows of the input readers see: one number where no output is behind."""
        seen = self.kind.inputs(self.at, self.pipeline.expected)
        assert seen, "nobody was looked at"
        return set(seen.values())

    def assert_exactly_once(self) -> None:
        found, expected = self.kind.read(self.at), self.kind.expected(self.pipeline.expected)
        assert any(expected.values()), "nothing was to be delivered"
        for name, rows in expected.items():
            assert rows - found[name] == Counter(), f"{name} lost {(rows - found[name]).total()}"
            assert found[name] - rows == Counter(), f"{name} twice {(found[name] - rows).total()}"
        assert self.kind.left(self.at) == 0, "prepared, and never ended"

    def decided(self) -> Plan:
        """A driver is killed when its second batch is decided; what recovery would do."""
        self.pipeline.feed(2 * BATCH)
        self.killed("decided@2")
        return self.plan()

    def plan(self) -> Plan:
        return plan_recovery(self.pipeline.checkpoint, self.at.kafka, reach=self.reach)

    @property
    def reach(self) -> Mapping[str, Any]:
        return self.kind.reach(self.at)

    def recover(self, *, killed_at: str | None = None) -> int:
        """``airflow-eos recover`` in a process that has neither the app nor Spark; its status."""
        reach = self.pipeline.folder / "reach.json"
        reach.write_text(json.dumps(self.reach))
        asked = ["recover", self.pipeline.checkpoint, "--force", "--reach", str(reach)]
        if self.at.kafka:
            asked += ["-b", self.at.kafka["bootstrap.servers"]]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{INSTALLED}",
            "EOS_FAILPOINTS": acting("kill", killed_at) if killed_at else "",
        }
        done = subprocess.run(
            [sys.executable, "-c", "from airflow_eos.cli.app import main; main()", *asked],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode in (0, KILLED), done.stdout + done.stderr
        return done.returncode


def acting(what: str, place: str) -> str:
    """A failpoint."""
    name, _, nth = place.partition("@")
    return f"{name}={what}@{nth or 1}"

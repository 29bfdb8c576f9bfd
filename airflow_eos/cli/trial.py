"""The trial of ``airflow-eos try``: kill an app in mid-batch, recover it, and count its rows."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.arguments import AVAILABLE_NOW
from airflow_eos.core.settings import flags
from airflow_eos.errors import ConfigurationError, LocalEnvironmentError, Remedy
from airflow_eos.local import spark_jars
from airflow_eos.local.broker import create_topic
from airflow_eos.local.process import run_guarded, tail
from airflow_eos.local.rows import read_rows, write_rows
from airflow_eos.ops.plan_tables import plan_view
from airflow_eos.ops.tables import show
from airflow_eos.recovery import Plan, execute_recovery, plan_recovery

if TYPE_CHECKING:
    from rich.console import Console

_DIES_AT = "decided"
_PARTITIONS = 2
_KILLED = 256 - signal.SIGKILL
"""The exit status of a guard whose program was killed."""


@dataclass(frozen=True)
class Project:
    """A pipeline as ``airflow-eos new`` lays it out: its app, its sample rows, its outputs."""

    name: str
    app: Path
    rows: tuple[tuple[str, str], ...]
    outputs: tuple[dict[str, Any], ...] = ()
    query: Path | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the app writes its rows to."""
        topics = tuple(each["topic"] for each in self.outputs if "topic" in each)
        return topics if self.outputs else (f"{self.name}.out",)

    @property
    def tables(self) -> tuple[str, ...]:
        """The Delta tables that the app writes its rows to."""
        return tuple(each["table_uri"] for each in self.outputs if "table_uri" in each)


def app_of(folder: Path) -> Path:
    """Return where the app of a project's folder is."""
    return folder / "spark_apps" / f"{folder.resolve().name}.py"


def read_project(folder: Path) -> Project:
    """Read the project in a folder (ConfigurationError: it lacks the app, or rows to try)."""
    app, rows = app_of(folder), folder / "rows.tsv"
    for file in (app, rows):
        if not file.is_file():
            raise ConfigurationError(
                f"{folder} has no {file.relative_to(folder)}: expected a folder that `airflow-eos "
                "new NAME` has made.",
                Remedy(commands=("airflow-eos new NAME", "airflow-eos try NAME")),
            )
    split = (line.partition("\t") for line in rows.read_text(encoding="utf-8").splitlines())
    outputs = folder / "outputs.json"
    return Project(
        app.stem,
        app,
        tuple((key, value) for key, _, value in split),
        tuple(json.loads(outputs.read_text(encoding="utf-8"))) if outputs.is_file() else (),
        query if (query := folder / "query.py").is_file() else None,
    )


@dataclass(frozen=True)
class TrialResult:
    """The counts of expected rows, and of rows lost and duplicated for readers after the kill."""

    rows: int
    lost: int
    duplicated: int


@dataclass(frozen=True)
class TrialRun:
    """One run of a project on the broker: checkpoint, prefix and output topics, all of one name.

    Attributes:
        name: the name that tells the run from another run of the same app over the same input.
        s3: the storage options of its tables.
    """

    project: Project
    folder: Path
    bootstrap_servers: str
    name: str
    s3: Mapping[str, str]

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint location."""
        return self.folder / self.name / "checkpoint"

    @property
    def kafka(self) -> dict[str, str]:
        """The Kafka settings with which a recovery reaches the broker."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def start(self, **environment: str) -> int:
        """Run the app until it has read its input or dies; return its exit status.

        Raises:
            LocalEnvironmentError: the app ended with an error; the message has its log's tail.
        """
        folder = self.folder / self.name
        folder.mkdir(exist_ok=True)
        log = folder / "log"
        status = run_guarded(
            [sys.executable, str(self.project.app.resolve()), *self._arguments(folder)],
            folder=folder,
            log=log,
            env={**os.environ, **_spark(folder), **self.reach_of_tables, **environment},
        )
        if status not in {0, _KILLED}:
            raise LocalEnvironmentError(
                f"{self.project.app} ended with status {status}:\n{tail(log)}"
            )
        return status

    @property
    def reach(self) -> dict[str, Mapping[str, str]]:
        """The storage options with which a recovery reaches the tables."""
        return {"delta": self.s3} if self.s3 else {}

    @property
    def reach_of_tables(self) -> dict[str, str]:
        """The environment in which app and query reach the tables."""
        return {key.upper(): value for key, value in self.s3.items()}

    def readers_have(self) -> Counter[tuple[str, object]]:
        """Count the rows that a ``read_committed`` reader sees now, by topic or table."""
        of_topics = Counter[tuple[str, object]](
            (topic, row)
            for topic in self.project.topics
            for row in read_rows(self.bootstrap_servers, self.named(topic))
        )
        of_tables = ((uri, row) for uri in self.project.tables for row in self._rows(uri))
        return of_topics + Counter(of_tables)

    def named(self, output: str) -> str:
        """Return the name that a topic or table of the project has in this run."""
        return f"{output}.{self.name}"

    def query(self) -> str:
        """Return what the project's own query says of its table in this run."""
        (uri,) = self.project.tables
        asked = [sys.executable, str(self.project.query), self.named(uri)]
        environment = {**os.environ, **self.reach_of_tables}
        ran = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise LocalEnvironmentError(f"{self.project.query} failed:\n{ran.stderr}")
        return ran.stdout

    def _rows(self, uri: str) -> Iterator[tuple[object, ...]]:
        from deltalake import DeltaTable

        options = dict(self.s3)
        if DeltaTable.is_deltatable(self.named(uri), options):
            table = DeltaTable(self.named(uri), storage_options=options).to_pyarrow_table()
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)

    def _arguments(self, folder: Path) -> list[str]:
        outputs = None
        if self.project.outputs:
            here = [
                {**each, "topic": self.named(each["topic"])}
                | {"transactional_id_prefix": f"{self.name}-{number}"}
                if "topic" in each
                else {**each, "table_uri": self.named(each["table_uri"])}
                for number, each in enumerate(self.project.outputs)
            ]
            outputs = folder / "outputs.json"
            outputs.write_text(json.dumps(here), encoding="utf-8")
        told = flags(
            bootstrap_servers=self.bootstrap_servers,
            checkpoint_location=self.checkpoint,
            transactional_id_prefix=self.name,
            trigger_interval=AVAILABLE_NOW,
            outputs=outputs,
        )
        own = ("--input-topic", self.project.name)
        topics = [self.named(each) for each in self.project.topics[:1]]
        return [*told, *own, *(["--output-topic", *topics] if topics else [])]


def _spark(folder: Path) -> dict[str, str]:
    """Return the environment for Spark in the app's own process, with this command's Python.

    All that Spark writes lies in ``folder``: a killed app removes nothing.
    """
    jars = ",".join(map(str, spark_jars()))
    java = shlex.quote(f'"-Djava.io.tmpdir={folder}"')
    return {
        "PYSPARK_SUBMIT_ARGS": (
            f"--master local[2] --jars {jars} --driver-java-options {java} pyspark-shell"
        ),
        "SPARK_LOCAL_DIRS": str(folder),
        "TMPDIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _killed_with_a_promise(run: TrialRun) -> Plan:
    """Run the app until it is killed with rows promised; return the plan of the recovery.

    A first batch of windows has no rows, and the app is run again.
    """
    while run.start(EOS_FAILPOINTS=f"{_DIES_AT}=kill") != 0:
        plan = plan_recovery(str(run.checkpoint), run.kafka, reach=run.reach)
        if plan.steps:
            return plan
    raise LocalEnvironmentError(
        f"{run.project.app} ended before it had promised a batch: expected an app that delivers "
        "the rows of its rows.tsv."
    )


def _doing(console: Console, what: str) -> AbstractContextManager[object]:
    """Show what is being done; a file or a pipe gets a line, where a spinner would be nothing."""
    if not console.is_terminal:
        console.print(f"{what} …")
    return console.status(what)


def play(
    project: Project,
    folder: Path,
    bootstrap_servers: str,
    console: Console,
    s3: Mapping[str, str],
) -> TrialResult:
    """Kill the project's app, recover it, start it again, and count its rows."""
    name = project.name
    run, undisturbed = (
        TrialRun(project, folder, bootstrap_servers, each, s3) for each in ("killed", "undisturbed")
    )
    outputs = (each.named(topic) for each in (run, undisturbed) for topic in project.topics)
    for topic in (name, *outputs):
        create_topic(bootstrap_servers, topic, _PARTITIONS, {})
    write_rows(bootstrap_servers, name, project.rows)
    console.print(f"{len(project.rows)} rows are in topic {name}.")
    with _doing(console, f"Running {name}, to be killed right after it has promised a batch"):
        plan = _killed_with_a_promise(run)
    console.print(
        "The app was killed (SIGKILL) in the middle of a batch: promised, not one row committed. "
        f"Readers have {run.readers_have().total()} rows."
    )
    if not console.quiet:
        show(plan_view(plan))
    execute_recovery(plan, run.kafka, reach=run.reach, force=True)  # we have seen it die
    console.print(
        f"Recovered, with the app still dead. Readers have {run.readers_have().total()} rows."
    )
    with _doing(console, f"Starting {name} again"):
        run.start()
    found = run.readers_have()
    console.print(f"Started again, it went on to its end. Readers have {found.total()} rows.")
    with _doing(console, f"Running {name} undisturbed, over the same input, to compare"):
        undisturbed.start()
    expected = undisturbed.readers_have()
    lost, twice = (expected - found).total(), (found - expected).total()
    console.print(
        f"The same app, never killed, gives {expected.total()} rows: "
        f"[bold]lost {lost}, duplicated {twice}[/bold]."
    )
    if project.tables and project.query is not None:
        console.print(f"{project.query.name} reads of the table of the run that was killed:")
        console.print(run.query(), highlight=False)
    return TrialResult(expected.total(), lost, twice)

"""``airflow-eos rehearse`` and ``repartition``: prepare a pipeline's next version or state."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_eos.commands.options import (
    AsJson,
    Checkpoint,
    StorageOption,
    pairs,
    storage_options,
    tell,
)
from airflow_eos.errors import ConfigurationError, PipelineAliveError, RecoveryError, Remedy
from airflow_eos.tables import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.checkpoint import CheckpointStore


_IN_THE_CLUSTER = re.compile(r"(--deploy-mode|spark\.submit\.deployMode)[\s=]+['\"]?cluster\b")


def rehearse(
    checkpoint: Checkpoint,
    app: Annotated[Path, typer.Option(help="The new version, a Python file.")],
    batches: Annotated[int, typer.Option(min=1, help="How many of the newest batches.")] = 20,
    submit: Annotated[
        str, typer.Option(help="Command that starts the app, with its options.")
    ] = "spark-submit",
    key: Annotated[
        list[str] | None,
        typer.Option(help="A column that pairs rows of the two versions; repeatable."),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, help="Example rows for each batch and output.")
    ] = 3,
    scratch: Annotated[
        str | None,
        typer.Option(
            help="Where executors of other machines reach the copy of the checkpoint; it stays "
            "there. Without it: a temporary folder of this machine."
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(help="An empty topic: the rows of outputs to Kafka go there, too."),
    ] = "",
    storage_option: StorageOption = None,
    as_json: AsJson = False,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the app, after --.")
    ] = None,
) -> None:
    """Compare the rows of a new version with delivered batches; nothing is delivered.

    The pipeline may run meanwhile: its checkpoint is only read. Exit status: 0 nothing differs, 1
    something does, 2 an error, also of the new version, 3 not known.
    """
    from airflow_eos.checkpoint.rehearsal import RehearsalRequest
    from airflow_eos.supervision.rehearsal import rehearse as run
    from airflow_eos.supervision.rehearsal import report_view

    if not app.is_file():
        raise ConfigurationError(f"--app {app} is not a file that can be read.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="airflow-eos-rehearse-") as folder:
        place = f"{scratch.rstrip('/')}/{uuid.uuid4().hex}" if scratch else f"{folder}/checkpoint"
        told = RehearsalRequest(checkpoint, place, batches, tuple(key or ()), examples, keep)
        command = [*_starter(submit), str(app), *(arguments or [])]
        report = run(command, told, Path(folder), storage_options(storage_option))
    if as_json:
        typer.echo(report.to_json())
    else:
        show(report_view(report))
    if report.exit_status:
        raise typer.Exit(report.exit_status)


def _starter(submit: str) -> list[str]:
    """Return the command with its program's path; that of this Python's pyspark if not on the path.

    The driver must run here: in cluster mode it would not find in its environment that it is to
    rehearse, and would start for good.
    """
    try:
        name, *options = shlex.split(submit)
    except ValueError as error:  # nothing, or a quote that is not closed
        raise ConfigurationError(f"--submit {submit!r} is no command: {error}.") from error
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    if found is None:
        raise ConfigurationError(f"--submit {submit!r}: there is no program {name!r} here.")
    if _IN_THE_CLUSTER.search(submit):
        raise ConfigurationError(
            "--submit asks for deploy mode cluster, where the driver is not told that it is to "
            "rehearse, and would take the pipeline over. Nothing was started.",
            Remedy(change="take --deploy-mode client"),
        )
    here = ["--deploy-mode", "client"] if "submit" in Path(name).name else []
    return [found, *options, *here]


def repartition(
    checkpoint: Checkpoint,
    partitions: Annotated[int, typer.Option(min=1, help="New number of partitions of the state.")],
    master: Annotated[str, typer.Option(help="Master of the Spark app that does it.")] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option(help="key=value for that Spark app; repeatable.")
    ] = None,
    storage_option: StorageOption = None,
    as_json: AsJson = False,
) -> None:
    """Write the state of a query with another number of partitions, between two runs (Spark 4.2).

    Drain the app first. It is refused while a driver runs or a planned batch is not complete,
    because that batch would be delivered twice; nothing is changed then.
    Exit status: 0 done, start the app again; 2 an error or a refusal.
    """
    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.delivery.spark_session import absolute

    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    _require_drained(store, checkpoint)
    spark = _session(master, pairs(conf or [], "--conf"))
    try:
        _require_drained(store, checkpoint)  # again: a driver may have come while the JVM started
        _repartition(spark, absolute(spark, checkpoint), partitions)
    finally:
        spark.stop()
    tell(
        {"location": store.location, "partitions": partitions},
        f"The state of {store.location} has {partitions} partitions. Start the app again.",
        as_json=as_json,
    )


def _require_drained(store: CheckpointStore, checkpoint: str) -> None:
    """Refuse while a driver runs or a batch is in flight (PipelineAliveError, RecoveryError)."""
    from airflow_eos.checkpoint.snapshot import read_snapshot
    from airflow_eos.recovery.facts import signs_of_life

    found = read_snapshot(store)
    signs = (found.unheard,) if found.unheard else signs_of_life(store)
    if signs:
        raise PipelineAliveError(
            f"The pipeline of {store.location} seems to be alive: {'; '.join(signs)}. Nothing was "
            "changed.",
            Remedy(commands=("airflow-eos drain CHECKPOINT",)).at(checkpoint),
        )
    batch, mends = found.state.in_flight, found.state.mends
    why = [f"Spark's file {each}, by the next start" for each in mends]
    if batch is not None:
        why.insert(0, f"batch {batch} was planned and is not complete: Spark would skip it")
    if why:
        raise RecoveryError(
            f"{store.location} cannot be repartitioned now: {'; '.join(why)}. Nothing was changed.",
            Remedy(
                commands=("airflow-eos drain CHECKPOINT",),
                change="start the app, and let it end a batch",
            ).at(checkpoint),
        )
    if found.state.latest_commit is None:
        raise RecoveryError(
            f"{store.location} has no complete batch, and so no state. Nothing was changed.",
            Remedy(settings={"spark.sql.shuffle.partitions": "the number"}, start=True),
        )


def _session(master: str, conf: dict[str, Any]) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "The state of a query is written by Spark, and pyspark is not installed here. Expected "
            "4.2: pip install 'pyspark==4.2.*'."
        ) from error
    return SparkSession.builder.master(master).config(map=conf).getOrCreate()


def _repartition(spark: SparkSession, location: str, partitions: int) -> None:
    manager = getattr(spark, "_streamingCheckpointManager", None)
    if manager is None:
        raise ConfigurationError(
            f"Spark {spark.version} cannot repartition the state of a query: expected 4.2, whose "
            "StreamingCheckpointManager can. Nothing was changed."
        )
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        manager.repartition(location, partitions)  # enforces what exactly once needs, too
    except Py4JJavaError as error:
        said = str(error.java_exception.getMessage()).partition("\n")[0]
        raise RecoveryError(f"Spark does not repartition {location}: {said}") from error

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

from airflow_eos.cli.options import AsJson, Checkpoint, StorageOption, pairs, storage_options, tell
from airflow_eos.errors import (
    ConfigurationError,
    ContinuityError,
    PipelineAliveError,
    RecoveryError,
    Remedy,
)
from airflow_eos.ops.tables import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.core.checkpoint import CheckpointStore


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
    from airflow_eos.core.checkpoint.rehearsal import RehearsalRequest
    from airflow_eos.ops.rehearsal import rehearse as run
    from airflow_eos.ops.rehearsal import report_view

    if not app.is_file():
        raise ConfigurationError(f"--app {app} is not a file that can be read.")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="airflow-eos-rehearse-") as folder:
        copy = f"{scratch.rstrip('/')}/{uuid.uuid4().hex}" if scratch else f"{folder}/checkpoint"
        told = RehearsalRequest(checkpoint, copy, batches, tuple(key or ()), examples, keep)
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
    partitions: Annotated[
        int | None, typer.Option(min=1, help="New number of partitions of the state.")
    ] = None,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Instead: put a repartition aside that was not finished."),
    ] = False,
    master: Annotated[str, typer.Option(help="Master of the Spark app that does it.")] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option(help="key=value for that Spark app; repeatable.")
    ] = None,
    storage_option: StorageOption = None,
    as_json: AsJson = False,
) -> None:
    """Write the state of a query with another number of partitions, between two runs (Spark 4.2).

    Drain the app first; the state must be in RocksDB. It is refused while a driver runs or a
    planned batch is not complete, because that batch would be delivered twice; nothing is changed
    then. One that was killed no query starts on: give the same number again, and it goes on; or
    --undo. Exit status: 0 done, start the app again; 2 an error or a refusal.
    """
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.checkpoint.progress import read_state, require_begun
    from airflow_eos.core.checkpoint.repartition import at_work

    if (partitions is None) != undo:
        raise ConfigurationError("Give either --partitions or --undo.")
    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    require_begun(store, read_state(store))  # else a mistyped place would become a folder
    if partitions is None:
        _undo(store, checkpoint, as_json=as_json)
        return
    _require_drained(store, checkpoint, partitions)
    with at_work(store):
        _rewrite(store, checkpoint, partitions, master, pairs(conf or [], "--conf"))
    tell(
        {"location": store.location, "partitions": partitions},
        f"The state of {store.location} has {partitions} partitions. Start the app again.",
        as_json=as_json,
    )


def _rewrite(
    store: CheckpointStore, checkpoint: str, partitions: int, master: str, conf: dict[str, str]
) -> None:
    """Let Spark rewrite the state; where it fails, say what it has left and the ways on."""
    from airflow_eos.core.checkpoint.repartition import require_finished
    from airflow_eos.core.delivery.spark_session import absolute

    spark = _session(master, conf)
    try:
        # Again: a driver may have come while the JVM started.
        _require_drained(store, checkpoint, partitions)
        _repartition(spark, absolute(spark, checkpoint), partitions)
    except RecoveryError as error:
        try:
            require_finished(store)
        except ContinuityError as left:
            raise RecoveryError(f"{error} {left}", *left.remedies) from error
        raise
    finally:
        spark.stop()


def _undo(store: CheckpointStore, checkpoint: str, *, as_json: bool) -> None:
    from airflow_eos.core.checkpoint.repartition import at_work, put_aside, unfinished

    with at_work(store):
        _require_nobody_runs(store, checkpoint)
        found = unfinished(store)
        if found is not None:
            put_aside(store, found)
    said = (
        f"{store.location} has no repartition that was not finished."
        if found is None
        else f"The repartition to {found.partitions} partitions was put aside: the state of "
        f"{store.location} has {found.before}. Start the app again."
    )
    tell({"location": store.location, "undone": found is not None}, said, as_json=as_json)


def _require_nobody_runs(store: CheckpointStore, checkpoint: str) -> None:
    """Refuse while a driver runs (PipelineAliveError)."""
    from airflow_eos.core.checkpoint.liveness import signs_of_life

    if signs := signs_of_life(store):
        raise PipelineAliveError(
            f"The pipeline of {store.location} seems to be alive: {'; '.join(signs)}. Nothing was "
            "changed.",
            Remedy(commands=("airflow-eos drain CHECKPOINT",)).at(checkpoint),
        )


def _require_drained(store: CheckpointStore, checkpoint: str, partitions: int) -> None:
    """Refuse while a driver runs, a batch is in flight, or where it cannot work.

    Raises:
        PipelineAliveError: a driver runs.
        ContinuityError: another repartition was not finished.
        RecoveryError: a batch is in flight; or see ``require_possible``.
    """
    from airflow_eos.core.checkpoint.repartition import require_possible, unfinished
    from airflow_eos.core.checkpoint.snapshot import read_snapshot

    _require_nobody_runs(store, checkpoint)
    begun = unfinished(store)
    if begun is not None:
        if begun.partitions != partitions:
            raise begun.error(store.location)
        require_possible(store, begun.batch - 1, partitions)
        return
    state = read_snapshot(store).state
    batch, mends = state.in_flight, state.mends
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
    if state.latest_commit is None:
        raise RecoveryError(
            f"{store.location} has no complete batch, and so no state. Nothing was changed.",
            Remedy(settings={"spark.sql.shuffle.partitions": "the number"}, start=True),
        )
    require_possible(store, state.latest_commit, partitions)


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

    _ = spark.streams  # makes the coordinator of the state's stores, which a new session lacks
    try:
        manager.repartition(location, partitions)  # enforces what exactly once needs, too
    except Py4JJavaError as error:
        said = str(error.java_exception.getMessage()).partition("\n")[0]
        raise RecoveryError(f"Spark does not repartition {location}: {said}") from error

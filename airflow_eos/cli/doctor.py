"""``airflow-eos doctor``: everything that can be known before a start, check by check."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from airflow_eos.cli.options import (
    AsJson,
    BootstrapServers,
    Checkpoint,
    KafkaConfig,
    Reach,
    StorageOption,
    Timeout,
    kafka_if_given,
    pairs,
    reach_in,
    storage_options,
    tell_json,
    time_of,
    word,
)
from airflow_eos.core.arguments import AVAILABLE_NOW, GUARANTEES
from airflow_eos.core.settings import INTERVAL, AppSettings
from airflow_eos.errors import ConfigurationError, EosError, printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.core.protocol.decision import Guarantee
    from airflow_eos.ops.doctor import Line

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic that the app will write; repeatable.")
    ] = None,
    input_topic: Annotated[
        list[str] | None, typer.Option(help="A topic that the app will read; repeatable.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The consumer group that shows how far the pipeline is.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="The sink's transactional_id_prefix, before a first start.")
    ] = None,
    guarantee: Annotated[
        str | None, word("--guarantee", GUARANTEES, help="The guarantee that the app will use.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Start a Spark app there, and ask its workers and its file manager."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="key=value for that Spark app; repeatable.")
    ] = None,
    transaction_timeout: Annotated[
        timedelta, time_of("transaction_timeout")
    ] = AppSettings.transaction_timeout,
    trigger_interval: Annotated[Any, time_of("trigger_interval")] = INTERVAL,
    batch_within: Annotated[timedelta, time_of("batch_within")] = AppSettings.batch_within,
    recover_within: Annotated[timedelta, time_of("recover_within")] = AppSettings.recover_within,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the store's race, 8 small writes each.")
    ] = 40,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Say what would keep a start from working. Changes nothing; its probes are removed.

    Exit status: 0 nothing fails, 1 something does, 2 the location cannot be opened at all.
    """
    from airflow_eos.ops.doctor import DoctorRequest, examine, worst
    from airflow_eos.ops.supervision.preflight import TimeoutBudget

    at_once = trigger_interval == AVAILABLE_NOW
    options = storage_options(storage_option)
    lines = examine(
        DoctorRequest(
            checkpoint,
            storage_options=options,
            settings=kafka_if_given(bootstrap_servers, kafka_config),
            reach=reach_in(reach),
            topics=tuple(topic or ()),
            inputs=tuple(input_topic or ()),
            group=group,
            guarantee=cast("Guarantee | None", guarantee),
            prefix=prefix,
            budget=TimeoutBudget(
                timedelta(0) if at_once else trigger_interval,
                batch_within,
                recover_within,
                transaction_timeout,
            ),
            rounds=rounds,
            timeout_s=timeout,
        )
    )
    if master is not None:
        lines += _of_spark(master, pairs(conf or [], "--conf"), checkpoint, options)
    if as_json:
        tell_json([line._asdict() for line in lines])
    else:
        _show(lines)
    if worst(lines) == "fail":
        raise typer.Exit(1)


def _show(lines: Sequence[Line]) -> None:
    """Print a line for each check that passes, and behind them a block for each that does not."""
    console = Console()
    grave = list(_STYLE)
    for line in sorted(lines, key=lambda line: grave.index(line.verdict)):
        said = {"": f"{line.what}: {line.found}"}
        if line.verdict != "ok":
            parts = {"found": line.found, "expected": line.expected, "next": line.next}
            said = {"": line.what, **{name: text for name, text in parts.items() if text}}
        for name, text in said.items():
            head = f"      {name:8} " if name else f"{line.verdict:4}  "
            # A terminal would break a line within a word; a pipe has no width.
            rows = textwrap.wrap(
                printable(text),
                max(20, console.width - len(head)) if console.is_terminal else 1_000_000,
                break_long_words=False,
                break_on_hyphens=False,
            )
            shown = Text(head, style="dim" if name else _STYLE[line.verdict])
            shown.append(f"\n{' ' * len(head)}".join(rows), style="none")
            console.print(shown, soft_wrap=True)
    failed = sum(line.verdict == "fail" for line in lines)
    console.print(
        f"{failed} of {len(lines)} checks failed: a start would be refused, or fail."
        if failed
        else f"None of {len(lines)} checks failed.",
        highlight=False,
    )


ROUNDS = 20


def _of_spark(
    master: str, conf: Mapping[str, str], location: str, storage_options: Mapping[str, str] | None
) -> list[Line]:
    """Start a Spark app on ``master``, check with it, and end it; an error becomes a line."""
    from airflow_eos.ops.doctor import failed, tried

    try:
        spark = _session(master, conf)
    except EosError as error:
        return [failed("Spark app", error)]
    try:
        return [
            *tried("Spark's workers", lambda: _workers(spark)),
            *tried("Spark's own logs, raced", lambda: _raced(spark, location, storage_options)),
        ]
    finally:
        spark.stop()


def _session(master: str, conf: Mapping[str, str]) -> SparkSession:
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            f"--master needs pyspark here ({error}): pip install 'airflow-provider-eos[spark]'."
        ) from error
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master(master).appName("airflow-eos doctor")
    try:
        return builder.config(map={**quiet, **conf}).getOrCreate()
    except (PySparkException, Py4JError) as error:
        [said, *_] = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigurationError(
            f"No Spark app could be started on {master}: {said} Check the master, and what "
            "spark-submit would be told with --conf."
        ) from error


def _workers(spark: SparkSession) -> Line:
    from airflow_eos.core.delivery.workers import check_workers
    from airflow_eos.kafka.sink import task_modules
    from airflow_eos.ops.doctor import Line

    modules = task_modules("arrow")
    check_workers(spark, modules=modules)
    count = spark.sparkContext.defaultParallelism
    return Line("Spark's workers", "ok", f"{count} tasks could import what KafkaSink's tasks need")


def _raced(spark: SparkSession, location: str, storage_options: Mapping[str, str] | None) -> Line:
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.delivery.spark_session import race_sparks_logs
    from airflow_eos.ops.doctor import sparks_raced

    store = CheckpointStore.open(location, storage_options=storage_options)
    return sparks_raced(race_sparks_logs(spark, store, rounds=ROUNDS))

"""``airflow-eos foreign``: end another engine's dangling transactions by a person's word."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.cli.options import (
    NEEDS_PERSON,
    SOMETHING_TO_DO,
    AsJson,
    BootstrapServers,
    KafkaConfig,
    PlainCommand,
    PlainGroup,
    StorageOption,
    Timeout,
    kafka_settings,
    require_confirmed,
    seconds,
    storage_options,
    tell,
)
from airflow_eos.errors import PipelineAliveError, Remedy
from airflow_eos.ops.tables import duration, plain, show, table

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.kafka.transactions.coordinator import EndResult
    from airflow_eos.kafka.transactions.identity import TransactionIdentity
    from airflow_eos.ops.flink.state import ForeignPlan

app = typer.Typer(
    name="foreign",
    help="End what a Flink job left open in Kafka, by its last completed checkpoint.",
    no_args_is_help=True,
    cls=PlainGroup,
)

_EXAMPLE = "Example: airflow-eos foreign {} checkpoints/chk-7 --prefix orders -b kafka-1:9092"
FlinkCheckpoint = Annotated[
    str,
    typer.Argument(
        help="Flink's completed checkpoint or savepoint, the one that it is to be restored from: "
        "…/chk-7, a path or a URL.",
    ),
]
Prefixes = Annotated[
    list[str],
    typer.Option("--prefix", help="sink.transactional-id-prefix of the job's sink; repeatable."),
]


@app.command(cls=PlainCommand, epilog=_EXAMPLE.format("plan"))
def plan(
    checkpoint: FlinkCheckpoint,
    prefix: Prefixes,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Say what would be committed, and what aborted. Changes nothing.

    Exit status: 0 nothing to do, 3 something to do, 4 something promised is lost, which a person
    must decide about, 2 an error.
    """
    from airflow_eos.ops.flink.state import ForeignAction

    settings = kafka_settings(bootstrap_servers, kafka_config)
    options = storage_options(storage_option)
    with _planned(checkpoint, prefix, settings, options, timeout) as (_, made):
        _show(made, as_json=as_json)
    if made.of(ForeignAction.LOST):
        raise typer.Exit(NEEDS_PERSON)
    if made.of(ForeignAction.COMMIT, ForeignAction.ABORT):
        raise typer.Exit(SOMETHING_TO_DO)


@app.command(cls=PlainCommand, epilog=_EXAMPLE.format("recover"))
def recover(
    checkpoint: FlinkCheckpoint,
    prefix: Prefixes,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    give_up_lost: Annotated[
        bool,
        typer.Option("--give-up-lost", help="Go on although something promised is lost."),
    ] = False,
    wait: Annotated[
        float,
        seconds(
            "wait",
            help="How long to watch that the stopped job writes nothing.",
            show_default="10 seconds",
        ),
    ] = 10.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask: the job is stopped, end what is shown.")
    ] = False,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Commit what the checkpoint promises, abort what else is open under the prefixes.

    Stop the Flink job first, its task managers too, and restore it from this checkpoint
    afterwards. Exit status: 0 done or nothing to do, 1 not confirmed, 4 something had been ended
    meanwhile (plan again), 2 an error or a refusal.
    """
    from airflow_eos.kafka.transactions.coordinator import EndResult
    from airflow_eos.ops.flink.recover import plan_flink, recover_flink
    from airflow_eos.ops.flink.state import ForeignAction

    settings = kafka_settings(bootstrap_servers, kafka_config)
    options = storage_options(storage_option)
    with _planned(checkpoint, prefix, settings, options, timeout) as (wire, made):
        commits, aborts = len(made.of(ForeignAction.COMMIT)), len(made.of(ForeignAction.ABORT))
        if not as_json:
            _show(made, as_json=False)
        asked = f"The job is stopped: commit {commits} and abort {aborts}, for good?"
        if (commits or aborts) and not yes:
            require_confirmed(asked, as_json=as_json)
            now = plan_flink(wire, checkpoint, prefix, storage_options=options, deadline_s=timeout)
            _require_as_shown(made, now)
        ended = recover_flink(wire, made, give_up_lost=give_up_lost, quiet_s=wait)
    _tell(made, ended, as_json=as_json)
    if EndResult.LOOK in ended.values():
        raise typer.Exit(NEEDS_PERSON)


def _require_as_shown(made: ForeignPlan, now: ForeignPlan) -> None:
    """Refuse where the job has gone on while the person was asked, who may have stopped it then."""
    from airflow_eos.ops.flink.state import ForeignAction

    ours = (ForeignAction.COMMIT, ForeignAction.ABORT, ForeignAction.LOST)
    shown, found = (
        {(step.action, step.identity) for step in each.of(*ours)} for each in (made, now)
    )
    if shown != found:
        raise PipelineAliveError(
            f"While you were asked, {len(shown ^ found)} steps of the plan have changed: the job "
            "went on, or a transaction timed out. Nothing was done.",
            Remedy(change="stop the job, wait until its task managers are gone, and plan again"),
        )


@contextmanager
def _planned(
    checkpoint: str,
    prefixes: list[str],
    kafka: KafkaSettings,
    options: dict[str, str] | None,
    deadline_s: float,
) -> Iterator[tuple[ConnectionPool, ForeignPlan]]:
    """Plan what to end by the checkpoint; give the connections, still open, and the plan."""
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.ops.flink.recover import plan_flink

    with ConnectionPool(kafka) as wire:
        yield (
            wire,
            plan_flink(wire, checkpoint, prefixes, storage_options=options, deadline_s=deadline_s),
        )


def _show(made: ForeignPlan, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(made).decode())
        return
    view = table("action", "transaction", "producer", "epoch", "age", "where", "why")
    now_ms = time.time_ns() // 1_000_000
    for step in made.steps:
        view.add_row(
            step.action.value,
            plain(step.transactional_id),
            str(step.producer_id),
            str(step.producer_epoch),
            duration(now_ms - step.started_at_ms) if step.started_at_ms else "",
            plain(" ".join(f"{topic}/{partition}" for topic, partition in step.places)),
            plain(step.reason),
        )
    typer.echo(f"Flink's checkpoint {made.checkpoint}, {made.location}:")
    if made.steps:
        show(view)
    else:
        typer.echo("Nothing is promised, nothing is open.")


def _tell(
    made: ForeignPlan, ended: Mapping[TransactionIdentity, EndResult], *, as_json: bool
) -> None:
    done = [
        {
            "action": step.action.value,
            "transactional_id": step.transactional_id,
            "producer_id": step.producer_id,
            "producer_epoch": step.producer_epoch,
            "result": ended[step.identity].value,
        }
        for step in made.steps
        if step.identity in ended
    ]
    right = sum(each["result"] == "done" for each in done)
    tell(
        {"checkpoint": made.checkpoint, "ended": done},
        f"Ended {right} of {len(done)}. Restore Flink from this checkpoint: {made.location}",
        as_json=as_json,
    )

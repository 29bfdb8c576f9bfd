"""``airflow-eos plan`` and ``airflow-eos recover``: look first, then end what was left open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airflow_eos.commands.options import (
    AsJson,
    BootstrapServers,
    Checkpoint,
    KafkaConfig,
    Prefix,
    Reach,
    StorageOption,
    Timeout,
    kafka_if_given,
    reach_in,
    storage_options,
)
from airflow_eos.errors import ConfigurationError, Remedy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.protocol.decision import Outcome, WorkIdentity
    from airflow_eos.recovery.plan import Action, Plan

SOMETHING_TO_DO = 3
NEEDS_PERSON = 4


def plan(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    prefix: Prefix = None,
    out: Annotated[Path | None, typer.Option(help="Also write the plan to this file.")] = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Say what recovery would do. Changes nothing.

    Exit status: 0 nothing to do, 3 something to do, 4 something that only a person may decide
    (ASK, ORPHAN), 2 an error.
    """
    from airflow_eos.recovery import plan_recovery

    made = plan_recovery(
        checkpoint,
        kafka_if_given(bootstrap_servers, kafka_config),
        reach=reach_in(reach),
        prefix=prefix,
        storage_options=storage_options(storage_option),
        timeout_s=timeout,
    )
    if out is not None:
        _write(out, made)
    _show_plan(made, as_json=as_json)
    if made.needs_person:
        raise typer.Exit(NEEDS_PERSON)
    if made.steps or made.mends:
        raise typer.Exit(SOMETHING_TO_DO)


def recover(
    checkpoint: Annotated[
        str | None, typer.Argument(help="The query's checkpoint location, a path or URL.")
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    prefix: Prefix = None,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="Execute this plan, made by `airflow-eos plan --out`."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Show the plan and stop.")] = False,  # noqa: FBT002
    allow: Annotated[
        list[str] | None,
        typer.Option(help="commit, abort, orphan; repeatable. Without it: commit and abort."),
    ] = None,
    force: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Go on although the pipeline shows signs of life.")
    ] = False,
    assume: Annotated[
        str | None,
        typer.Option(help="committed or aborted: rule what became of --transaction, for ever."),
    ] = None,
    transaction: Annotated[
        str | None, typer.Option(help="Transactional id, or the key that the plan shows.")
    ] = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """End what a dead pipeline left open: commit what was promised, abort the rest.

    Running it twice, or in two places at once, does no more than once. Exit status: 0 done or
    nothing to do, 4 steps were left to a person or not allowed, 2 an error or a refusal.
    """
    from airflow_eos.recovery import execute_recovery, plan_recovery
    from airflow_eos.recovery.tables import report_view
    from airflow_eos.tables import show

    settings = kafka_if_given(bootstrap_servers, kafka_config)
    options = storage_options(storage_option)
    how: dict[str, Any] = {
        "reach": reach_in(reach),
        "storage_options": options,
        "timeout_s": timeout,
    }
    allowed = _allowed(allow)
    given = _given(checkpoint, plan_file)
    if given is None:
        assert checkpoint is not None  # noqa: S101  _given refuses neither
        given = plan_recovery(checkpoint, settings, prefix=prefix, **how)
    if assume is not None or transaction is not None:
        _rule(given, assume, transaction, options)
        given = plan_recovery(given.location, settings, prefix=prefix, **how)
    if dry_run:
        _show_plan(given, as_json=as_json)
        return
    report = execute_recovery(given, settings, allow=allowed, force=force, **how)
    if as_json:
        typer.echo(report.to_json())
    else:
        show(report_view(report))
    if not report.complete:
        raise typer.Exit(NEEDS_PERSON)


def _given(checkpoint: str | None, plan_file: Path | None) -> Plan | None:
    from airflow_eos.recovery.plan import Plan

    if (checkpoint is None) == (plan_file is None):
        raise ConfigurationError("Give either a checkpoint location or --plan FILE.")
    if plan_file is None:
        return None
    try:
        return Plan.from_json(plan_file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--plan {plan_file} cannot be read: {error}") from error


def _allowed(names: list[str] | None) -> Collection[Action]:
    from airflow_eos.recovery.execute import ALLOWED_BY_DEFAULT
    from airflow_eos.recovery.plan import Action

    possible = {action.value: action for action in (Action.COMMIT, Action.ABORT, Action.ORPHAN)}
    wanted = [name.strip().lower() for entry in names or () for name in entry.split(",")]
    unknown = sorted(set(wanted) - possible.keys())
    if unknown:
        raise ConfigurationError(
            f"--allow {', '.join(unknown)}: expected {', '.join(possible)}. What a plan ASKs is "
            "ruled with --transaction and --assume; a REPLAY is the app's."
        )
    return frozenset(possible[name] for name in wanted) if wanted else ALLOWED_BY_DEFAULT


def _rule(
    plan: Plan, assume: str | None, transaction: str | None, options: dict[str, str] | None
) -> None:
    from airflow_eos.checkpoint.rulings import proven, resolve
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Outcome

    if transaction is None or assume not in {"committed", "aborted"}:
        raise ConfigurationError(
            "A ruling needs both: --transaction ID and --assume committed|aborted."
        )
    store = CheckpointStore.open(plan.location, storage_options=options)
    resolve(store, _asked(plan, transaction, proven(store)), Outcome(assume))


def _asked(plan: Plan, wanted: str, proven: Mapping[WorkIdentity, Outcome]) -> WorkIdentity:
    """Find the work that the plan ASKs about: nothing else may be ruled by hand."""
    from airflow_eos.recovery.plan import Action

    asked = [step.work for step in plan.steps if step.action is Action.ASK and step.work]
    # A Kafka key is the transactional id, the producer id and the epoch.
    name = re.compile(rf"{re.escape(wanted)}(-[0-9]+-[0-9]+)?", re.ASCII)
    found = [each for each in asked if name.fullmatch(each.key)]
    proof = next((proven[each] for each in proven if name.fullmatch(each.key)), None)
    if not found and proof is not None:
        raise ConfigurationError(
            f"--transaction {wanted} needs no ruling: {proof.value!r} is proven, by a later COMMIT "
            "decision of its batch, which named again just what was missing. Nothing was recorded.",
            Remedy(start=True),
        )
    if len(found) != 1:
        names = ", ".join(each.key for each in asked)
        raise ConfigurationError(
            f"--transaction {wanted} fits {len(found)} of the pieces of work that need a ruling "
            f"({names or 'none do: every outcome is told'}). Expected exactly one."
        )
    return found[0]


def _write(file: Path, plan: Plan) -> None:
    try:
        file.write_bytes(plan.to_json() + b"\n")
    except OSError as error:
        raise ConfigurationError(f"--out {file} cannot be written: {error}") from error


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from airflow_eos.recovery.tables import plan_view
    from airflow_eos.tables import show

    if as_json:
        typer.echo(plan.to_json())
    else:
        show(plan_view(plan))

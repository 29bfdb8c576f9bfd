"""``airflow-eos accept``: a person lets a pipeline go on without rows that it still owes."""

from __future__ import annotations

import getpass
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.commands.options import (
    AsJson,
    BootstrapServers,
    Checkpoint,
    KafkaConfig,
    Reach,
    StorageOption,
    Timeout,
    kafka_if_given,
    reach_in,
    storage_options,
)

if TYPE_CHECKING:
    from airflow_eos.recovery.accept import Shortfall


def accept(
    checkpoint: Checkpoint,
    batch: Annotated[int, typer.Option(min=0, help="The batch in flight, as `status` shows it.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    give_up_open: Annotated[  # noqa: FBT002 - a flag of the command line
        bool,
        typer.Option(
            "--give-up-open",
            help="Also what could still be committed, where its system refuses it for ever.",
        ),
    ] = False,
    yes: Annotated[  # noqa: FBT002 - a flag of the command line
        bool, typer.Option("--yes", help="Do not ask: the rows shown are given up.")
    ] = False,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Go on with a promised batch as it is, for ever: what cannot be delivered is given up.

    For a batch that cannot be replayed, because its input is gone in part or the query now gives
    other rows. Nothing is written now. The next start settles what it can, delivers what is left of
    the input where fewer rows come back than were promised (of those, what no reader has), goes on,
    and logs how many rows are given up. Exit status: 0 accepted, 1 not confirmed, 2 an error or a
    refusal.
    """
    from airflow_eos.checkpoint import CheckpointStore, rulings
    from airflow_eos.recovery import gather, shortfall
    from airflow_eos.recovery.run import participant_of

    settings = kafka_if_given(bootstrap_servers, kafka_config)
    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    with closing(
        participant_of(store, settings, reach=reach_in(reach), timeout_s=timeout)
    ) as participant:
        found = shortfall(gather(store, participant), batch, open_too=give_up_open)
        _show(found)
        if not yes:
            if not typer.confirm(f"Give up at most {found.rows} rows for ever?", err=True):
                raise typer.Exit(1)
            # Asking took its time, in which a recovery or a driver may have gone on.
            _require_still(
                found, shortfall(gather(store, participant), batch, open_too=give_up_open)
            )
    by = f"cli {getpass.getuser()}"
    ruling = rulings.accept(
        store, batch, found.promise, missing=found.missing, ruled_by=by, given_up=found.given_up
    )
    if as_json:
        typer.echo(msgspec.json.encode(ruling).decode())
    else:
        typer.echo(
            f"Batch {batch} goes on as it is: at most {found.rows} rows are given up, and what the "
            "input still has of them is delivered. Start the app again."
        )


def _require_still(shown: Shortfall, found: Shortfall) -> None:
    from airflow_eos.errors import RecoveryError

    if (found.rows, found.works) != (shown.rows, shown.works):
        raise RecoveryError(
            f"While you were asked, batch {shown.batch_id} went on: {shown.rows} rows were "
            f"missing, now {found.rows}. Nothing was given up: stop the app, and look again."
        )


def _show(found: Shortfall) -> None:
    """On standard error, as the question is: before anything is recorded."""
    from airflow_eos.tables import printable

    typer.echo(
        f"Batch {found.batch_id}: {found.promised} rows were promised, readers have "
        f"{found.delivered} of them, {found.rows} are missing.",
        err=True,
    )
    if found.untold:
        typer.echo(
            f"Of {found.untold} of these nobody can tell whether readers have them "
            "(airflow-eos recover --assume rules about each).",
            err=True,
        )
    for each, outcome in found.works:
        detail = msgspec.json.encode(each.work.detail).decode()
        line = f"  {outcome.value:9} {each.work.rows:9} rows  {each.identity}  {detail}"
        typer.echo(printable(line), err=True)

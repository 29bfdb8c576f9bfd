"""``airflow-eos disown``: give a prefix up, so that another checkpoint may own it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.commands.options import (
    AsJson,
    BootstrapServers,
    KafkaConfig,
    StorageOption,
    kafka_settings,
    storage_options,
)

if TYPE_CHECKING:
    from airflow_eos.protocol.participant import Ownership


def disown(
    prefix: Annotated[str, typer.Argument(help="The transactional id prefix.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    moved: Annotated[  # noqa: FBT002
        bool,
        typer.Option(help="Its checkpoint was moved: only the place is forgotten, no batch is."),
    ] = False,
    force: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Go on although the owner shows signs of life.")
    ] = False,
    storage_option: StorageOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Forget which checkpoint owns PREFIX and how far it has delivered; the next start owns it.

    Only for a checkpoint that was moved (--moved), or is lost and not to be replaced by an older
    copy: what was delivered under the prefix is delivered again where the new owner reads the same
    input. Stop the pipeline first. Exit status: 0 forgotten or nothing known, 1 you said no, 2 an
    error, or the owner is alive.
    """
    from rich.console import Console

    from airflow_eos.kafka.transactions.ownership import PrefixLedger

    console = Console()
    ledger = PrefixLedger(kafka_settings(bootstrap_servers, kafka_config), prefix=prefix)
    try:
        found = ledger.read()
        untold = _require_silent(found, storage_options(storage_option), moved, force)
        if untold and not as_json:
            console.print(untold, markup=False)
        if found.keys and not yes:
            console.print(f"Prefix {prefix!r} belongs to {_whose(found)}", markup=False)
            if not typer.confirm("Forget this?"):
                raise typer.Exit(1)
        records = ledger.forget(moved=moved)
    finally:
        ledger.close()
    if as_json:
        newest = found.newest()
        answer = {"owner": found.owner, "newest": newest, "records": records, "not_known": untold}
        typer.echo(msgspec.json.encode(answer).decode())
    else:
        console.print(
            f"Prefix {prefix!r} is free: {records} records forgotten."
            if records
            else f"Nobody owns prefix {prefix!r} on this cluster."
        )


def _whose(found: Ownership) -> str:
    if found.owner is None:
        return f"nobody; {len(found.keys)} records speak of it."
    newest = found.newest()
    delivered = (
        "no batch was delivered yet."
        if newest is None
        else f"batch {newest.batch} was delivered last."
    )
    return f"{found.owner}; {delivered}"


def _require_silent(
    found: Ownership,
    options: dict[str, str] | None,
    moved: bool,  # noqa: FBT001
    force: bool,  # noqa: FBT001
) -> str:
    """Refuse an owner that shows signs of life; returns what could not be known of it.

    Raises:
        PipelineAliveError: with the signs.
    """
    from airflow_eos.checkpoint import CheckpointStore, read_heartbeat
    from airflow_eos.errors import EosError, PipelineAliveError, Remedy
    from airflow_eos.recovery.driver_liveness import signs_of_life

    if found.owner is None:
        return ""
    location, forget = found.owner.location, found.move if moved else found.give_up
    asked = f"Whether a driver still runs on {location} is not known: "
    try:
        store = CheckpointStore.open(location, storage_options=options)
        heartbeat = read_heartbeat(store)
        signs = () if heartbeat is None else signs_of_life(store)
    except EosError as error:
        return f"{asked}{error} Make sure that it is stopped."
    if heartbeat is None:
        return f"{asked}no heartbeat is there, as seen from here. Make sure that it is stopped."
    if signs and not force:
        raise PipelineAliveError(
            f"The owner of the {found.called} seems to be alive: {'; '.join(signs)}. It would go "
            "on delivering beside the next owner. Nothing was forgotten.",
            Remedy(commands=(f"airflow-eos drain {location}", *forget.commands), start=True),
        )
    return ""

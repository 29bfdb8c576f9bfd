"""``airflow-eos disown``: give a prefix up, so that another checkpoint may own it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from airflow_eos.commands.options import AsJson, BootstrapServers, KafkaConfig, kafka_settings


def disown(
    prefix: Annotated[str, typer.Argument(help="The transactional id prefix.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Forget which checkpoint owns PREFIX and how far it has delivered; the next start owns it.

    Only for a checkpoint that was moved, or is lost and not to be replaced by an older copy: what
    was delivered under the prefix is delivered again where the new owner reads the same input.
    Stop the pipeline first. Exit status: 0 forgotten or nothing known, 1 you said no, 2 an error.
    """
    from rich.console import Console

    from airflow_eos.kafka.transactions.ownership import PrefixLedger

    console = Console()
    ledger = PrefixLedger(kafka_settings(bootstrap_servers, kafka_config), prefix=prefix)
    try:
        found = ledger.read()
        if found.owner is not None and not yes:
            console.print(f"Prefix {prefix!r} belongs to {found.owner}; {_delivered(found.newest)}")
            if not typer.confirm("Forget this?"):
                raise typer.Exit(1)
        records = ledger.forget()
    finally:
        ledger.close()
    if as_json:
        answer = {"owner": found.owner, "newest": found.newest, "records": records}
        typer.echo(msgspec.json.encode(answer).decode())
    else:
        console.print(
            f"Prefix {prefix!r} is free: {records} records forgotten."
            if records
            else f"Nobody owns prefix {prefix!r} on this cluster."
        )


def _delivered(newest: object) -> str:
    batch = getattr(newest, "batch", None)
    return "no batch was delivered yet." if batch is None else f"batch {batch} was delivered last."

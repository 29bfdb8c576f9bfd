"""``airflow-eos broker``: a Kafka broker on this machine, in the background."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from airflow_eos.local.daemon import RunningBroker

app = typer.Typer(help="A Kafka broker on this machine, to try things out.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def start(as_json: AsJson = False) -> None:  # noqa: FBT002 - a flag of the command line
    """Start a broker in the background; its data is gone when it stops."""
    from airflow_eos.local import daemon, jars

    jars.broker_jars()  # here, where the progress of a first download can be seen
    _show(daemon.start(), as_json=as_json)


@app.command()
def stop(as_json: AsJson = False) -> None:  # noqa: FBT002 - a flag of the command line
    """Stop the broker in the background and remove its data; its logs stay."""
    from airflow_eos.local import daemon

    stopped = daemon.stop()
    if as_json:
        typer.echo(json.dumps({"stopped": stopped}))
    else:
        typer.echo("Broker stopped." if stopped else "No broker was running.")


@app.command()
def status(as_json: AsJson = False) -> None:  # noqa: FBT002 - a flag of the command line
    """Say whether a broker runs in the background; exit status 1 where none does."""
    from airflow_eos.local import daemon

    found = daemon.status()
    _show(found, as_json=as_json)
    if found is None:
        raise typer.Exit(1)


def _show(broker: RunningBroker | None, *, as_json: bool) -> None:
    if broker is None:
        typer.echo(json.dumps({"running": False}) if as_json else "No broker is running.")
        return
    if as_json:
        facts = {
            "running": True,
            "pid": broker.pid,
            "bootstrap_servers": broker.bootstrap_servers,
            "log_folder": broker.log_folder,
            "started_at": broker.started_at,
        }
        typer.echo(json.dumps(facts))
        return
    import pendulum

    age = pendulum.from_timestamp(broker.started_at).diff_for_humans(absolute=True)
    typer.echo(f"Broker at {broker.bootstrap_servers}, up for {age}.")
    typer.echo(f"Logs: {broker.log_folder}")

"""``airflow-eos drain``: ask a running pipeline to stop after its running batch."""

from __future__ import annotations

import getpass
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.commands.options import (
    AsJson,
    Checkpoint,
    StorageOption,
    seconds,
    storage_options,
)

if TYPE_CHECKING:
    from airflow_eos.checkpoint import Heartbeat, Phase

_LOOK_S = 0.5


def drain(
    checkpoint: Checkpoint,
    reason: Annotated[str, typer.Option(help="For whoever reads the request.")] = "asked by hand",
    wait: Annotated[
        float, seconds("wait", help="Until the driver says that it stopped; or '2 minutes'.")
    ] = 120.0,
    storage_option: StorageOption = None,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Let the running batch end, then stop the app; works on every cluster manager.

    Exit status: 0 the driver stopped, 1 it has not said so within ``--wait``, or has failed, 2 an
    error.
    """
    from rich.console import Console

    from airflow_eos.checkpoint import CheckpointStore, drain_newest, read_heartbeat
    from airflow_eos.checkpoint.heartbeat import ENDED
    from airflow_eos.errors import ConfigurationError

    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    if read_heartbeat(store) is None:
        raise ConfigurationError(
            f"No driver has ever beaten in {store.location}/eos: there is nothing to drain. Give "
            "the checkpointLocation of the query."
        )
    request = drain_newest(store, requested_by=f"cli {getpass.getuser()}", reason=reason)
    deadline = time.monotonic() + wait
    while (phase := _phase(read_heartbeat(store))) not in ENDED and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    stopped = phase == "stopped"
    if as_json:
        answer = {"request": msgspec.to_builtins(request), "stopped": stopped}
        typer.echo(msgspec.json.encode(answer).decode())
    else:
        Console().print(f"{_said(phase, wait)}: {store.location}", soft_wrap=True)
    raise typer.Exit(0 if stopped else 1)


def _phase(heartbeat: Heartbeat | None) -> Phase | None:
    return None if heartbeat is None else heartbeat.phase


def _said(phase: Phase | None, wait: float) -> str:
    if phase == "stopped":
        return "Drained"
    if phase == "failed":
        return (
            "Asked to drain; but the driver has failed, and its task may be about to start it "
            "again. Mark the task as failed to be sure that it does not"
        )
    return f"Asked to drain; the driver has not stopped within {wait:g} s"

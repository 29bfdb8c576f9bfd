"""``airflow-eos ui``: the page without Airflow, to look at."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from airflow_eos.commands.options import (
    BootstrapServers,
    KafkaConfig,
    Reach,
    StorageOption,
    kafka_if_given,
    reach_in,
    storage_options,
)
from airflow_eos.errors import ConfigurationError, LocalEnvironmentError, Remedy, StoreError

PORT = 8642


def ui(
    checkpoints: Annotated[
        list[str],
        typer.Argument(help="Checkpoint locations: a path, s3a://, gs://, abfss:// …"),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    storage_option: StorageOption = None,
) -> None:
    """Show pipelines in a browser on this machine. Changes nothing, and needs no login.

    Runs until Ctrl-C. From elsewhere: ssh -L 8642:localhost:8642 HOST.
    """
    try:
        import uvicorn

        from airflow_eos.page.app import standalone
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The page needs {error.name}, which is not installed: "
            "pip install 'airflow-provider-eos[ui]'"
        ) from error
    from airflow_eos.page.views import Reach as How

    options = storage_options(storage_option)
    for each in checkpoints:
        _require_there(each, options)
    app = standalone(
        checkpoints,
        How(
            storage=options,
            kafka=kafka_if_given(bootstrap_servers, kafka_config),
            participants=reach_in(reach),
        ),
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    with _listening(port) as listening:
        typer.echo(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        server.run(sockets=[listening])


def _require_there(location: str, options: dict[str, str] | None) -> None:
    """Refuse a place that holds no checkpoint: it would be shown as a new pipeline for ever.

    A store that does not answer now may answer later, and the page says so.
    """
    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.checkpoint.backend import EOS

    store = CheckpointStore.open(location, storage_options=options)
    try:
        there = store.head("metadata") or store.list(EOS) or store.folders(EOS)
    except StoreError:
        return
    if not there:
        raise ConfigurationError(
            f"{store.location} holds no checkpoint: neither Spark's file metadata nor a folder "
            f"{EOS}. Expected the checkpointLocation of a query that was started once.",
            Remedy(change="give the location as the app has it, or start the app first"),
        )


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(128)  # before its address is told: a browser may be there before uvicorn
    except OSError as error:
        listening.close()
        raise LocalEnvironmentError(
            f"Port {port} cannot be listened on: {error}. Give another one: --port 0 takes any."
        ) from error
    return listening

"""``airflow-eos blocked``: whose transaction holds the readers of a topic up."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.commands.options import (
    AsJson,
    BootstrapServers,
    KafkaConfig,
    kafka_settings,
    seconds,
)

if TYPE_CHECKING:
    from airflow_eos.kafka.transactions.blocked import Blocked


def blocked(
    topics: Annotated[list[str], typer.Argument(help="The topics to look at; of any program.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    older_than: Annotated[
        float, seconds("older_than", help="Leave out what is younger, as a batch in flight.")
    ] = 0.0,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Say who holds the read_committed readers of TOPICS up. Changes nothing.

    Of each partition that is held up: the transaction at its last stable offset, whose it is by the
    form of its transactional id, its age, what its coordinator says, and how much each consumer
    group waits for. Nothing is ended because of the form of a name: what ends it is in the last
    column. Exit status: 0 nothing holds them up, 1 something does, 2 an error.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.blocked import find_blocked

    settings = kafka_settings(bootstrap_servers, kafka_config)
    with closing(ConnectionPool(settings, client_id="airflow-eos")) as wire:
        found = find_blocked(wire, set(topics), older_than_ms=int(older_than * 1000))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found)
    if found.partitions:
        raise typer.Exit(1)


def _show(found: Blocked) -> None:
    if found.partitions:
        _show_partitions(found)
    else:
        typer.echo("No transaction holds readers up.")
    for what in found.untold:
        typer.echo(f"Not known: {what}")
    if found.unread:
        typer.echo(f"Not known: how far these groups are (no right to read): {found.unread}")


def _show_partitions(found: Blocked) -> None:
    from airflow_eos.supervision.progress import ends_by
    from airflow_eos.tables import duration, plain, show, table

    view = table(
        "partition", "stable", "held", "age", "state", "transactional id", "whose", "ends by"
    )
    for each in found.partitions:
        name = f"producer {each.producer_id}" if each.transactional_id is None else ""
        view.add_row(
            plain(f"{each.topic}-{each.partition}"),
            str(each.stable),
            str(each.end - each.stable),
            duration(each.age_ms),
            plain(each.state),
            plain(each.transactional_id or name),
            plain(each.owner or "not known"),
            plain(ends_by(each)),
        )
    show(view)
    if any(each.groups for each in found.partitions):
        _show_groups(found)


def _show_groups(found: Blocked) -> None:
    from airflow_eos.tables import plain, show, table

    view = table("group", "partition", "committed", "waits for")
    for each in found.partitions:
        for group in each.groups:
            view.add_row(
                plain(group.group),
                plain(f"{each.topic}-{each.partition}"),
                str(group.committed),
                "nothing: it reads uncommitted" if group.waiting is None else str(group.waiting),
            )
    show(view)

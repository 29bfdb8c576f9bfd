"""``airflow-eos blocked`` and ``hanging``: transactions that hold up the readers of a topic."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from airflow_eos.cli.options import (
    AsJson,
    BootstrapServers,
    KafkaConfig,
    kafka_settings,
    require_confirmed,
    seconds,
    tell_json,
)
from airflow_eos.errors import Remedy, printable
from airflow_eos.ops.tables import duration, plain, show, table

if TYPE_CHECKING:
    from airflow_eos.kafka.transactions.listing import HangingTransaction
    from airflow_eos.ops.blocked import Blocked


def blocked(
    topics: Annotated[list[str], typer.Argument(help="The topics to look at; of any program.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    older_than: Annotated[
        float,
        seconds(
            "older-than",
            help="Leave out younger transactions, such as a batch in flight.",
            show_default="0 seconds",
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Show which transactions hold up the read_committed readers of TOPICS. Changes nothing.

    Of each partition that is held up: the transaction at its last stable offset, whose it is by the
    form of its transactional id, its age, what its coordinator says, and how much each consumer
    group waits for. Nothing is ended because of the form of a name: what ends it is in the last
    column. Exit status: 0 nothing holds them up, 1 something does, known or not, 2 an error.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.ops.blocked import find_blocked

    with ConnectionPool(kafka_settings(bootstrap_servers, kafka_config)) as wire:
        found = find_blocked(wire, set(topics), older_than_ms=int(older_than * 1000))
    if as_json:
        tell_json(found)
    else:
        _show(found)
    if found.partitions or found.unnamed:
        raise typer.Exit(1)


def _show(found: Blocked) -> None:
    if found.partitions:
        _show_partitions(found)
    elif not found.unnamed:
        typer.echo("No transaction holds readers up.")
    for what in (*found.unnamed, *found.untold):
        typer.echo(f"Not known: {printable(what)}")
    if found.unread:
        groups = printable(", ".join(found.unread))
        typer.echo(f"Not known: how far these groups are (no right, or no answer): {groups}")


def _show_partitions(found: Blocked) -> None:
    from airflow_eos.ops.supervision.progress import ends_by

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
            plain(each.standing),
            plain(each.transactional_id or name),
            plain(each.owner or "not known"),
            plain(ends_by(each)),
        )
    show(view)
    groups = table("group", "partition", "committed", "waits for")
    for each in found.partitions:
        for group in each.groups:
            groups.add_row(
                plain(group.group),
                plain(f"{each.topic}-{each.partition}"),
                str(group.committed),
                "nothing: it reads uncommitted" if group.waiting is None else str(group.waiting),
            )
    if groups.row_count:
        show(groups)


def hanging(
    topics: Annotated[list[str], typer.Argument(help="The topics to look at.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    older_than: Annotated[
        float | None,
        seconds(
            "older-than",
            help="Only transactions whose newest row is older; by default the broker's "
            "transaction.max.timeout.ms and 5 minutes.",
        ),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End them: write their markers.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the hanging transactions of TOPICS (KIP-664), and end them with --end.

    A hanging transaction is open in a partition, but no coordinator knows it: neither its writer,
    nor a recovery, nor its timeout can end it, and no read_committed reader gets past it. One that
    its coordinator has committed is committed; any other is aborted, and what was promised of it is
    lost like after a timeout: the app replays it when it starts. Of another program's it tells only
    the newest, and this may be one before: such a one is left alone. Exit status: 0 nothing hangs
    any more, 1 something does, 2 an error.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.hanging import end_hanging, find_hanging, longest_life_ms

    with ConnectionPool(kafka_settings(bootstrap_servers, kafka_config)) as wire:
        age_ms = longest_life_ms(wire) if older_than is None else int(older_than * 1000)
        found = find_hanging(wire, set(topics), older_than_ms=age_ms)
        if as_json:
            typer.echo(msgspec.json.encode(found).decode())
        else:
            _show_hanging(found, wire.settings.bootstrap_servers)
        if not found:
            return
        if not end:
            raise typer.Exit(1)
        known = [each for each in found if each.committed is not None]
        if known and not yes:
            require_confirmed(f"End {len(known)}?")
            # Its producer may have come back while the person was asked.
            found = find_hanging(wire, set(topics), older_than_ms=age_ms)
            known = [each for each in found if each in known]
        for each in known:
            end_hanging(wire, each, commit=bool(each.committed))
    if known and not as_json:
        typer.echo(f"Ended {len(known)}. Start the app again: it replays what is missing.")
    if len(known) < len(found):
        raise typer.Exit(1)


def _show_hanging(found: tuple[HangingTransaction, ...], servers: str) -> None:
    if not found:
        typer.echo("No transaction hangs.")
        return
    view = table("topic", "partition", "from offset", "producer", "epoch", "age", "to be")
    now_ms = time.time_ns() // 1_000_000
    for each in found:
        view.add_row(
            plain(each.topic),
            str(each.partition),
            str(each.start),
            str(each.producer_id),
            str(each.producer_epoch),
            duration(now_ms - each.last_written_ms),
            "not known" if each.committed is None else "committed" if each.committed else "aborted",
        )
    show(view)
    for each in found:
        if each.committed is None:
            typer.echo(f"{_asking(each, servers)}.")


def _asking(each: HangingTransaction, servers: str) -> Remedy:
    command = (
        f"kafka-transactions.sh --bootstrap-server {servers} abort --topic "
        f"{shlex.quote(printable(each.topic))} --partition {each.partition} "
        f"--start-offset {each.start}"
    )
    return Remedy(
        (command,),
        change=f"ask who runs producer {each.producer_id} whether it was committed (its "
        "coordinator tells of the newest, and this may be one before); where it was not",
        costs="its rows, where it was",
    )

"""``airflow-eos doctor``: everything that can be known before a start, as a table."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, get_args

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
    pairs,
    reach_in,
    seconds,
    storage_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_eos.delivery.port import Guarantee
    from airflow_eos.supervision.doctor import Line

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic that is going to be written; repeatable.")
    ] = None,
    input_topic: Annotated[
        list[str] | None, typer.Option(help="A topic that is going to be read; repeatable.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The consumer group that shows how far the pipeline is.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="The sink's transactional_id_prefix, before a first start.")
    ] = None,
    guarantee: Annotated[
        str | None, typer.Option(help="exactly_once, at_least_once or at_most_once.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Start a Spark app there, and ask its workers and its file manager."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="key=value for that Spark app; repeatable.")
    ] = None,
    transaction_timeout: Annotated[
        float, seconds("transaction_timeout", help="Of the sink; seconds, or '15 minutes'.")
    ] = 900.0,
    trigger_interval: Annotated[float, seconds("trigger_interval")] = 1.0,
    batch_within: Annotated[float, seconds("batch_within")] = 60.0,
    recover_within: Annotated[float, seconds("recover_within")] = 300.0,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the store's race, 8 small writes each.")
    ] = 40,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Say what would keep a start from working. Changes nothing; its probes are removed.

    Exit status: 0 nothing fails, 1 something does, 2 the location cannot be opened at all.
    """
    from airflow_eos.supervision.doctor import DoctorRequest, examine, worst

    options = storage_options(storage_option)
    lines = examine(
        DoctorRequest(
            checkpoint,
            storage_options=options,
            settings=kafka_if_given(bootstrap_servers, kafka_config),
            reach=reach_in(reach),
            topics=tuple(topic or ()),
            inputs=tuple(input_topic or ()),
            group=group,
            guarantee=_guarantee(guarantee),
            prefix=prefix,
            transaction_timeout=timedelta(seconds=transaction_timeout),
            trigger_interval=timedelta(seconds=trigger_interval),
            batch_within=timedelta(seconds=batch_within),
            recover_within=timedelta(seconds=recover_within),
            rounds=rounds,
            timeout_s=timeout,
        )
    )
    if master is not None:
        from airflow_eos.commands.spark_probes import spark_lines

        lines += spark_lines(master, pairs(conf or [], "--conf"), checkpoint, options)
    if as_json:
        facts = [line._asdict() for line in lines]
        typer.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
    else:
        _show(lines)
    if worst(lines) == "fail":
        raise typer.Exit(1)


def _show(lines: Iterable[Line]) -> None:
    from airflow_eos.tables import plain, show, table

    view = table("what", "verdict", "found", "expected", "next")
    for line in lines:
        texts = map(plain, (line.found, line.expected, line.next))
        view.add_row(plain(line.what), plain(line.verdict, _STYLE[line.verdict]), *texts)
    show(view)


def _guarantee(text: str | None) -> Guarantee | None:
    from airflow_eos.delivery.port import Guarantee
    from airflow_eos.errors import ConfigurationError

    known: dict[str, Guarantee] = {each: each for each in get_args(Guarantee)}
    if text is not None and text not in known:
        raise ConfigurationError(f"--guarantee {text!r}: expected {', '.join(known)}.")
    return None if text is None else known[text]

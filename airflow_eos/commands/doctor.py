"""``airflow-eos doctor``: everything that can be known before a start, check by check."""

from __future__ import annotations

import textwrap
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
import typer

from airflow_eos.arguments import GUARANTEES
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
    word,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.delivery.port import Guarantee
    from airflow_eos.supervision.doctor import Line

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic that the app will write; repeatable.")
    ] = None,
    input_topic: Annotated[
        list[str] | None, typer.Option(help="A topic that the app will read; repeatable.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The consumer group that shows how far the pipeline is.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="The sink's transactional_id_prefix, before a first start.")
    ] = None,
    guarantee: Annotated[
        str | None, word("--guarantee", GUARANTEES, help="The guarantee that the app will use.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Start a Spark app there, and ask its workers and its file manager."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="key=value for that Spark app; repeatable.")
    ] = None,
    transaction_timeout: Annotated[
        float,
        seconds(
            "transaction_timeout",
            help="The app's transaction_timeout: seconds, or '15 minutes'.",
            show_default="15 minutes",
        ),
    ] = 900.0,
    trigger_interval: Annotated[
        float, seconds("trigger_interval", help="The app's trigger.", show_default="1 second")
    ] = 1.0,
    batch_within: Annotated[
        float, seconds("batch_within", help="The app's batch_within.", show_default="1 minute")
    ] = 60.0,
    recover_within: Annotated[
        float, seconds("recover_within", help="The app's recover_within.", show_default="5 minutes")
    ] = 300.0,
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
            guarantee=cast("Guarantee | None", guarantee),
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


def _show(lines: Sequence[Line]) -> None:
    """A line for each check that passes; behind them a block for each that does not."""
    from rich.console import Console
    from rich.text import Text

    from airflow_eos.tables import printable

    console = Console()
    grave = list(_STYLE)
    for line in sorted(lines, key=lambda line: grave.index(line.verdict)):
        said = {"": f"{line.what}: {line.found}"}
        if line.verdict != "ok":
            parts = {"found": line.found, "expected": line.expected, "next": line.next}
            said = {"": line.what, **{name: text for name, text in parts.items() if text}}
        for name, text in said.items():
            head = f"      {name:8} " if name else f"{line.verdict:4}  "
            # A terminal would break a line within a word; a pipe has no width.
            rows = textwrap.wrap(
                printable(text),
                max(20, console.width - len(head)) if console.is_terminal else 1_000_000,
                break_long_words=False,
                break_on_hyphens=False,
            )
            shown = Text(head, style="dim" if name else _STYLE[line.verdict])
            shown.append(f"\n{' ' * len(head)}".join(rows), style="none")
            console.print(shown, soft_wrap=True)
    failed = sum(line.verdict == "fail" for line in lines)
    console.print(
        f"{failed} of {len(lines)} checks failed: a start would be refused, or fail."
        if failed
        else f"None of {len(lines)} checks failed.",
        highlight=False,
    )

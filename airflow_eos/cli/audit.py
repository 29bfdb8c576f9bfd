"""``airflow-eos audit``: compare what a read_committed reader has with what went in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_eos.cli.options import (
    AsJson,
    BootstrapServers,
    KafkaConfig,
    StorageOption,
    Timeout,
    kafka_settings,
    storage_options,
)
from airflow_eos.errors import ConfigurationError
from airflow_eos.ops.tables import plain, show, table

if TYPE_CHECKING:
    from airflow_eos.ops.audit.audit import AuditReport

VIOLATIONS = 1
NOT_KNOWN = 3


def audit(
    input_topic: Annotated[
        str, typer.Argument(help="The topic that the app reads; at rest. Several: a,b.")
    ],
    output_topic: Annotated[str, typer.Argument(help="The topic that the app writes.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    id_expression: Annotated[
        str,
        typer.Option(
            "--id", help="What names a row: value.<field>, key, key.<field>, headers.<n>."
        ),
    ] = "value.id",
    order_by: Annotated[
        str,
        typer.Option(
            help="The key, in the input, within which order must be kept; none: no order is asked."
        ),
    ] = "key",
    dead_letter: Annotated[
        str | None, typer.Option(help="Topic of malformed rows; each row is there or in OUTPUT.")
    ] = None,
    dead_letter_id: Annotated[
        str | None, typer.Option(help="What names a row there, if it is not --id.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="The app's checkpoint: finds rows that were never decided."),
    ] = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Find rows lost, duplicated, out of order, visible before decided, or still open.

    Exit status: 0 every row exactly once and in order, 1 violations, 2 an error, 3 not known:
    nothing is violated that can be judged, and not every row, or not its order, can be judged.
    """
    from airflow_eos.ops.audit.audit import audit as run

    inputs = [name.strip() for name in input_topic.split(",")]
    if output_topic in inputs:
        raise ConfigurationError(
            f"{output_topic} is the input and the output: it is always what it is. Expected the "
            "topic that the app reads, then the one that it writes."
        )
    report = run(
        kafka_settings(bootstrap_servers, kafka_config),
        inputs,
        output_topic,
        id_expression=id_expression,
        order_by=order_by,
        dead_letter_topic=dead_letter,
        dead_letter_id=dead_letter_id,
        checkpoint=checkpoint,
        storage_options=storage_options(storage_option),
        timeout_s=timeout,
    )
    if as_json:
        typer.echo(report.to_json())
    else:
        show(audit_view(report))
    if not report.ok:
        raise typer.Exit(VIOLATIONS if report.verdict == "violated" else NOT_KNOWN)


def audit_view(report: AuditReport) -> RenderableType:
    """Show the counts, and the first rows that break a promise."""
    counts = Table(box=None, show_header=False, pad_edge=False)
    counts.add_row(f"rows in {', '.join(report.input_topics)}", f"{report.rows_in:,}")
    for topic, rows in report.rows_out.items():
        counts.add_row(f"rows in {topic}", f"{rows:,}")
    for name, count in (
        ("lost", report.lost),
        ("duplicated", report.duplicated),
        ("reordered", report.reordered if report.order in ("kept", "broken") else None),
        ("unexpected", report.unexpected),
        ("visible before decided", report.visible_undecided),
        ("in transactions still open", report.open_rows),
    ):
        style = "" if count is None else "green" if count == 0 else "bold red"
        unchecked = "not checked" + (
            " (no --checkpoint, or too old)" if name.startswith("visible") else ""
        )
        counts.add_row(name, Text(unchecked if count is None else f"{count:,}", style=style))
    counts.add_row("order", report.order)
    for topic, offsets in (report.whole_until or {}).items():
        counts.add_row(f"all of {topic} is out before", json.dumps(offsets))
    if report.again:
        counts.add_row("and of what is behind it", f"{report.again:,}")
    if report.given_up:
        counts.add_row("given up by a person (accept --skip-input)", f"{report.given_up:,}")
    parts: list[RenderableType] = [counts]
    if report.offenders:
        offenders = table("what", "topic/partition@offset", "key", "id", "detail")
        for row in report.offenders:
            position = f"{row.topic}/{row.partition}@{row.offset}"
            # as Text: text from a topic is no markup
            cells = (row.kind, position, row.key or "", row.id or "", row.detail)
            offenders.add_row(*map(plain, cells))
        parts.append(offenders)
    if report.unjudged:
        unknown = table("not known", "rows", "what would tell")
        for each in report.unjudged:
            about = "" if each.rows is None else f"{each.rows:,}"
            unknown.add_row(plain(each.why), about, plain(each.answer))
        parts.append(unknown)
    verdict = {
        "exact": "Every row exactly once"
        + {"kept": " and in order", "not asked": "; no order was asked for"}.get(report.order, "")
        + (", but for those that a person has given up." if report.given_up else "."),
        "violated": "VIOLATED: see above.",
        "unknown": "NOT KNOWN: no violation was found, but not everything could be judged"
        + (": not the order." if report.order == "not judged" else "."),
    }[report.verdict]
    parts.append(Text(f"{verdict} ({report.seconds:.1f} s)", style="bold"))
    return Group(*parts)

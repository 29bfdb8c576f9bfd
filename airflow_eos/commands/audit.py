"""``airflow-eos audit``: count what a read_committed reader has, against what went in."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_eos.commands.options import (
    AsJson,
    BootstrapServers,
    KafkaConfig,
    StorageOption,
    Timeout,
    kafka_settings,
    storage_options,
)
from airflow_eos.errors import ConfigurationError

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
        str, typer.Option(help="The key, in the input, within which order must be kept.")
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
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Find rows lost, duplicated, out of order, visible before decided, or still open.

    Exit status: 0 every row exactly once, 1 violations, 2 an error, 3 not known: nothing is
    violated that can be judged, and the topics do not tell of all rows any more.
    """
    from airflow_eos.audit.audit import audit as run
    from airflow_eos.audit.tables import audit_view
    from airflow_eos.tables import show

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

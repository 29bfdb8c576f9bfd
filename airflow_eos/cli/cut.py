"""``airflow-eos cut``: up to where readers of several outputs see the same batches."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from airflow_eos.cli.options import AsJson, Checkpoint, StorageOption, storage_options, tell_json
from airflow_eos.ops.tables import plain, show, table


def cut(
    checkpoint: Checkpoint,
    batch: Annotated[
        int | None, typer.Option(min=0, help="The cut after this batch; the newest without it.")
    ] = None,
    storage_option: StorageOption = None,
    as_json: AsJson = False,
) -> None:
    """Show one place in each output of CHECKPOINT up to which all have the same batches.

    Changes nothing. Exit status: 0, or 2: there is no such cut, or an error.
    """
    from airflow_eos.ops.cuts import at, latest

    options = storage_options(storage_option)
    if batch is None:
        found = latest(checkpoint, storage_options=options)
    else:
        found = at(checkpoint, batch, storage_options=options)
    if as_json:
        tell_json(found)
        return
    view = table("output", "kind", f"up to, after batch {found.batch_id}")
    for name, each in found.positions.items():
        position = msgspec.json.encode(each.at).decode() if each.at else each.why or "no row yet"
        view.add_row(plain(name), plain(each.kind), plain(position))
    show(view)
    if found.incomplete is not None:
        typer.echo(f"A person accepted batch {found.incomplete}: rows of it may be missing.")

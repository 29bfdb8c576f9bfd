"""The table of ``airflow-eos status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table


def status_table(facts: dict[str, Any]) -> Table:
    """What a look at a checkpoint found, a line for each fact."""
    from rich.table import Table

    from airflow_eos.tables import duration, plain

    progress, owner, heart = facts["progress"], facts["pipeline"], facts["heartbeat"]
    table = Table(box=None, show_header=False, pad_edge=False)

    def row(name: str, text: str) -> None:
        table.add_row(name, plain(text))

    row("checkpoint", facts["location"])
    for each in owner["participants"] if owner else ():
        row("delivers to", f"{each['target']} as {each['name']!r}: {_address(each)}")
    if owner is None:
        row("delivers to", "unknown: never run with airflow_eos")
    committed = progress["latest_committed_batch"]
    row(
        "committed",
        "no batch yet"
        if committed is None
        else f"batch {committed}, {duration(progress['committed_ago_ms'])} ago, at "
        f"{_local(progress['committed_at_ms'])}",
    )
    flying = progress["batch_in_flight"]
    if flying is not None:
        rows = [s["rows"] for s in progress["sources"] if s["rows"] is not None]
        size = f", {sum(rows):,} rows" if rows else ""
        age = duration(progress["planned_ago_ms"])
        row("in flight", f"batch {flying}{size}, planned {age} ago")
    if facts["state"]:
        row("state", _state(facts["state"]))
    row(
        "heartbeat",
        f"{duration(facts['heartbeat_age_ms'])} ago, {heart['phase']}, {heart['application_id']}"
        if heart
        else "none",
    )
    life = facts["alive"]
    row(
        "alive",
        "not known before a second look" if life is None else "; ".join(life) or "no sign of life",
    )
    if facts["brought_back_by"]:
        row("brought back", f"{facts['brought_back_by']}; whether it still is at it, Airflow knows")
    if facts["watchdog"]:
        row("watchdog", facts["watchdog"])
    if facts["drain_requested"]:
        request = facts["drain_requested"]
        row("drain", f"asked by {request['requested_by']}: {request['reason']}")
    for text in _open(facts):
        row("open", text)
    return table


def _open(facts: dict[str, Any]) -> Iterator[str]:
    from airflow_eos.tables import duration, time_left

    for each in facts["open_work"] or ():
        left = time_left(each["time_left_ms"])
        yield (
            f"{each['key']} of {each['participant']!r}, opened {duration(each['age_ms'])} ago, "
            f"time left: {left or 'unlimited'}"
        )
    if facts["open_work"] == []:
        yield "nothing"
    if facts["not_looked_because"]:
        yield f"not looked: {facts['not_looked_because']}"


def _state(size: dict[str, Any]) -> str:
    from airflow_eos.tables import duration

    files = size["file_bytes"]
    disk = "" if files is None else f", {files / 1e6:,.1f} MB of files"
    return (
        f"{size['rows']:,} rows, {size['memory_bytes'] / 1e6:,.1f} MB in memory{disk}; batch "
        f"{size['batch_id']} took {duration(size['batch_ms'])}, its {size['tasks']} tasks together "
        f"{duration(size['update_ms'])} to update state and {duration(size['commit_ms'])} to "
        "commit it"
    )


def _address(member: dict[str, Any]) -> str:
    return ", ".join(f"{what} {value}" for what, value in sorted(member["address"].items()))


def _local(at_ms: int) -> str:
    """A moment by the reader's clock, with its zone: checkpoints are also looked at from afar."""
    import pendulum

    return pendulum.from_timestamp(at_ms / 1000, tz="local").format("YYYY-MM-DD HH:mm:ss zz")

"""``airflow-eos status``: how far a pipeline is and whether it lives, from its checkpoint alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

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
    reach_in,
    storage_options,
)
from airflow_eos.errors import EosError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.checkpoint.pipeline import Pipeline
    from airflow_eos.checkpoint.state import CheckpointState
    from airflow_eos.recovery.steps import Plan

_ON_A_DISK = {"files", "delta"}  # reached by what the checkpoint says, without a password


def status(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,  # noqa: FBT002 - a flag of the command line
) -> None:
    """Show progress, the batch in flight, the heartbeat and, where it can be reached, what is open.

    Files and Delta tables are looked at unasked; other systems need --bootstrap-servers or --reach.

    Exit status: 0 whatever the state is, 2 an error.
    """
    from airflow_eos.checkpoint.liveness import drain_requested, read_heartbeat
    from airflow_eos.checkpoint.pipeline import read_pipeline
    from airflow_eos.checkpoint.state import read_state
    from airflow_eos.checkpoint.state_size import read_state_size
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.errors import ConfigurationError
    from airflow_eos.recovery.alive import signs_of_life

    options = storage_options(storage_option)
    store = CheckpointStore.open(checkpoint, storage_options=options)
    state, heart, owner = read_state(store), read_heartbeat(store), read_pipeline(store)
    if state.query_id is None and state.latest_offsets is None and owner is None:
        raise ConfigurationError(
            f"{store.location} holds no Spark checkpoint: no metadata, no offsets/, no eos/. Give "
            "the checkpointLocation of the query."
        )
    now_ms = time.time_ns() // 1_000_000
    settings = kafka_if_given(bootstrap_servers, kafka_config)
    asked = settings is not None or reach is not None

    def look() -> Plan:
        from airflow_eos.recovery import plan_recovery

        return plan_recovery(
            checkpoint,
            settings,
            reach=reach_in(reach),
            storage_options=options,
            timeout_s=timeout,
        )

    plan, unseen = (look(), None) if asked else _unasked(look, owner)
    facts: dict[str, Any] = {
        "location": store.location,
        "pipeline": msgspec.to_builtins(owner),
        "progress": _progress(state, now_ms),
        "state": msgspec.to_builtins(read_state_size(store)),
        "heartbeat": msgspec.to_builtins(heart),
        "heartbeat_age_ms": now_ms - heart.beat_at_ms if heart else None,
        "drain_requested": msgspec.to_builtins(drain_requested(store)),
        "alive": signs_of_life(heart, state, now_ms),
        "open_work": None if plan is None else _open(plan, now_ms),
        "not_looked_because": unseen,
    }
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2))
    else:
        _show(facts)


def _unasked(look: Callable[[], Plan], owner: Pipeline | None) -> tuple[Plan | None, str | None]:
    """What is open, or why not: a disk that is not here takes nothing from what else is shown."""
    if owner is None or not all(each.kind in _ON_A_DISK for each in owner.participants):
        return None, None
    try:
        return look(), None
    except EosError as error:
        return None, str(error)


def _progress(state: CheckpointState, now_ms: int) -> dict[str, Any]:
    return {
        "query_id": state.query_id,
        "latest_batch": state.latest_offsets,
        "latest_committed_batch": state.latest_commit,
        "batch_in_flight": state.in_flight,
        "committed_at_ms": state.committed_at_ms,
        "committed_ago_ms": now_ms - state.committed_at_ms if state.committed_at_ms else None,
        "planned_ago_ms": now_ms - state.planned_at_ms if state.planned_at_ms else None,
        "sources": [
            {"index": s.index, "kind": s.kind, "rows": s.rows, "end": s.end} for s in state.sources
        ],
    }


def _open(plan: Plan, now_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "participant": each.participant,
            "key": each.key,
            "age_ms": now_ms - each.opened_at_ms,
            "time_left_ms": None if each.ends_at_ms is None else each.ends_at_ms - now_ms,
            "places": each.places,
        }
        for each in plan.listed
    ]


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table

    from airflow_eos.tables import duration, plain, show, time_left

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
    row("alive", "; ".join(facts["alive"]) or "no sign of life")
    if facts["drain_requested"]:
        request = facts["drain_requested"]
        row("drain", f"asked by {request['requested_by']}: {request['reason']}")
    for each in facts["open_work"] or ():
        left = time_left(each["time_left_ms"])
        row(
            "open",
            f"{each['key']} of {each['participant']!r}, opened {duration(each['age_ms'])} ago, "
            f"time left: {left or 'unlimited'}",
        )
    if facts["open_work"] == []:
        row("open", "nothing")
    if facts["not_looked_because"]:
        row("open", f"not looked: {facts['not_looked_because']}")
    show(table)


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

"""``airflow-eos status`` and ``ui``: show a pipeline's progress and whether it lives."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from airflow_eos.cli.options import (
    AsJson,
    BootstrapServers,
    Checkpoint,
    KafkaConfig,
    Reach,
    StorageOption,
    Timeout,
    kafka_if_given,
    reach_in,
    seconds,
    storage_options,
    tell_json,
)
from airflow_eos.errors import (
    ConfigurationError,
    EosError,
    LocalEnvironmentError,
    Remedy,
    StoreError,
)
from airflow_eos.ops.tables import WIDTH, duration, plain, show, time_left

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.liveness import LivenessProbe
    from airflow_eos.core.checkpoint.pipeline import PipelineIdentity
    from airflow_eos.core.checkpoint.progress import CheckpointState
    from airflow_eos.core.checkpoint.standby import StandbyReading
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.recovery.plan import Plan
    from airflow_eos.kafka.client.settings import KafkaSettings

Watch = Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")]
Interval = Annotated[
    float,
    seconds(
        "interval",
        positive=True,
        help="Time between two looks with --watch.",
        show_default="2 seconds",
    ),
]

_ON_A_DISK = {"files", "delta"}  # kinds that are reached without a password, by the checkpoint


def status(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = 2.0,
) -> None:
    """Show progress, the batch in flight, the heartbeat and, where it can be reached, what is open.

    Files and Delta tables are looked at unasked; other systems need --bootstrap-servers or --reach.

    Whether a driver is alive is seen by a second look: that takes one of its intervals, or three
    where it is dead. Ages are by this machine's clock, and for people.

    Exit status: 0 whatever the state is, 2 an error. A watch ends with Ctrl-C, which is no error;
    what fails while it looks again is shown, and it goes on.
    """
    options = storage_options(storage_option)
    settings = kafka_if_given(bootstrap_servers, kafka_config)

    def plan() -> Plan:
        from airflow_eos.recovery import plan_recovery

        return plan_recovery(
            checkpoint,
            settings,
            reach=reach_in(reach),
            storage_options=options,
            timeout_s=timeout,
        )

    look = partial(
        _look,
        checkpoint,
        options,
        plan,
        asked=settings is not None or reach is not None,
        held_up=partial(_held_up, settings, timeout),
    )
    if watch:
        from airflow_eos.core.checkpoint.liveness import LivenessProbe
        from airflow_eos.core.checkpoint.standby import StandbyReading

        look = partial(look, watch=(LivenessProbe(), StandbyReading()))
        watch_status(look, every_s=interval, as_json=as_json)
        return
    facts = look()
    if as_json:
        tell_json(facts)
    else:
        show(status_table(facts))


def _look(
    checkpoint: str,
    options: dict[str, str] | None,
    plan: Callable[[], Plan],
    *,
    asked: bool,
    held_up: Callable[[CheckpointStore], dict[str, Any]],
    watch: tuple[LivenessProbe, StandbyReading] | None = None,
) -> dict[str, Any]:
    """Return the checkpoint's facts of now, and open work where its systems can be reached.

    Whether anybody drives or stands by takes a second look: with a ``watch``, the next call is that
    look, and until then the answer is not known; without one this call waits for it.
    """
    from airflow_eos.core.checkpoint.heartbeat import drain_of, heard
    from airflow_eos.core.checkpoint.liveness import read_sign, signs_of_life, with_its_end
    from airflow_eos.core.checkpoint.pipeline import read_pipeline
    from airflow_eos.core.checkpoint.progress import read_state, read_state_size, require_begun
    from airflow_eos.core.checkpoint.recovery_notes import brought_back_by, why_refused
    from airflow_eos.core.checkpoint.standby import StandbyReading
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.checkpoint.watchdog_record import missed_looks

    store = CheckpointStore.open(checkpoint, storage_options=options)
    state, owner, (heart, unheard) = read_state(store), read_pipeline(store), heard(store)
    if owner is None:
        require_begun(store, state)
    life = None
    if not unheard:
        life = (
            watch[0].hold(with_its_end(store, read_sign(store)))
            if watch is not None
            else signs_of_life(store)
        )
    standbys = watch[1].look(store) if watch is not None else StandbyReading().until_known(store)
    now_ms = time.time_ns() // 1_000_000
    found, unseen = (plan(), None) if asked else _unasked(plan, owner)
    return {
        "location": store.location,
        "pipeline": msgspec.to_builtins(owner),
        "progress": _progress(state, now_ms),
        "state": msgspec.to_builtins(read_state_size(store)),
        "heartbeat": msgspec.to_builtins(heart),
        "unheard": unheard or None,
        "heartbeat_age_ms": now_ms - heart.beat_at_ms if heart else None,
        "drain_requested": msgspec.to_builtins(drain_of(store, heart)),
        "alive": life,
        "brought_back_by": None if life else brought_back_by(store, heart),
        "refused": None if life else why_refused(store, heart),
        "standbys": [
            {"standing": each.standing, "says": str(each)} | msgspec.to_builtins(each.standby)
            for each in standbys
        ],
        "watchdog": missed_looks(store),
        "open_work": None if found is None else _open(found, now_ms),
        "not_looked_because": unseen,
        **held_up(store),
    }


def _held_up(
    settings: KafkaSettings | None, timeout_s: float, store: CheckpointStore
) -> dict[str, Any]:
    """Return what holds readers of the topics up, if the cluster is given; or why nobody knows."""
    from airflow_eos.ops.supervision.progress import held_up, held_up_sentence

    if settings is None:
        return {"blocked": None, "blocked_not_known": None}
    try:
        found = held_up(settings, store, deadline_s=timeout_s)
    except EosError as error:
        return {"blocked": None, "blocked_not_known": str(error)}
    told = [
        {"says": held_up_sentence(each)} | msgspec.to_builtins(each) for each in found.partitions
    ]
    return {"blocked": told, "blocked_not_known": "; ".join(found.unnamed) or None}


def _unasked(
    look: Callable[[], Plan], owner: PipelineIdentity | None
) -> tuple[Plan | None, str | None]:
    """Return what is open, or why that is not known: a missing disk hides no other fact."""
    if owner is None:
        return None, None
    if elsewhere := {each.kind for each in owner.participants} - _ON_A_DISK:
        return None, f"{' and '.join(sorted(elsewhere))} can be asked with -b or --reach"
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


def status_table(facts: dict[str, Any]) -> Table:
    """Show the facts of a look at a checkpoint, a line for each."""
    progress, owner, heart = facts["progress"], facts["pipeline"], facts["heartbeat"]
    table = Table(box=None, show_header=False, pad_edge=False)

    def row(name: str, text: str) -> None:
        table.add_row(name, plain(text))

    row("checkpoint", facts["location"])
    for each in owner["participants"] if owner else ():
        address = ", ".join(f"{what} {value}" for what, value in sorted(each["address"].items()))
        row("delivers to", f"{each['target']} as {each['name']!r}: {address}")
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
        f"{duration(facts['heartbeat_age_ms'])} ago, {heart['phase']}, {heart['application_id']}, "
        f"process {heart['pid']} on {heart['host']}"
        if heart
        else facts["unheard"] or "none",
    )
    life = facts["alive"]
    row(
        "alive",
        ("not known" if facts["unheard"] else "not known before a second look")
        if life is None
        else "; ".join(life) or "no sign of life",
    )
    for name, text in (*_about_driver(facts), *_about_readers(facts)):
        row(name, text)
    return table


def _about_driver(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if facts["brought_back_by"]:
        by = facts["brought_back_by"]
        yield "brought back", f"{by}; look in Airflow whether it is still at work"
    for name in filter(facts.get, ("refused", "watchdog")):
        yield name, facts[name]
    for each in facts["standbys"]:
        yield "standby", each["says"]
    if facts["drain_requested"]:
        request = facts["drain_requested"]
        yield "drain", f"asked by {request['requested_by']}: {request['reason']}"


def _about_readers(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for each in facts["open_work"] or ():
        left = time_left(each["time_left_ms"]) or "unlimited"
        opened = f"opened {duration(each['age_ms'])} ago, time left: {left}"
        yield "open", f"{each['key']} of {each['participant']!r}, {opened}"
    if facts["open_work"] == []:
        flying = None if facts["alive"] else facts["progress"]["batch_in_flight"]
        ends = "" if flying is None else f"; batch {flying} ends when the app is started again"
        yield "open", f"nothing{ends}"
    if facts["not_looked_because"]:
        yield "open", f"not looked: {facts['not_looked_because']}"
    for each in facts["blocked"] or ():
        yield "blocked", each["says"]
    if facts["blocked_not_known"]:
        yield "blocked", f"not known: {facts['blocked_not_known']}"


def _state(size: dict[str, Any]) -> str:
    files = size["file_bytes"]
    disk = "" if files is None else f", {files / 1e6:,.1f} MB of files"
    return (
        f"{size['rows']:,} rows, {size['memory_bytes'] / 1e6:,.1f} MB in memory{disk}; batch "
        f"{size['batch_id']} took {duration(size['batch_ms'])}, its {size['tasks']} tasks together "
        f"{duration(size['update_ms'])} to update state and {duration(size['commit_ms'])} to "
        "commit it"
    )


def _local(at_ms: int) -> str:
    """Show a time by the reader's clock and zone: checkpoints are also looked at from afar."""
    import pendulum

    return pendulum.from_timestamp(at_ms / 1000, tz="local").format("YYYY-MM-DD HH:mm:ss zz")


Look = dict[str, Any]


def watch_status(look: Callable[[], Look], *, every_s: float, as_json: bool) -> None:
    """Show each look, or print it as one line of JSON, until Ctrl-C.

    A failed look is shown as ``{"error": …}``, to people with the one before: a store that is away
    for a moment is what one watches for.

    Raises:
        EosError: the first look failed: most likely later ones would, too.
    """
    console = Console()
    looks = _looks(look, every_s)
    try:
        if as_json:
            for found in looks:
                typer.echo(msgspec.json.encode(found))
        elif console.is_terminal:
            _on_screen(console, looks)
        else:
            paper = Console(width=WIDTH)
            for view in _views(looks):
                paper.print(view)
    except KeyboardInterrupt:
        return


def _on_screen(console: Console, looks: Iterator[Look]) -> None:
    """Show looks on the terminal's other screen, as top does; leave the last one on the first."""
    view: RenderableType = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for view in _views(looks):
                live.update(view, refresh=True)
    finally:
        console.print(view)


def _views(looks: Iterator[Look]) -> Iterator[RenderableType]:
    """Yield a view of each look; for a failed one, the view before and the error."""
    table: RenderableType = ""
    for found in looks:
        if "error" in found:
            yield Group(table, "", plain(f"no answer: {found['error']}", "red"))
        else:
            table = status_table(found)
            yield table


def _looks(look: Callable[[], Look], every_s: float) -> Iterator[Look]:
    found = look()
    while True:
        yield found | {"looked_at_ms": time.time_ns() // 1_000_000}
        time.sleep(every_s)
        try:
            found = look()
        except EosError as error:
            found = {"error": str(error)}


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

        from airflow_eos.ops.page.app import standalone
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The page needs {error.name}, which is not installed: "
            "pip install 'airflow-provider-eos[ui]'"
        ) from error
    from airflow_eos.ops.page.views import Reach as How

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
    """Refuse a location that holds no checkpoint: the page would show a new pipeline for ever.

    A store that does not answer now may answer later, and the page says so.
    """
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.checkpoint.backend import EOS

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
        listening.listen(128)  # before the address is printed: a browser may come before uvicorn
    except OSError as error:
        listening.close()
        raise LocalEnvironmentError(
            f"Port {port} cannot be listened on: {error}. Give another one: --port 0 takes any."
        ) from error
    return listening

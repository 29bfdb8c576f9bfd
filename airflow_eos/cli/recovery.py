"""``airflow-eos plan`` and ``airflow-eos recover``: look first, then end what was left open."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from airflow_eos.cli.options import (
    NEEDS_PERSON,
    SOMETHING_TO_DO,
    AsJson,
    BootstrapServers,
    Checkpoint,
    KafkaConfig,
    Prefix,
    Reach,
    StorageOption,
    Timeout,
    kafka_if_given,
    kafka_settings,
    reach_in,
    read_text,
    require_confirmed,
    seconds,
    storage_options,
    tell,
    whoever_asks,
    word,
)
from airflow_eos.core.arguments import nearest
from airflow_eos.errors import (
    CheckpointError,
    CheckpointFormatError,
    ConfigurationError,
    EosError,
    PipelineAliveError,
    RecoveryError,
    Remedy,
    printable,
)
from airflow_eos.ops.tables import show

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore, DrainRequest, Heartbeat
    from airflow_eos.core.checkpoint.liveness import LivenessProbe
    from airflow_eos.core.protocol.decision import Outcome, WorkIdentity
    from airflow_eos.core.protocol.participant import Ownership
    from airflow_eos.core.recovery.acceptance import InputRange, Shortfall
    from airflow_eos.core.recovery.plan import Action, Plan
    from airflow_eos.kafka.transactions.identity import TransactionIdentity


def plan(
    checkpoint: Checkpoint,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    prefix: Prefix = None,
    out: Annotated[Path | None, typer.Option(help="Also write the plan to this file.")] = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Say what recovery would do. Changes nothing.

    Exit status: 0 nothing to do, 3 something to do, 4 something that only a person may decide
    (ASK, ORPHAN), 2 an error.
    """
    from airflow_eos.recovery import plan_recovery

    made = plan_recovery(
        checkpoint,
        kafka_if_given(bootstrap_servers, kafka_config),
        reach=reach_in(reach),
        prefix=prefix,
        storage_options=storage_options(storage_option),
        timeout_s=timeout,
    )
    if out is not None:
        try:
            out.write_bytes(made.to_json() + b"\n")
        except OSError as error:
            raise ConfigurationError(f"--out {out} cannot be written: {error}") from error
    _show_plan(made, as_json=as_json)
    if made.needs_person:
        raise typer.Exit(NEEDS_PERSON)
    if made.steps or made.mends:
        raise typer.Exit(SOMETHING_TO_DO)


def recover(
    checkpoint: Annotated[
        str | None, typer.Argument(help="The query's checkpoint location, a path or URL.")
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    prefix: Prefix = None,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="Execute this plan, made by `airflow-eos plan --out`."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="commit, abort, orphan; repeatable. Without it: commit and abort."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Go on although the pipeline shows signs of life.")
    ] = False,
    assume: Annotated[
        str | None,
        word(
            "--assume",
            ("committed", "aborted"),
            help="Rule what became of --transaction; this cannot be changed.",
        ),
    ] = None,
    transaction: Annotated[
        str | None, typer.Option(help="Transactional id, or the key that the plan shows.")
    ] = None,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """End what a dead pipeline left open: commit what was promised, abort the rest.

    Running it twice, or in two places at once, does no more than once. Exit status: 0 done or
    nothing to do, 4 steps were left to a person or not allowed, 2 an error or a refusal.
    """
    from airflow_eos.ops.plan_tables import awaits_a_start, report_view
    from airflow_eos.recovery import Plan, execute_recovery, plan_recovery

    settings = kafka_if_given(bootstrap_servers, kafka_config)
    options = storage_options(storage_option)
    how: dict[str, Any] = {
        "reach": reach_in(reach),
        "storage_options": options,
        "timeout_s": timeout,
    }
    allowed = _allowed(allow)
    if (checkpoint is None) == (plan_file is None):
        raise ConfigurationError("Give either a checkpoint location or --plan FILE.")
    is_ruled = assume is not None or transaction is not None
    if dry_run and is_ruled:
        raise ConfigurationError(
            "--dry-run changes nothing, and a ruling (--transaction, --assume) stands for ever. "
            "Nothing was recorded: give one of the two."
        )
    location = checkpoint or ""
    if plan_file is not None:
        given = Plan.from_json(read_text("--plan", plan_file))
        location = given.location
    if plan_file is None or is_ruled:  # what a plan of another day asks about may be told by now
        given = plan_recovery(location, settings, prefix=prefix, **how)
    if is_ruled:
        _rule(given, assume, transaction, options)
        given = plan_recovery(location, settings, prefix=prefix, **how)
    if dry_run:
        _show_plan(given, as_json=as_json)
        return
    report = execute_recovery(given, settings, allow=allowed, force=force, **how)
    if as_json:
        typer.echo(report.to_json())
    else:
        show(report_view(report))
        for said in awaits_a_start(given) if report.complete else ():
            show(said)
    if not report.complete:
        raise typer.Exit(NEEDS_PERSON)


def _allowed(names: list[str] | None) -> Collection[Action]:
    from airflow_eos.core.recovery.execute import ALLOWED_BY_DEFAULT
    from airflow_eos.core.recovery.plan import Action

    possible = {action.value: action for action in (Action.COMMIT, Action.ABORT, Action.ORPHAN)}
    wanted = [name.strip().lower() for entry in names or () for name in entry.split(",")]
    unknown = sorted(set(wanted) - possible.keys())
    if unknown:
        near = nearest(unknown[0], possible)
        guess = f" Did you mean {near!r}?" if near else ""
        raise ConfigurationError(
            f"--allow {unknown[0]}: expected {', '.join(possible)}.{guess} What a plan ASKs is "
            "ruled with --transaction and --assume; a REPLAY is the app's."
        )
    return frozenset(possible[name] for name in wanted) if wanted else ALLOWED_BY_DEFAULT


def _rule(
    plan: Plan, assume: str | None, transaction: str | None, options: dict[str, str] | None
) -> None:
    from airflow_eos.core.checkpoint.rulings import proven, resolve
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Outcome

    if transaction is None or assume is None:
        raise ConfigurationError(
            "A ruling needs both: --transaction ID and --assume committed|aborted."
        )
    store = CheckpointStore.open(plan.location, storage_options=options)
    resolve(store, _asked(plan, transaction, proven(store)), Outcome(assume))


def _asked(plan: Plan, wanted: str, proven: Mapping[WorkIdentity, Outcome]) -> WorkIdentity:
    """Find the work that the plan ASKs about: nothing else may be ruled by hand."""
    from airflow_eos.core.recovery.plan import Action

    asked = [step.work for step in plan.steps if step.action is Action.ASK and step.work]
    # A Kafka key is the transactional id, the producer id and the epoch.
    name = re.compile(rf"{re.escape(wanted)}(-[0-9]+-[0-9]+)?", re.ASCII)
    found = [each for each in asked if name.fullmatch(each.key)]
    proof = next((proven[each] for each in proven if name.fullmatch(each.key)), None)
    if not found and proof is not None:
        raise ConfigurationError(
            f"--transaction {wanted} needs no ruling: {proof.value!r} is proven, by a later COMMIT "
            "decision of its batch, which named again just what was missing. Nothing was recorded.",
            Remedy(start=True),
        )
    if len(found) != 1:
        names = ", ".join(each.key for each in asked)
        raise ConfigurationError(
            f"--transaction {wanted} fits {len(found)} of the pieces of work that need a ruling "
            f"({names or 'none do: every outcome is told'}). Expected exactly one."
        )
    return found[0]


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from airflow_eos.ops.plan_tables import plan_view

    if as_json:
        typer.echo(plan.to_json())
    else:
        show(plan_view(plan))


def accept(
    checkpoint: Checkpoint,
    batch: Annotated[
        int | None, typer.Option(min=0, help="The batch in flight, as `status` shows it.")
    ] = None,
    skip_input: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC:PARTITION:FIRST-LAST",
            help="Instead of --batch: offsets of the input that ArrowKafkaSource leaves out.",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    reach: Reach = None,
    give_up_open: Annotated[
        bool,
        typer.Option(
            "--give-up-open",
            help="Also give up what could still be committed, if its system refuses it forever.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask: the rows shown are given up.")
    ] = False,
    storage_option: StorageOption = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Give up what cannot be delivered of a promised batch; this cannot be undone.

    For a batch that cannot be replayed, because its input is gone in part or the query now gives
    other rows. Nothing is written now. The next start settles what it can, delivers what is left of
    the input where fewer rows come back than were promised (of those, what no reader has), goes on,
    and logs how many rows are given up.

    With --skip-input: for offsets of the input that nobody can read, in a batch in flight that was
    not promised, or is accepted. ArrowKafkaSource never reads them, also in a replay. Stop the app
    first.
    Exit status: 0 accepted, 1 not confirmed, 2 an error or a refusal.
    """
    from airflow_eos.core.checkpoint import CheckpointStore, rulings
    from airflow_eos.core.recovery.execute import participant_of
    from airflow_eos.recovery import gather, shortfall

    if (batch is None) == (skip_input is None):
        raise ConfigurationError("Give either --batch or --skip-input.")
    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    if batch is None:
        _step_over(store, skip_input or "", yes=yes, as_json=as_json)
        return
    settings = kafka_if_given(bootstrap_servers, kafka_config)
    with closing(
        participant_of(store, settings, reach=reach_in(reach), timeout_s=timeout)
    ) as participant:
        found = shortfall(gather(store, participant), batch, open_too=give_up_open)
        _show(found)
        if not yes:
            require_confirmed(f"Give up at most {found.rows} rows, for good?", as_json=as_json)
            # A recovery or a driver may have gone on while the person was asked.
            now = shortfall(gather(store, participant), batch, open_too=give_up_open)
            if (now.rows, now.works) != (found.rows, found.works):
                raise RecoveryError(
                    f"While you were asked, batch {batch} went on: {found.rows} rows were "
                    f"missing, now {now.rows}. Nothing was given up: stop the app, and look again."
                )
    by = whoever_asks()
    ruling = rulings.accept(
        store, batch, found.promise, missing=found.missing, ruled_by=by, given_up=found.given_up
    )
    tell(
        ruling,
        f"Batch {batch} goes on as it is: at most {found.rows} rows are given up, and what the "
        "input still has of them is delivered. Start the app again.",
        as_json=as_json,
    )


def _step_over(store: CheckpointStore, text: str, *, yes: bool, as_json: bool) -> None:
    from airflow_eos.core.checkpoint import rulings
    from airflow_eos.core.recovery.acceptance import InputRange

    wanted = InputRange.of_text(text)
    found = _skippable(store, wanted)
    if not yes:
        asked = f"Give up {found}, at most {found.records} records, for good?"
        require_confirmed(asked, as_json=as_json)
        found = _skippable(store, found)  # a driver may have gone on meanwhile
    ruling = rulings.skip_input(
        store,
        found.topic,
        found.partition,
        found.first,
        found.last,
        ruled_by=whoever_asks(),
    )
    tell(
        ruling,
        f"{found} is given up: at most {found.records} records, which ArrowKafkaSource steps "
        "over from the next start on. Start the app again.",
        as_json=as_json,
    )


def _skippable(store: CheckpointStore, wanted: InputRange) -> InputRange:
    """Return what of the range can be stepped over; refuse while a driver could promise its rows.

    Refuse also a location without a pipeline: that no batch is in flight there says nothing.
    """
    from airflow_eos.core.checkpoint import DecisionLog, read_state
    from airflow_eos.core.checkpoint.liveness import signs_of_life
    from airflow_eos.core.checkpoint.rulings import read_acceptance
    from airflow_eos.core.protocol.promise import Promise
    from airflow_eos.core.recovery.acceptance import skippable
    from airflow_eos.core.recovery.execute import require_pipeline

    require_pipeline(store)
    signs = signs_of_life(store)
    if signs:
        again = f"airflow-eos accept CHECKPOINT --skip-input {wanted} --yes"
        raise PipelineAliveError(
            f"The pipeline of {store.location} seems to be alive ({'; '.join(signs)}): it could "
            f"promise rows of {wanted} meanwhile. Nothing is given up.",
            Remedy(
                change="stop the app",
                commands=(again,),
                start=True,
                costs=f"at most {wanted.records} records of the input, for good",
            ).at(store.location),
        )
    state = read_state(store)
    batch = state.in_flight
    promise = None if batch is None else Promise.of(DecisionLog(store).of_batch(batch))
    if promise is not None and read_acceptance(store, promise.batch_id, promise.nonce) is not None:
        promise = None  # an accepted batch delivers what its input still gives
    return skippable(store.location, state, promise, wanted)


def _show(found: Shortfall) -> None:
    """Print the shortfall on standard error, as the question is: before anything is recorded."""
    summary = (
        f"Batch {found.batch_id}: {found.promised} rows were promised, readers have "
        f"{found.delivered} of them, {found.rows} are missing."
    )
    lines = [summary]
    if found.untold:
        lines.append(
            f"Of {found.untold} of these nobody can tell whether readers have them "
            "(airflow-eos recover --assume rules about each)."
        )
    for each, outcome in found.works:
        detail = msgspec.json.encode(each.work.detail).decode()
        lines.append(f"  {outcome.value:9} {each.work.rows:9} rows  {each.identity}  {detail}")
    typer.echo("\n".join(map(printable, lines)), err=True)


def disown(
    prefix: Annotated[str, typer.Argument(help="The transactional id prefix.")],
    bootstrap_servers: BootstrapServers = None,
    kafka_config: KafkaConfig = None,
    moved: Annotated[
        bool,
        typer.Option(
            "--moved", help="Its checkpoint was moved: only the place is forgotten, no batch is."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on although the owner shows signs of life.")
    ] = False,
    storage_option: StorageOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget which checkpoint owns PREFIX and how far it has delivered; the next start owns it.

    Only for a checkpoint that was moved (--moved), or is lost and not to be replaced by an older
    copy: what was delivered under the prefix is delivered again where the new owner reads the same
    input. Open transactions that no timer ends are aborted, but those that the checkpoint, if it
    can be read, has promised. Stop the pipeline first. Exit status: 0 forgotten or nothing known, 1
    not confirmed, 2 an error, or the owner is alive.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.transactions.coordinator import end_transactions
    from airflow_eos.kafka.transactions.listing import untimed
    from airflow_eos.kafka.transactions.ownership import PrefixLedger

    settings = kafka_settings(bootstrap_servers, kafka_config)
    with closing(PrefixLedger(settings, prefix=prefix)) as ledger, ConnectionPool(settings) as wire:
        found = ledger.read()
        untold = _require_silent(found, storage_options(storage_option), moved, force)
        if untold and not as_json:
            typer.echo(printable(untold))
        kept = _promised(found, storage_options(storage_option))
        opened = [] if moved else [each.identity for each in untimed(wire, prefix)]
        left = [each for each in opened if each not in kept]
        if (found.keys or left) and not yes:
            typer.echo(printable(f"Prefix {prefix!r} belongs to {_whose(found)}"), err=True)
            for each in left:
                typer.echo(printable(f"Open, and no timer ends it: {each}"), err=True)
            ask = f"Forget this, and abort {len(left)} transactions?" if left else "Forget this?"
            require_confirmed(ask, as_json=as_json)
            # A driver may have come, or delivered, while the person was asked.
            now = ledger.read()
            _require_silent(now, storage_options(storage_option), moved, force)
            _require_as_shown(found, now, force=force)
        records = ledger.forget(moved=moved)
        end_transactions(wire, left, commit=False)
    newest = found.newest()
    facts = {"owner": found.owner, "newest": newest, "records": records, "not_known": untold}
    said = (
        f"Prefix {prefix!r} is free: {records} records forgotten."
        if records
        else f"Nobody owns prefix {prefix!r} on this cluster."
    )
    ended = f" {len(left)} transactions that no timer ends were aborted." if left else ""
    stay = len(opened) - len(left)
    if stay and found.owner is not None:
        where = printable(found.owner.location)
        ended += f" {stay} stay open, as promised: start the app of {where}, or recover it."
    tell(facts | {"aborted": len(left), "promised": stay}, said + ended, as_json=as_json)


def _promised(found: Ownership, options: dict[str, str] | None) -> set[TransactionIdentity]:
    """Return what the owner's checkpoint, where it can be read, still promises."""
    from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
    from airflow_eos.core.checkpoint.snapshot import newest_promises
    from airflow_eos.kafka.transactions.identity import KIND, transaction_of

    if found.owner is None:
        return set()
    try:
        store = CheckpointStore.open(found.owner.location, storage_options=options)
        promises = newest_promises(store, DecisionLog(store))
    except EosError:
        return set()
    works = (work for each in promises for work in each.works if work.kind == KIND)
    return {transaction_of(work.identity) for work in works}


def _whose(found: Ownership) -> str:
    if found.owner is None:
        return f"nobody; {len(found.keys)} records speak of it."
    newest = found.newest()
    delivered = (
        "no batch was delivered yet."
        if newest is None
        else f"batch {newest.batch} was delivered last."
    )
    return f"{found.owner}; {delivered}"


def _require_as_shown(found: Ownership, now: Ownership, *, force: bool) -> None:
    """Refuse another owner than the person was shown, and one that has delivered meanwhile."""
    if now.owner != found.owner or (now.newest() != found.newest() and not force):
        raise PipelineAliveError(
            f"While you were asked, the {now.called} went on: it belongs to {_whose(now)} Nothing "
            "was forgotten.",
            Remedy(change="stop the app, and run the command again"),
        )


def _require_silent(
    found: Ownership,
    options: dict[str, str] | None,
    moved: bool,
    force: bool,
) -> str:
    """Refuse an owner that shows signs of life; return what could not be known of the owner."""
    from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat
    from airflow_eos.core.checkpoint.liveness import signs_of_life

    if found.owner is None:
        return ""
    location, forget = found.owner.location, found.move if moved else found.give_up
    asked = f"Whether a driver still runs on {location} is not known: "
    try:
        store = CheckpointStore.open(location, storage_options=options)
        signs, heartbeat = signs_of_life(store), read_heartbeat(store)
    except EosError as error:
        return f"{asked}{error} Make sure that it is stopped."
    if signs and not force:
        raise PipelineAliveError(
            f"The owner of the {found.called} seems to be alive: {'; '.join(signs)}. It would go "
            "on delivering beside the next owner. Nothing was forgotten.",
            Remedy(("airflow-eos drain CHECKPOINT", *forget.commands), start=True).at(location),
        )
    if heartbeat is None:
        return f"{asked}no heartbeat is there, as seen from here. Make sure that it is stopped."
    return ""


_LOOK_S = 0.5
T = TypeVar("T")
Reason = Annotated[str, typer.Option(help="Shown with the request.")]


def drain(
    checkpoint: Checkpoint,
    reason: Reason = "asked by hand",
    wait: Annotated[
        float,
        seconds(
            "wait", help="How long to wait until the driver has stopped.", show_default="2 minutes"
        ),
    ] = 120.0,
    storage_option: StorageOption = None,
    as_json: AsJson = False,
) -> None:
    """Let the running batch end, then stop the app; works on every cluster manager.

    Exit status: 0 the driver stopped, 1 not within --wait, or it failed, died or gave way to
    another, 2 an error.
    """
    from airflow_eos.core.checkpoint import CheckpointStore, drain_newest, newest_term
    from airflow_eos.core.checkpoint.drain import is_asked_for_nothing
    from airflow_eos.core.checkpoint.heartbeat import ENDED, heard
    from airflow_eos.core.checkpoint.liveness import LivenessProbe

    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    if newest_term(store) == 0 and heard(store) == (None, ""):
        raise ConfigurationError(
            f"No driver has ever beaten in {store.location}/eos: there is nothing to drain. Give "
            "the checkpointLocation of the query."
        )
    request = drain_newest(store, requested_by=whoever_asks(), reason=reason)
    watch = LivenessProbe()

    def look() -> tuple[str, bool] | None:
        beat, dead = _driver(store, request), None
        if beat is None or beat.phase not in ENDED:
            # Who takes a hand-over back in the same moment may delete this request for that.
            if request.term is not None and is_asked_for_nothing(store, request.term):
                drain_newest(store, requested_by=whoever_asks(), reason=reason)
            if not (dead := _why_dead(store, watch)):
                return None
            beat = _driver(store, request)  # its last word is more than that it is gone
        return _said(beat, dead)

    late = f"Asked to drain; the driver has not stopped within {wait:g} s"
    then = "the driver stops once its batch has ended"
    said, stopped = _until_told(look, wait, (late, False), then)
    answer = {"request": request, "stopped": stopped}
    tell(answer, f"{said}: {store.location}", as_json=as_json)
    raise typer.Exit(0 if stopped else 1)


def handover(
    checkpoint: Checkpoint,
    reason: Reason = "asked by hand",
    wait: Annotated[
        float,
        seconds(
            "wait",
            help="How long to wait until the driver that stands by has taken over.",
            show_default="2 minutes",
        ),
    ] = 120.0,
    storage_option: StorageOption = None,
    as_json: AsJson = False,
) -> None:
    """Stop the driver, once one that stands by is ready, and let that one take over.

    Exit status: 0 it has taken over, 1 not within --wait, or the driver goes on as none is ready,
    2 an error, as where none stands by.
    """
    from airflow_eos.core.checkpoint import CheckpointStore, newest_term
    from airflow_eos.core.checkpoint.drain import is_asked_for_nothing
    from airflow_eos.core.checkpoint.heartbeat import heard
    from airflow_eos.core.checkpoint.liveness import LivenessProbe
    from airflow_eos.core.checkpoint.standby import StandbyReading, hand_over

    store = CheckpointStore.open(checkpoint, storage_options=storage_options(storage_option))
    request = hand_over(store, requested_by=whoever_asks(), reason=reason)
    term, watch, reading = request.term or 0, LivenessProbe(), StandbyReading()

    def look() -> tuple[str, int | None] | None:
        if (newest := _term(heard(store)[0])) > term:
            return "Handed over", newest
        if is_asked_for_nothing(store, term):
            seen = "; ".join(map(str, StandbyReading().until_known(store))) or "nobody stands by"
            return f"Not handed over, the driver goes on: {seen}", None
        found = reading.look(store)
        dead = _why_dead(store, watch)
        if dead and all(each.has_left for each in found) and newest_term(store) == term:
            seen = "; ".join(map(str, found)) or "nobody stands by"
            ended = f"Not handed over, and no driver runs ({dead})"
            return f"{ended}: {seen}. Start the app again", None
        return None

    late = f"Asked; no other driver has taken over within {wait:g} s"
    then = "the driver hands over once one that stands by is ready"
    said, driven = _until_told(look, wait, (late, None), then)
    tell({"request": request, "term": driven}, f"{said}: {store.location}", as_json=as_json)
    raise typer.Exit(1 if driven is None else 0)


def _until_told(
    look: Callable[[], tuple[str, T] | None], wait: float, late: tuple[str, T], then: str
) -> tuple[str, T]:
    """Look until there is an answer; return it, or ``late`` and why the last look told nothing.

    A look that fails says nothing of the driver: it hears the request all the same, and ``then``
    is what it does. So it is where Ctrl-C ends the wait.
    """
    deadline = time.monotonic() + wait
    try:
        while True:
            why = ""
            try:
                if (found := look()) is not None:
                    return found
            except CheckpointError as error:
                why = f", as far as can be seen ({error}). The request stands: look again with "
                why += "`airflow-eos status CHECKPOINT`"
            if time.monotonic() >= deadline:
                return late[0] + why, late[1]
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        typer.echo(f"airflow-eos: No longer waiting. The request stands: {then}.", err=True)
        raise


def _term(heartbeat: Heartbeat | None) -> int:
    return 0 if heartbeat is None else heartbeat.term or 0


def _driver(store: CheckpointStore, request: DrainRequest) -> Heartbeat | None:
    """Return the asked driver's heartbeat; that of a former driver, which has stopped, is None."""
    from airflow_eos.core.checkpoint.heartbeat import heard

    heartbeat, _ = heard(store)
    return None if heartbeat is None or _term(heartbeat) < (request.term or 0) else heartbeat


def _why_dead(store: CheckpointStore, watch: LivenessProbe) -> str | None:
    """Return how it was seen that no driver lives; None: one does, or that is not known."""
    from airflow_eos.core.checkpoint.heartbeat import heard
    from airflow_eos.core.checkpoint.liveness import last_word, read_sign, with_its_end

    try:
        sign = with_its_end(store, read_sign(store))
    except CheckpointFormatError:  # what is foreign in Spark's log hides no end of a process
        if gone := last_word(store, heard(store)[0])[1]:
            return gone
        raise
    if watch.hold(sign) != ():
        return None
    if sign.is_over:
        return "it has ended"
    return sign.gone or f"nothing of it has changed for {sign.silent_after_s:g} s"


def _said(beat: Heartbeat | None, dead: str | None) -> tuple[str, bool]:
    """Say how the drain ended, and whether the pipeline is down."""
    from airflow_eos.core.checkpoint.drain import NOT_FOR_GOOD
    from airflow_eos.core.checkpoint.heartbeat import ENDED

    if beat is not None and beat.phase == "stopped" and beat.drained_by not in NOT_FOR_GOOD:
        return "Drained", True
    if beat is not None and beat.phase in ENDED:
        how = "failed" if beat.phase == "failed" else "stopped for another one to go on"
    else:
        how = f"died ({dead}; `airflow-eos plan CHECKPOINT` shows what it left open)"
    found = f"Asked to drain; but the driver has {how}, and its task may be about to start it again"
    return f"{found}. Mark the task as failed to be sure that it does not", False

"""The actions of the page's buttons, once a press has been checked, and the buttons themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow.exceptions import DagRunAlreadyExists
from airflow.providers.common.compat.sdk import AirflowException
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from airflow_eos.core.checkpoint import drain_newest, read_heartbeat
from airflow_eos.core.checkpoint.drain import NOT_FOR_GOOD
from airflow_eos.core.checkpoint.recovery_notes import driver_of, next_start, resumption_of
from airflow_eos.errors import ConfigurationError, Remedy
from airflow_eos.ops.page.views import ButtonView, PipelineEntry, PipelineRow
from airflow_eos.plugins.internals import (
    DagRun,
    DagRunTriggeredByType,
    Log,
    create_session,
    trigger_dag,
)

STARTS = 20
"""Limit of runs in the place of one driver, each after the run before it has failed; as in
``eos_recovery``."""
_UNDER_WAY = ("queued", "running")


def act(name: str, listed: PipelineEntry, user: str, nonce: str) -> str:
    """Do what a button says, once for a nonce however often it is pressed.

    Args:
        name: ``drain``, ``recover`` or ``resume``.

    Returns:
        What was done, in a sentence.
    """
    log(f"eos {name}", listed, user)
    if name == "drain":
        return drain(listed, user)
    return recover(listed, user, nonce) if name == "recover" else resume(listed, user)


def drain(listed: PipelineEntry, user: str) -> str:
    """Ask the driver to stop, as ``airflow-eos drain`` does."""
    request = drain_newest(
        listed.open(), requested_by=f"page {user}", reason="asked on the pipelines page"
    )
    return f"Asked to drain by {request.requested_by}. The driver stops after its running batch."


def recover(listed: PipelineEntry, user: str, nonce: str) -> str:
    """Start the recovery DAG, unless it runs: a second run would find nothing to do."""
    dag_id = listed.recovery_dag_id or ""
    with create_session() as session:
        found = session.scalars(
            select(DagRun.run_id).where(DagRun.dag_id == dag_id, DagRun.state.in_(_UNDER_WAY))
        ).first()
    if found is not None:
        return f"{dag_id} is at work already: run {found}."
    return _triggered(dag_id, f"eos_page__{nonce}", user)


def resume(listed: PipelineEntry, user: str) -> str:
    """Start the pipeline's DAG in the place of the last driver, with eos_recovery's run id.

    So the page, a recovery and the watchdog replace one driver once: the run with that id exists or
    it does not.
    """
    dag_id, store = listed.dag_id or "", listed.open()
    heartbeat = read_heartbeat(store)
    names = [f"resume__{driver_of(heartbeat)}__{n}" for n in range(STARTS)]
    with create_session() as session:
        found = session.execute(
            select(DagRun.run_id, DagRun.state).where(
                DagRun.dag_id == dag_id, DagRun.run_id.in_(names)
            )
        ).all()
    failed = {run_id: state == "failed" for run_id, state in found}
    number = next_start(
        resumption_of(store, heartbeat), lambda n: failed.get(names[n]), limit=STARTS
    )
    if number is None:
        return (
            f"Nothing was started: {STARTS} runs in the place of this driver have failed. Look "
            f"into the log of the last, {names[-1]}; then clear that run, or trigger {dag_id} "
            "by hand."
        )
    # A person wants the pipeline to run, even if one has drained it: see factory.watchdog.
    return _triggered(dag_id, names[number], user, {"eos_asked_by": user})


def log(event: str, listed: PipelineEntry, user: str) -> None:
    """Write to Airflow's audit log, where other actions on the DAG are."""
    with create_session() as session:
        session.add(
            Log(
                event=event,
                owner=user,
                owner_display_name=user,
                dag_id=listed.dag_id,
                extra=json.dumps({"checkpoint_location": listed.location}),
            )
        )


def _triggered(dag_id: str, run_id: str, user: str, conf: dict[str, str] | None = None) -> str:
    try:
        trigger_dag(
            dag_id,
            run_id=run_id,
            conf=conf or {},
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=user,
        )
    except (DagRunAlreadyExists, IntegrityError):
        # The database allows one run of an id, also where two are asked for at the same moment.
        with create_session() as session:
            state = session.scalar(
                select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            )
        if state is None:
            raise  # another error than a second run
        return f"{dag_id} was started before: run {run_id} is {state}."
    except (AirflowException, ValueError) as error:  # parameter without default, or wrong run type
        raise ConfigurationError(
            f"Airflow does not start {dag_id} so: {error}. Nothing was started.",
            Remedy(change=f"trigger {dag_id} by hand, where Airflow asks for what it lacks"),
        ) from error
    return f"Started {dag_id}: run {run_id}."


# --- buttons --------------------------------------------------------------------------------------
# *Drain* writes the request that ``airflow-eos drain`` writes, and nothing else. *Recover* and
# *resume* start DAGs: a worker has the connections, the time and the log for the work, its run is
# seen, retried and alerted on like any other, and the API server can be restarted meanwhile.


ALIVE = frozenset({"running", "idle", "stalled", "draining"})
NAMES = ("drain", "recover", "resume")
_UNTOLD = "Whether a driver is alive shows at a second look: try again in a moment."


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a user may do: edit the pipeline's DAG, start the pipeline's and the recovery DAG.

    ``paused`` says of each of the two DAGs that exists whether it is paused.
    """

    edit: bool
    run: frozenset[str]
    paused: Mapping[str, bool]


def buttons(
    listed: PipelineEntry, row: PipelineRow, allowed: Allowed, token: Callable[[str], str]
) -> tuple[ButtonView, ...]:
    """Return the three buttons, each with a token, or with why it may not be pressed now."""
    return tuple(
        ButtonView(
            name=name,
            label=name.capitalize(),
            says=says,
            token=None if not_now else token(name),
            not_now=not_now,
        )
        for name, says, not_now in (
            ("drain", _drain_says(row), _no_drain(listed, row, allowed)),
            ("recover", _recover_says(listed, row), _no_recover(listed, row, allowed)),
            ("resume", _resume_says(listed, row), _no_resume(listed, row, allowed)),
        )
    )


def asked_of(action: str, row: PipelineRow) -> str:
    """Name what a token confirms: an action; a drain only of the driver that was shown."""
    heart = row.heartbeat
    return action if action != "drain" or heart is None else f"{action} {heart.application_id}"


def _drain_says(row: PipelineRow) -> tuple[str, ...]:
    what = "the running batch" if row.in_flight is None else f"batch {row.in_flight}"
    return (
        (
            f"A request is written to the checkpoint (eos/drain.json). The driver ends {what}, "
            "commits it and stops; no row is lost."
        ),
        (
            "Nothing is delivered until somebody resumes the pipeline. The watchdog leaves a "
            "drained one alone."
        ),
        "It cannot be taken back: the next start removes the request.",
    )


def _no_drain(listed: PipelineEntry, row: PipelineRow, allowed: Allowed) -> str:
    if not allowed.edit:
        return _may_not("edit", listed.dag_id)
    if row.state == "draining" and not (row.drain and row.drain.requested_by in NOT_FOR_GOOD):
        return "It is draining already."
    if row.state == "looking":
        return _UNTOLD
    return "" if row.state in ALIVE else f"No driver is alive: the pipeline is {row.state}."


def _recover_says(listed: PipelineEntry, row: PipelineRow) -> tuple[str, ...]:
    promised = row.promised
    owed = (
        f"{promised.works} pieces of work with {promised.rows:,} rows that were promised are "
        "committed where they are still open; readers see them then."
        if promised is not None
        else "What was promised is committed where it is still open; readers see it then."
    )
    return (
        (
            f"A run of the DAG {listed.recovery_dag_id} starts. It makes the plan anew and carries "
            "it out; the one on this page is only what it would be now."
        ),
        owed,
        (
            "What was never promised is aborted. What only a person may decide is left alone, and "
            "the run fails with it."
        ),
        "The example DAG then audits the output and resumes the pipeline.",
    )


def _no_recover(listed: PipelineEntry, row: PipelineRow, allowed: Allowed) -> str:
    dag_id = listed.recovery_dag_id
    if dag_id is None:
        return (
            f"No DAG of the bundle and owner of {listed.dag_id} recovers this checkpoint: none has "
            "a RecoverTransactionsOperator for it. The setting [airflow_eos] pipelines can name "
            "one."
        )
    alive = "Its driver lives: a recovery would refuse. Drain it first."
    untold = _UNTOLD if row.state == "looking" else ""
    return _no_run(dag_id, allowed) or untold or (alive if row.state in ALIVE else "")


def _resume_says(listed: PipelineEntry, row: PipelineRow) -> tuple[str, ...]:
    rest = (
        "It first recovers what is open, then goes on after batch "
        f"{'none' if row.batch is None else row.batch}; promised rows that were lost are replayed."
    )
    return (
        (
            f"A run of the DAG {listed.dag_id} starts, in the place of the last driver: once, "
            "however many people press the button, and whatever the watchdog does meanwhile."
        ),
        rest,
    )


def _no_resume(listed: PipelineEntry, row: PipelineRow, allowed: Allowed) -> str:
    dag_id = listed.dag_id or ""
    alive = "It is running." if row.state in ALIVE else ""
    unknown = "Whether a driver is alive cannot be told." if row.state == "unreadable" else ""
    unknown = _UNTOLD if row.state == "looking" else unknown
    return _no_run(dag_id, allowed) or alive or unknown


def _no_run(dag_id: str, allowed: Allowed) -> str:
    if dag_id not in allowed.run:
        return _may_not("edit and trigger", dag_id)
    if dag_id not in allowed.paused:
        return f"There is no DAG {dag_id} any more."
    if allowed.paused[dag_id]:
        return f"The DAG {dag_id} is paused: its run would wait forever. Unpause it first."
    return ""


def _may_not(what: str, dag_id: str | None) -> str:
    return f"You need the permission to {what} the DAG {dag_id}."

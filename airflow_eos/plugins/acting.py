"""What a button does, once everything about it has been checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagRunAlreadyExists
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from airflow_eos.checkpoint import drain_newest, read_heartbeat
from airflow_eos.checkpoint.heartbeat import driver_of, next_start, resumption_of

if TYPE_CHECKING:
    from airflow_eos.page.listed import Listed

STARTS = 20
"""As ``eos_recovery`` has it: so many runs in the place of one driver, each after the one before
has failed."""
_UNDER_WAY = ("queued", "running")


def act(name: str, listed: Listed, user: str, nonce: str) -> str:
    """Do it; asked again with the same nonce, it is done once.

    Args:
        name: ``drain``, ``recover`` or ``resume``.
        listed: the pipeline.
        user: who asks, for those who read about it.
        nonce: of this confirmation.

    Returns:
        What was done, in a sentence.
    """
    log(f"eos {name}", listed, user)
    if name == "drain":
        return drain(listed, user)
    return recover(listed, user, nonce) if name == "recover" else resume(listed, user)


def drain(listed: Listed, user: str) -> str:
    """Ask the driver to stop, as ``airflow-eos drain`` does."""
    request = drain_newest(
        listed.open(), requested_by=f"page {user}", reason="asked on the pipelines page"
    )
    return f"Asked to drain by {request.requested_by}. The driver stops after its running batch."


def recover(listed: Listed, user: str, nonce: str) -> str:
    """Start the DAG that recovers, unless it runs: a second run would find nothing to do."""
    dag_id = listed.recovery_dag_id or ""
    with create_session() as session:
        found = session.scalars(
            select(DagRun.run_id).where(DagRun.dag_id == dag_id, DagRun.state.in_(_UNDER_WAY))
        ).first()
    if found is not None:
        return f"{dag_id} is at work already: run {found}."
    return _triggered(dag_id, f"eos_page__{nonce}", user)


def resume(listed: Listed, user: str) -> str:
    """Start the DAG in the place of the last driver, under the name that eos_recovery would use.

    So the page, a recovery and the watchdog replace one driver once: the run of that name exists or
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
    # A person wants it to run, also where one has drained it: see factory.replacing.
    return _triggered(dag_id, names[number], user, {"eos_asked_by": user})


def log(event: str, listed: Listed, user: str) -> None:
    """Into Airflow's audit log, where other actions on the DAG are."""
    extra: dict[str, Any] = {"checkpoint_location": listed.location}
    with create_session() as session:
        session.add(
            Log(
                event=event,
                owner=user,
                owner_display_name=user,
                dag_id=listed.dag_id,
                extra=json.dumps(extra),
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
        # The database lets one run of a name be: also where two were asked for at the same moment.
        with create_session() as session:
            state = session.scalar(
                select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            )
        if state is None:
            raise  # it was something else
        return f"{dag_id} was started before: run {run_id} is {state}."
    return f"Started {dag_id}: run {run_id}."

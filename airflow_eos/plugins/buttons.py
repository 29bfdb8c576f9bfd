"""What each button would do, said before it is pressed; pure.

*Drain* writes the request that ``airflow-eos drain`` writes, and nothing else. *Recover* and
*resume* start the DAGs that do it: a worker has the connections, the time and the log for it, its
run is seen, retried and alerted on like any other, and the API server can be restarted meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.page.views import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_eos.page.listed import Listed
    from airflow_eos.page.views import Row

ALIVE = frozenset({"running", "idle", "stalled", "draining"})
NAMES = ("drain", "recover", "resume")
_UNTOLD = "Whether a driver is alive shows at a second look: try again in a moment."


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a user may do: edit the pipeline's DAG, start the two DAGs.

    ``paused`` says it of those DAGs that there are.
    """

    edit: bool
    run: frozenset[str]
    paused: Mapping[str, bool]


def buttons(
    listed: Listed, row: Row, allowed: Allowed, token: Callable[[str], str]
) -> tuple[Action, ...]:
    """The three buttons, each with a token where it may be pressed now, else with why not."""
    made = []
    for name, says, not_now in (
        ("drain", _drain_says(row), _no_drain(listed, row, allowed)),
        ("recover", _recover_says(listed, row), _no_recover(listed, row, allowed)),
        ("resume", _resume_says(listed, row), _no_resume(listed, row, allowed)),
    ):
        made.append(
            Action(
                name=name,
                label=name.capitalize(),
                says=says,
                token=None if not_now else token(name),
                not_now=not_now,
            )
        )
    return tuple(made)


def asked_of(action: str, row: Row) -> str:
    """What a confirmation is of: a drain is of the driver that was shown, and of no later one."""
    heart = row.heartbeat
    return action if action != "drain" or heart is None else f"{action} {heart.application_id}"


def _drain_says(row: Row) -> tuple[str, ...]:
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


def _no_drain(listed: Listed, row: Row, allowed: Allowed) -> str:
    if not allowed.edit:
        return _may_not("edit", listed.dag_id)
    if row.state == "draining":
        return "It is draining already."
    if row.state == "looking":
        return _UNTOLD
    return "" if row.state in ALIVE else f"No driver is alive: the pipeline is {row.state}."


def _recover_says(listed: Listed, row: Row) -> tuple[str, ...]:
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


def _no_recover(listed: Listed, row: Row, allowed: Allowed) -> str:
    dag_id = listed.recovery_dag_id
    if dag_id is None:
        return (
            f"No DAG of the bundle and owner of {listed.dag_id} recovers this checkpoint: none has "
            "a RecoverTransactionsOperator for it. The setting [airflow_eos] pipelines can name "
            "one."
        )
    alive = f"It is alive ({row.reason}): recovery would refuse. Drain it first."
    untold = _UNTOLD if row.state == "looking" else ""
    return _no_run(dag_id, allowed) or untold or (alive if row.state in ALIVE else "")


def _resume_says(listed: Listed, row: Row) -> tuple[str, ...]:
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


def _no_resume(listed: Listed, row: Row, allowed: Allowed) -> str:
    dag_id = listed.dag_id or ""
    alive = f"It is running: {row.reason}." if row.state in ALIVE else ""
    unknown = "Whether a driver is alive cannot be told." if row.state == "unreadable" else ""
    unknown = _UNTOLD if row.state == "looking" else unknown
    return _no_run(dag_id, allowed) or alive or unknown


def _no_run(dag_id: str, allowed: Allowed) -> str:
    if dag_id not in allowed.run:
        return _may_not("edit and trigger", dag_id)
    if dag_id not in allowed.paused:
        return f"There is no DAG {dag_id} any more."
    if allowed.paused[dag_id]:
        return f"The DAG {dag_id} is paused: its run would wait for ever. Unpause it first."
    return ""


def _may_not(what: str, dag_id: str | None) -> str:
    return f"You need the permission to {what} the DAG {dag_id}."

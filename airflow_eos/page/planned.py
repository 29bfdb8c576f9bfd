"""What recovery would do, as the shell says it; and what the input still holds.

The one view of the page that asks the participants and the input's cluster: for one pipeline, when
somebody looks at it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_eos.errors import EosError, UnknownClusterError
from airflow_eos.page.views import OpenBar, PlanLine, PlanView
from airflow_eos.recovery.run import plan_recovery
from airflow_eos.recovery.tables import headline, seal_sentence, step_cells

if TYPE_CHECKING:
    from airflow_eos.page.listed import Listed, Reach
    from airflow_eos.recovery.plan import Plan

TIMEOUT_S = 10.0
"""For each system to answer; a person waits."""
NO_CLUSTER = (
    "This pipeline has to do with Kafka, and this page was not told which cluster. So nobody could "
    "ask what is open there: there is no plan, and the open work is what the checkpoint names."
)


def planned(listed: Listed) -> PlanView:
    """Make the plan of this moment; does nothing. Why it could not be made is in ``error``."""
    try:
        reach = listed.reach()
        plan = plan_recovery(
            listed.location,
            reach.kafka,
            reach=reach.participants,
            storage_options=reach.storage,
            timeout_s=TIMEOUT_S,
        )
    except UnknownClusterError:
        return _failed(f"{NO_CLUSTER} {listed.name_cluster}".rstrip(), untold=True)
    except EosError as error:
        return _failed(str(error))
    unread, remark = _unread(listed, reach)
    return view(plan, unread, *remark)


def _failed(why: str, *, untold: bool = False) -> PlanView:
    return PlanView(made_at_ms=time.time_ns() // 1_000_000, error=why, untold=untold)


def view(plan: Plan, unread: int | None, *remarks: str) -> PlanView:
    """The plan in the words of the shell's table; pure."""
    return PlanView(
        made_at_ms=plan.made_at_ms,
        headline=headline(plan).removeprefix(f"{plan.location}: "),  # the page says it already
        lines=tuple(PlanLine(**step_cells(step), why=step.reason) for step in plan.steps),
        remarks=(
            *((f"A start is refused: {plan.refusal}",) if plan.refusal else ()),
            *plan.remarks,
            *((seal_sentence(plan.seal),) if plan.seal else ()),
            *(f"What to do: {each}" for each in plan.said),
            *remarks,
        ),
        alive=plan.alive,
        needs_person=plan.needs_person,
        open=tuple(
            OpenBar(
                key=each.key,
                participant=each.participant,
                opened_at_ms=each.opened_at_ms,
                ends_at_ms=each.ends_at_ms,
                places=each.places,
            )
            for each in plan.listed
        ),
        unread=unread,
    )


def _unread(listed: Listed, reach: Reach) -> tuple[int | None, tuple[str, ...]]:
    """What the input holds beyond the newest plan, and why nobody can tell."""
    if reach.kafka is None:
        return None, ()
    from airflow_eos.checkpoint.progress import read_state
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.supervision.unread import unread_offsets

    settings = reach.kafka
    if not isinstance(settings, KafkaSettings):
        settings = KafkaSettings.from_librdkafka(settings)
    try:
        return unread_offsets(settings, read_state(listed.open()).sources), ()
    except EosError as error:
        return None, (f"What is unread cannot be told: {error}",)

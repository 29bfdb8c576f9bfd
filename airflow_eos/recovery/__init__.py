"""Recovery of work that a dead pipeline left open; also gives the names of the audit.

Enter at :mod:`.plan` (the table of the protocol, pure), then :mod:`.facts` (the planner's facts)
and :mod:`.execute` (the plan's execution). Neither Airflow nor Spark is needed.

Names are imported when they are first used: DAG files import this package and must stay cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.audit.audit import AuditReport, audit
    from airflow_eos.checkpoint.rulings import (
        Acceptance,
        Ruling,
        accept,
        read_acceptance,
        read_rulings,
        resolve,
    )
    from airflow_eos.recovery.acceptance import Shortfall, shortfall
    from airflow_eos.recovery.execute import (
        ALLOWED_BY_DEFAULT,
        Report,
        Result,
        StepResult,
        execute_recovery,
        plan_recovery,
    )
    from airflow_eos.recovery.facts import Facts, gather
    from airflow_eos.recovery.plan import Action, Plan, Seal, Step, make_plan

_HOME = {
    "AuditReport": "audit.audit",
    "audit": "audit.audit",
    "ALLOWED_BY_DEFAULT": "recovery.execute",
    "gather": "recovery.facts",
    "Facts": "recovery.facts",
    "make_plan": "recovery.plan",
    "Report": "recovery.execute",
    "Result": "recovery.execute",
    "StepResult": "recovery.execute",
    "Acceptance": "checkpoint.rulings",
    "Ruling": "checkpoint.rulings",
    "accept": "checkpoint.rulings",
    "read_acceptance": "checkpoint.rulings",
    "read_rulings": "checkpoint.rulings",
    "resolve": "checkpoint.rulings",
    "Shortfall": "recovery.acceptance",
    "shortfall": "recovery.acceptance",
    "execute_recovery": "recovery.execute",
    "plan_recovery": "recovery.execute",
    "Action": "recovery.plan",
    "Plan": "recovery.plan",
    "Seal": "recovery.plan",
    "Step": "recovery.plan",
}

__all__ = [
    "ALLOWED_BY_DEFAULT",
    "Acceptance",
    "Action",
    "AuditReport",
    "Facts",
    "Plan",
    "Report",
    "Result",
    "Ruling",
    "Seal",
    "Shortfall",
    "Step",
    "StepResult",
    "accept",
    "audit",
    "execute_recovery",
    "gather",
    "make_plan",
    "plan_recovery",
    "read_acceptance",
    "read_rulings",
    "resolve",
    "shortfall",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module the first time it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"airflow_eos.{_HOME[name]}"), name)

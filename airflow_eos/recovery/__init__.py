"""Recovery of work that a dead pipeline left open; also gives the names of the audit.

Enter at :mod:`.plan` (the table of the protocol, pure), then :mod:`.facts` (the planner's facts)
and :mod:`.execute` (the plan's execution). Neither Airflow nor Spark is needed.

Names are imported when they are first used: DAG files import this package and must stay cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.audit.audit import AuditReport as AuditReport
    from airflow_eos.audit.audit import audit as audit
    from airflow_eos.checkpoint.rulings import Acceptance as Acceptance
    from airflow_eos.checkpoint.rulings import Ruling as Ruling
    from airflow_eos.checkpoint.rulings import accept as accept
    from airflow_eos.checkpoint.rulings import read_acceptance as read_acceptance
    from airflow_eos.checkpoint.rulings import read_rulings as read_rulings
    from airflow_eos.checkpoint.rulings import resolve as resolve
    from airflow_eos.recovery.acceptance import Shortfall as Shortfall
    from airflow_eos.recovery.acceptance import shortfall as shortfall
    from airflow_eos.recovery.execute import ALLOWED_BY_DEFAULT as ALLOWED_BY_DEFAULT
    from airflow_eos.recovery.execute import Report as Report
    from airflow_eos.recovery.execute import Result as Result
    from airflow_eos.recovery.execute import StepResult as StepResult
    from airflow_eos.recovery.execute import execute_recovery as execute_recovery
    from airflow_eos.recovery.execute import plan_recovery as plan_recovery
    from airflow_eos.recovery.facts import Facts as Facts
    from airflow_eos.recovery.facts import gather as gather
    from airflow_eos.recovery.plan import Action as Action
    from airflow_eos.recovery.plan import Plan as Plan
    from airflow_eos.recovery.plan import Seal as Seal
    from airflow_eos.recovery.plan import Step as Step
    from airflow_eos.recovery.plan import make_plan as make_plan

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

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Import a public name from its module the first time it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"airflow_eos.{_HOME[name]}"), name)

"""Recovery of work that a dead pipeline left open; also gives the names of the audit.

Enter at :mod:`.plan` (the table of the protocol, pure), then :mod:`.facts` (the planner's facts)
and :mod:`.execute` (the plan's execution). Neither Airflow nor Spark is needed.

Names are imported when they are first used: DAG files import this package and must stay cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.rulings import Acceptance as Acceptance
    from airflow_eos.core.checkpoint.rulings import Ruling as Ruling
    from airflow_eos.core.checkpoint.rulings import accept as accept
    from airflow_eos.core.checkpoint.rulings import read_acceptance as read_acceptance
    from airflow_eos.core.checkpoint.rulings import read_rulings as read_rulings
    from airflow_eos.core.checkpoint.rulings import resolve as resolve
    from airflow_eos.core.recovery.acceptance import Shortfall as Shortfall
    from airflow_eos.core.recovery.acceptance import shortfall as shortfall
    from airflow_eos.core.recovery.execute import ALLOWED_BY_DEFAULT as ALLOWED_BY_DEFAULT
    from airflow_eos.core.recovery.execute import Report as Report
    from airflow_eos.core.recovery.execute import Result as Result
    from airflow_eos.core.recovery.execute import StepResult as StepResult
    from airflow_eos.core.recovery.execute import execute_recovery as execute_recovery
    from airflow_eos.core.recovery.execute import plan_recovery as plan_recovery
    from airflow_eos.core.recovery.facts import Facts as Facts
    from airflow_eos.core.recovery.facts import gather as gather
    from airflow_eos.core.recovery.plan import Action as Action
    from airflow_eos.core.recovery.plan import Plan as Plan
    from airflow_eos.core.recovery.plan import Seal as Seal
    from airflow_eos.core.recovery.plan import Step as Step
    from airflow_eos.core.recovery.plan import make_plan as make_plan
    from airflow_eos.ops.audit.audit import AuditReport as AuditReport
    from airflow_eos.ops.audit.audit import audit as audit

_NAMES = {
    "core.checkpoint.rulings": "Acceptance Ruling accept read_acceptance read_rulings resolve",
    "core.recovery.acceptance": "Shortfall shortfall",
    "core.recovery.execute": (
        "ALLOWED_BY_DEFAULT Report Result StepResult execute_recovery plan_recovery"
    ),
    "core.recovery.facts": "Facts gather",
    "core.recovery.plan": "Action Plan Seal Step make_plan",
    "ops.audit.audit": "AuditReport audit",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Import a public name from its module the first time it is asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"airflow_eos.{_HOME[name]}"), name)

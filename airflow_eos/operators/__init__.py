"""The operators: run, recover, rehearse and audit a pipeline; emit events of settled batches."""

from airflow_eos import hooks as _hooks  # noqa: F401 - an old Airflow ends here
from airflow_eos.operators.events import EmitCompleteHoursOperator, EmitSettledBatchesOperator
from airflow_eos.operators.recovery import (
    AuditOperator,
    PlanRecoveryOperator,
    RecoverTransactionsOperator,
)
from airflow_eos.operators.streaming import RehearseOperator, SparkStreamingOperator

__all__ = [
    "AuditOperator",
    "EmitCompleteHoursOperator",
    "EmitSettledBatchesOperator",
    "PlanRecoveryOperator",
    "RecoverTransactionsOperator",
    "RehearseOperator",
    "SparkStreamingOperator",
]

"""The operators: run a pipeline, plan and execute its recovery, audit what it delivered."""

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here
from airflow_eos.operators.audit import AuditOperator
from airflow_eos.operators.recovery import PlanRecoveryOperator, RecoverTransactionsOperator
from airflow_eos.operators.streaming import SparkStreamingOperator

__all__ = [
    "AuditOperator",
    "PlanRecoveryOperator",
    "RecoverTransactionsOperator",
    "SparkStreamingOperator",
]

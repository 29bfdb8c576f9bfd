"""The sensors: whether a pipeline makes progress, a transaction times out, readers are blocked."""

from airflow_eos import hooks as _hooks  # noqa: F401 - an old Airflow ends here
from airflow_eos.sensors.progress import (
    BlockedTopicSensor,
    CheckpointProgressSensor,
    TransactionTimeoutSensor,
)

__all__ = ["BlockedTopicSensor", "CheckpointProgressSensor", "TransactionTimeoutSensor"]

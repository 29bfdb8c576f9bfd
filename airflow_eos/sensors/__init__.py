"""The sensors: whether a pipeline makes progress, a transaction times out, readers are blocked."""

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here
from airflow_eos.sensors.progress import (
    BlockedTopicSensor,
    CheckpointProgressSensor,
    TransactionTimeoutSensor,
)

__all__ = ["BlockedTopicSensor", "CheckpointProgressSensor", "TransactionTimeoutSensor"]

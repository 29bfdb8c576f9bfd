"""The sensors: does a pipeline get on, does work run out of time, are readers held up?"""

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here
from airflow_eos.sensors.progress import (
    BlockedTopicSensor,
    CheckpointProgressSensor,
    TransactionTimeoutSensor,
)

__all__ = ["BlockedTopicSensor", "CheckpointProgressSensor", "TransactionTimeoutSensor"]

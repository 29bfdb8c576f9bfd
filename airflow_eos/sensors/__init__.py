"""The sensors: is the pipeline getting on, and does a transaction run out of time?"""

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here
from airflow_eos.sensors.progress import CheckpointProgressSensor
from airflow_eos.sensors.timeouts import TransactionTimeoutSensor

__all__ = ["CheckpointProgressSensor", "TransactionTimeoutSensor"]

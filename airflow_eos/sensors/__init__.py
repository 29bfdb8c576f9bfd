"""The sensors: is the pipeline getting on, and does a transaction run out of time?"""

from airflow_eos.sensors.progress import CheckpointProgressSensor
from airflow_eos.sensors.timeouts import TransactionTimeoutSensor

__all__ = ["CheckpointProgressSensor", "TransactionTimeoutSensor"]

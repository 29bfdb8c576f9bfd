"""What all sensors are told, they also take from the DAG."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from airflow_eos.sensors import CheckpointProgressSensor, TransactionTimeoutSensor

OF_THE_DAG = {
    "kafka_config_id": "kafka_of_orders",
    "storage_conn_id": "lake",
    "storage_options": {"aws_region": "eu-central-1"},
    "deferrable": True,
}


@pytest.mark.parametrize("kind", [CheckpointProgressSensor, TransactionTimeoutSensor])
def test_default_arguments_of_a_dag_reach_a_sensor_and_its_own_win(kind):
    with DAG("watch", schedule=None, default_args=OF_THE_DAG):
        sensor = kind(task_id="a", checkpoint_location="/q")
        other = kind(task_id="b", checkpoint_location="/q", storage_conn_id="other")
    assert {name: getattr(sensor, name) for name in OF_THE_DAG} == OF_THE_DAG
    assert (other.storage_conn_id, other.deferrable) == ("other", True)


@pytest.mark.parametrize("kind", [CheckpointProgressSensor, TransactionTimeoutSensor])
def test_every_field_that_is_templated_is_one_that_the_sensor_has(kind):
    sensor = kind(task_id="a", checkpoint_location="/q")
    assert [name for name in kind.template_fields if not hasattr(sensor, name)] == []

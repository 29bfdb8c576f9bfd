"""Where an app is submitted to, and how its secrets get there."""

from __future__ import annotations

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.spark import SubmitTarget
from airflow_eos.supervision.workspace import Secrets

pytestmark = pytest.mark.unit

KUBERNETES = "k8s://https://api:6443"
SECRETS = Secrets(kafka={"sasl.password": "hunter2"}, storage={})


@pytest.mark.parametrize("master", [KUBERNETES, "yarn", "local[2]"])
def test_a_driver_on_this_machine_reads_our_files_whoever_runs_its_executors(tmp_path, master):
    handed = SubmitTarget(conn_id="spark", master=master).hand_over(SECRETS, tmp_path, {})
    assert handed.told["EOS_KAFKA_CONFIG_FILE"] == str(tmp_path / "kafka.json")
    assert handed.shipped == {}


def test_kubernetes_is_asked_for_a_mounted_secret_where_the_driver_is_in_a_pod(tmp_path):
    target = SubmitTarget(conn_id="spark", master=KUBERNETES, is_cluster=True)
    with pytest.raises(ConfigurationError, match="EOS_KAFKA_CONFIG_FILE"):
        target.hand_over(SECRETS, tmp_path, {})

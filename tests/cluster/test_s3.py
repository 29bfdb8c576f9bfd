"""A checkpoint on S3, written by Spark through s3a and by us through obstore; on standalone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from airflow_eos.local.jars import s3a_jars
from tests.cluster.by_dag import submitted_by_dag
from tests.cluster.conftest import StreamFactory
from tests.cluster.stream import PATIENCE_S, end
from tests.cluster.test_standalone import SMALL, shipped
from tests.support.servers.standalone import EmbeddedStandalone
from tests.support.stores import Where, place

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]


CLUSTER = "Spark standalone, three workers; checkpoint on S3 (moto)"


def conf_of(where: Where, environment: Path) -> dict[str, str]:
    return {
        **SMALL,
        **shipped(environment),
        # Only the driver writes the checkpoint of a query without state.
        "spark.driver.extraClassPath": os.pathsep.join(map(str, s3a_jars())),
        **where.spark_conf,
    }


def test_the_driver_is_killed_recovered_from_the_shell_and_resumed(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    with place("moto", tmp_path) as where:
        conf = conf_of(where, environment)
        secret = tmp_path / "storage.json"
        secret.write_text(json.dumps(where.options))
        told = {"EOS_STORAGE_OPTIONS_FILE": str(secret)}
        one = stream(CLUSTER, f"{where.url}/checkpoints/one", storage_options=where.options)
        one.feed(1000)
        killed = {"EOS_FAILPOINTS": "decided=kill@2", "EOS_FAILPOINTS_DIR": str(tmp_path)}
        first = one.submit(standalone.url, conf, env=told | killed, batch=300)
        first.wait(PATIENCE_S)
        assert (tmp_path / "decided.hit").exists(), one.said()
        end(first)
        one.recover()
        one.feed(300)
        second = one.submit(standalone.url, conf, env=told, trigger="available-now")
        assert second.wait(PATIENCE_S) == 0, one.said()
        one.judge("the driver at `decided`; recovered from the shell")


def test_a_dag_submits_recovers_and_resumes_it_with_its_checkpoint_on_s3(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    """The store's key is in a connection of Airflow's, of type ``aws``."""
    with place("moto", tmp_path) as where:
        one = stream(CLUSTER, f"{where.url}/checkpoints/by-dag", storage_options=where.options)
        one.feed(1000)
        conf = conf_of(where, environment)
        with submitted_by_dag(
            one,
            {"conn_type": "spark", "host": standalone.url},
            connections={"s3": connection(where)},
            storage_conn_id="s3",
            conf={**conf, "spark.pyspark.driver.python": sys.executable},
            env_vars={"EOS_FAILPOINTS": "decided=kill@2", "EOS_FAILPOINTS_DIR": str(tmp_path)},
        ) as by_dag:
            by_dag.wait_until_killed(tmp_path / "decided.hit")
            one.feed(300)
            by_dag.succeed()
        one.judge("the driver at `decided`; submitted, recovered and resumed by the DAG")


def connection(where: Where) -> dict[str, object]:
    options = where.options
    return {
        "conn_type": "aws",
        "login": options["aws_access_key_id"],
        "password": options["aws_secret_access_key"],
        "extra": {"endpoint_url": options["aws_endpoint"], "region_name": options["aws_region"]},
    }

"""A checkpoint on S3, written by Spark through s3a and by us through obstore; on standalone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_eos.local.jars import s3a_jars
from airflow_eos.local.standalone import EmbeddedStandalone
from tests.cluster.conftest import StreamFactory
from tests.cluster.stream import PATIENCE_S, end
from tests.cluster.test_standalone import SMALL, shipped
from tests.support.stores import place

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]


def test_the_driver_is_killed_recovered_from_the_shell_and_resumed(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path, tmp_path: Path
) -> None:
    with place("moto", tmp_path) as where:
        s3a = "spark.hadoop.fs.s3a"
        conf = {
            **SMALL,
            **shipped(environment),
            # Only the driver writes the checkpoint of a query without state.
            "spark.driver.extraClassPath": os.pathsep.join(map(str, s3a_jars())),
            f"{s3a}.endpoint": where.options["aws_endpoint"],
            f"{s3a}.path.style.access": "true",
            f"{s3a}.access.key": where.options["aws_access_key_id"],
            f"{s3a}.secret.key": where.options["aws_secret_access_key"],
        }
        secret = tmp_path / "storage.json"
        secret.write_text(json.dumps(where.options))
        told = {"EOS_STORAGE_OPTIONS_FILE": str(secret)}
        one = stream(
            "Spark standalone, three workers; checkpoint on S3 (moto)",
            f"{where.url}/checkpoints/one",
            storage_options=where.options,
        )
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

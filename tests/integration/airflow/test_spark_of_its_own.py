"""An app on a newer Spark than Airflow's Spark provider allows, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_eos.local import EmbeddedKafka
from tests.integration.airflow.test_streaming import ROWS, Etl
from tests.support.pipeline import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("connections")]
NEWER = "4.3.0"
"""Of it there is a pyspark, and no pyspark-client, which Airflow's Spark provider requires."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``docs/install.md`` says; pyspark is built from source once, in half a minute."""
    home = tmp_path_factory.mktemp("spark") / "env"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
    wanted = (f"{ROOT}[cli,fast]", "pandas<3", f"pyspark=={NEWER}")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", home, *wanted], check=True)
    return home


@pytest.mark.parametrize("app", ["orders_etl.py", "orders_arrow.py"])
def test_killed_after_its_decision_it_is_recovered_restarted_and_exact_on_its_own_spark(
    kafka_broker: EmbeddedKafka,
    topic: Callable[..., str],
    tmp_path: Path,
    environment: Path,
    monkeypatch: pytest.MonkeyPatch,
    app: str,
) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")  # an archive of classes of the other Spark
    monkeypatch.setenv("SPARK_HOME", "/opt/the/worker's/own")
    (spark_home,) = environment.glob("lib/python*/site-packages/pyspark")
    etl = Etl(kafka_broker, topic, tmp_path)
    events = tmp_path / "events"
    events.mkdir()
    task = etl.operator(
        *("--trigger", "available-now"),
        env_vars={
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(environment / "bin" / "python"),
            "SPARK_HOME": str(spark_home),
            "EOS_FAILPOINTS": "decided=kill@2",
            "EOS_FAILPOINTS_DIR": str(tmp_path),
        },
    )
    task.application = str(ROOT / "spark_apps" / app)
    task.conf = {
        **(task.conf or {}),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    if app == "orders_arrow.py":
        task.jars = None  # it needs no connector
    result = task.execute({})
    assert (tmp_path / "decided.hit").exists()
    assert result["restarts"] == 1
    first_lines = [each.read_text().partition("\n")[0] for each in events.iterdir()]
    assert [NEWER in line for line in first_lines] == [True, True]
    report = etl.audit()
    assert (report["ok"], report["rows_in"], report["rows_out"][etl.output]) == (True, ROWS, ROWS)

"""A real OpenLineage provider in a real Airflow: the events that it writes, of a real pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.page.conftest import recorded_checkpoint
from tests.support.pipeline import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1200)]
SERVERS = "kafka-1.example:9092"

DAGS = """
from airflow.sdk import DAG, Asset
from airflow_eos.operators.events import EmitSettledBatchesOperator

with DAG("emit", schedule=None) as emit:
    EmitSettledBatchesOperator(
        task_id="emit", asset=Asset("settled"), checkpoint_location={checkpoint!r}, deferrable=False
    )
"""


@pytest.fixture
def told(tmp_path: Path) -> list[dict[str, Any]]:
    """What the file transport has written of one run, by Airflow's own command line."""
    checkpoint, written = recorded_checkpoint(tmp_path), tmp_path / "lineage"
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "emit.py").write_text(DAGS.format(checkpoint=str(checkpoint)))
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(written), "append": True}
        ),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": SERVERS}}
        ),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    for arguments in (["db", "migrate"], ["dags", "reserialize"], ["dags", "test", "emit"]):
        answer = subprocess.run(
            [str(Path(sys.executable).with_name("airflow")), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
    assert written.exists(), answer.stdout + answer.stderr
    return [json.loads(line) for line in written.read_text().splitlines()]


def ends(dataset: dict[str, Any]) -> list[int]:
    partitions = dataset["facets"]["kafkaOffsets"]["partitions"]
    assert [each["partition"] for each in partitions] == list(range(len(partitions)))
    assert {each["start"] for each in partitions} == {0}
    return [each["end"] for each in partitions]


def test_input_and_output_topics_are_one_graph_with_their_offsets(told):
    [event] = [
        each
        for each in told
        if each["eventType"] == "COMPLETE" and each["job"]["name"] == "emit.emit"
    ]
    [read], [delivered] = event["inputs"], event["outputs"]
    namespace = f"kafka://{SERVERS}"
    assert (read["namespace"], read["name"]) == (namespace, "killed-settling-in")
    assert (delivered["namespace"], delivered["name"]) == (namespace, "killed-settling-out")
    # Two batches of 300 rows are settled. In the output stand the markers of transactions, too.
    assert ends(read) == [156, 192, 252]
    assert ends(delivered) == [171, 219, 183, 39]

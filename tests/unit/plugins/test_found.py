"""Pipelines are found in DAGs as Airflow serializes them, and in one setting beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.plugins.found import InADag, Named, in_a_dag, in_the_setting, joined, not_shown

try:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # where Airflow 3.1 has them
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]
    from airflow.serialization.serialized_objects import (  # type: ignore[attr-defined,assignment]
        SerializedDAG as DagSerialization,
    )

ROOT = Path(__file__).parents[3]

OTHERS = '''
from airflow.sdk import dag
from airflow_eos.operators import SparkStreamingOperator

class Ours(SparkStreamingOperator):
    """A subclass, as a team makes one."""

@dag(dag_id="others", schedule=None)
def others():
    Ours(
        task_id="one", application="a.py", checkpoint_location="s3a://lake/one",
        kafka_config_id="k", storage_conn_id="s", participant_conn_ids={"totals": "pg"},
    )
    Ours(task_id="two", application="a.py", checkpoint_location="{{ var.value.place }}")

others()
'''


def serialized(folder: Path) -> dict[str, InADag]:
    bag = DagBag(dag_folder=str(folder))
    assert bag.import_errors == {}
    stored = {
        dag_id: json.loads(json.dumps(DagSerialization.to_dict(dag), default=str))
        for dag_id, dag in bag.dags.items()
    }
    return {dag_id: in_a_dag(dag_id, data) for dag_id, data in stored.items()}


def test_the_example_is_found_with_the_dag_that_recovers_it():
    [orders] = joined(serialized(ROOT / "dags" / "eos_orders.py"), ())
    assert (orders.dag_id, orders.task_id) == ("eos_orders_etl", "run")
    assert orders.checkpoint_location == "/data/checkpoints/orders-etl"
    assert orders.kafka_config_id == "kafka_default"
    assert orders.recovery_dag_id == "eos_recovery"


def test_a_subclass_is_found_with_its_connections_and_a_template_is_said_to_be_one(tmp_path):
    (tmp_path / "others.py").write_text(OTHERS)
    said = serialized(tmp_path / "others.py")
    [one] = joined(said, ())
    assert one == Named(
        dag_id="others",
        task_id="one",
        checkpoint_location="s3a://lake/one",
        kafka_config_id="k",
        storage_conn_id="s",
        participant_conn_ids={"totals": "pg"},
    )
    [remark] = not_shown("others", said["others"], ())
    assert "others.two is not shown: its checkpoint or a connection is a template" in remark


def test_one_odd_dag_is_a_remark_and_takes_the_page_from_nobody(tmp_path):
    odd = OTHERS.replace('storage_conn_id="s"', "storage_conn_id=5")
    (tmp_path / "others.py").write_text(odd)
    said = serialized(tmp_path / "others.py")
    assert joined(said, ()) == ()
    odd_one, _ = not_shown("others", said["others"], ())
    assert "others.one is not shown" in odd_one
    assert "storage_conn_id" in odd_one


def test_the_setting_names_what_is_a_template_and_wins_over_a_dag():
    said = {
        "etl": InADag(
            runs=(Named(dag_id="etl", checkpoint_location="/old"),),
            hidden={"two": "it is a template"},
        ),
        "rec": InADag(recovers=("/two",)),
    }
    setting = in_the_setting(
        '[{"dag_id":"etl","checkpoint_location":"/new"},'
        '{"dag_id":"etl","task_id":"two","checkpoint_location":"/two"}]'
    )
    assert {each.key: each.checkpoint_location for each in joined(said, setting)} == {
        ("etl", "run"): "/new",
        ("etl", "two"): "/two",
    }
    assert [each.recovery_dag_id for each in joined(said, setting)] == [None, "rec"]
    assert list(not_shown("etl", said["etl"], setting)) == []


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"dag_id":"x"}]', '[{"dagid":"x"}]', "nonsense"])
def test_a_setting_that_cannot_be_read_says_what_was_expected(text):
    with pytest.raises(ConfigurationError, match=r"\[airflow_eos\] pipelines.*a JSON list"):
        in_the_setting(text)


def test_a_dag_of_somebody_else_has_no_pipeline():
    assert in_a_dag("x", {}) == InADag()
    task = {"__type": "operator", "__var": {"task_id": "t", "template_fields": ["sql"]}}
    assert in_a_dag("x", {"dag": {"tasks": [task]}}) == InADag()

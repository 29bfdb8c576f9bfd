"""Where a task's page leads."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, StartedBy, write_heartbeat
from airflow_eos.factory import eos_pipeline
from airflow_eos.links import LINKS, push_links
from airflow_eos.operators import SparkStreamingOperator
from airflow_eos.ops.page.views import PipelineEntry, Reach
from airflow_eos.plugins.page import EosPagePlugin
from tests.support.beats import heartbeat


def listed(location: str, dag_id: str, task_id: str) -> PipelineEntry:
    """As the page has it."""
    reach = Reach()
    return PipelineEntry(
        name=dag_id,
        location=location,
        storage=dict,
        reach=lambda: reach,
        dag_id=dag_id,
        task_id=task_id,
    )


@pytest.fixture
def task(tmp_path, monkeypatch) -> SparkStreamingOperator:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")
    location = str(tmp_path / "a b")
    with DAG("orders", schedule=None):
        return SparkStreamingOperator(
            task_id="run", application="a.py", checkpoint_location=location
        )


def beat(task: SparkStreamingOperator) -> Heartbeat:
    told = heartbeat(application_id="app-7", host=socket.gethostname(), batch_id=None)
    write_heartbeat(CheckpointStore.open(task.checkpoint_location), told)
    return told


def addresses(task: Any) -> dict[str, str]:
    return {link.name: link.get_link(task, ti_key=None) for link in LINKS}


@pytest.mark.parametrize("template", ["{}", "{host.x}", "{host:d}", "{", None])
def test_a_link_that_cannot_be_made_fails_no_task(task, monkeypatch, template):
    """Airflow 3.1.0 fails a task, which has done all it should, with what a link raises."""
    beat(task)
    if template is None:
        task.storage_conn_id = "is_gone"
    else:
        monkeypatch.setenv("AIRFLOW__AIRFLOW_EOS__SPARK_UI_URL", template)
    assert addresses(task)["Spark UI"] == ""


def test_spark_ui_is_where_the_last_sign_of_life_came_from(task):
    assert addresses(task)["Spark UI"] == ""
    beat(task)
    assert addresses(task)["Spark UI"] == f"http://{socket.gethostname()}:4040"


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example",
        "evil.example/?at=",
        "a@evil.example",
        "javascript:alert(1)//",
        "",
        "x y",
    ],
)
@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_hostile_heartbeat_makes_no_link_to_a_host_of_its_own(task, host, deploy_mode):
    by = StartedBy(dag_id="orders", task_id="run", run_id="r", map_index=-1, submission="s1")
    told = heartbeat(host=host, deploy_mode=deploy_mode, started_by=by, master="k8s://https://a")
    write_heartbeat(CheckpointStore.open(task.checkpoint_location), told)
    assert addresses(task)["Spark UI"] == ""


def test_a_driver_in_a_pod_of_this_start_is_linked_to(task):
    by = StartedBy(dag_id="orders", task_id="run", run_id="r", map_index=-1, submission="s1")
    told = heartbeat(host="eos-s1-driver", deploy_mode="cluster", started_by=by)
    write_heartbeat(CheckpointStore.open(task.checkpoint_location), told)
    assert addresses(task)["Spark UI"] == "http://eos-s1-driver:4040"


@pytest.mark.parametrize("said", ["../../evil", "a?b", "a/b", "a b", "a%2f", ""])
def test_an_application_id_that_is_none_is_in_no_address(task, monkeypatch, said):
    template = "https://yarn.example/proxy/{application_id}/"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_EOS__SPARK_UI_URL", template)
    told = heartbeat(application_id=said)
    write_heartbeat(CheckpointStore.open(task.checkpoint_location), told)
    assert addresses(task)["Spark UI"] == ""


def test_the_page_and_the_recovery_are_airflows_own(task):
    found = addresses(task)
    (view,) = EosPagePlugin.external_views
    there = f"https://airflow.example/plugin/{view['url_route']}#/"
    assert found["Pipeline"] == there + listed(task.checkpoint_location, "orders", "run").id
    assert found["Recovery"] == "https://airflow.example/dags/orders_recovery"


def test_the_recovery_is_the_dag_that_the_factory_makes(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example")
    run, recovery, _ = eos_pipeline(
        dag_id="clicks",
        application="a.py",
        checkpoint=str(tmp_path),
        prefix="p",
        input_topic="i",
        output_topic="o",
    )
    found = addresses(run.get_task("run"))
    assert found["Recovery"] == f"https://airflow.example/dags/{recovery.dag_id}"


def test_one_dag_that_recovers_all_is_named_in_the_configuration(task, monkeypatch):
    monkeypatch.setenv("AIRFLOW__AIRFLOW_EOS__RECOVERY_DAG", "eos_recovery")
    assert addresses(task)["Recovery"] == "https://airflow.example/dags/eos_recovery"


def test_an_address_may_name_the_checkpoint(task, monkeypatch):
    monkeypatch.setenv("AIRFLOW__AIRFLOW_EOS__PAGE_URL", "https://eos.example/?at={checkpoint}")
    found = addresses(task)["Pipeline"]
    assert found.startswith("https://eos.example/?at=%2F")
    assert found.endswith("a%20b")


def test_a_house_with_another_address_says_so_in_its_configuration(task, monkeypatch):
    monkeypatch.setenv(
        "AIRFLOW__AIRFLOW_EOS__SPARK_UI_URL", "https://yarn.example/proxy/{application_id}/"
    )
    beat(task)
    assert addresses(task)["Spark UI"] == "https://yarn.example/proxy/app-7/"


def test_they_are_there_while_the_stream_runs(task):
    stored: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda *, key, value: stored.update({key: value}))
    push_links(task, {"ti": ti}, beat(task))
    assert set(stored) == {link.xcom_key for link in LINKS}


def test_a_checkpoint_that_cannot_be_read_costs_the_links_and_no_task(task):
    """Airflow 3.1.0 fails a task with whatever a link raises."""
    CheckpointStore.open(task.checkpoint_location).put("eos/driver.json", b"{")
    assert set(addresses(task).values()) == {""}


def test_an_airflow_that_does_not_answer_costs_the_links_and_no_stream(task):
    def away(**_: Any) -> None:
        raise OSError("the API server is away")

    push_links(task, {"ti": SimpleNamespace(xcom_push=away)}, beat(task))


def test_a_streaming_task_has_them():
    assert SparkStreamingOperator.operator_extra_links == LINKS

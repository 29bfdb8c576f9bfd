"""The API server opens a location where a connection allows it, and not because a DAG names it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.plugins import application as reading
from airflow_eos.plugins.application import DagOrigin, DagPipelines, PipelineReference

LAKE = "s3a://lake/pay"


@pytest.fixture(autouse=True)
def connection(monkeypatch) -> None:
    extra = {"eos_locations": ["s3a://lake/checkpoints", "s3a://lake/pay/"]}
    told = {"conn_type": "aws", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SOME", json.dumps(told))
    monkeypatch.setenv("AIRFLOW_CONN_ANY", json.dumps({"conn_type": "aws", "extra": {}}))
    monkeypatch.setattr(reading, "_of_another_team", lambda *_: [])


def storage(*, by_setting: bool = False, **told) -> dict[str, str]:
    named = PipelineReference(dag_id="pay", **told)
    found = reading._listed(named, "pay", by_setting=by_setting).storage()
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("place", [LAKE, "http://169.254.169.254/latest", "hdfs://nn/x"])
def test_without_a_connection_the_servers_own_rights_are_not_used(place):
    with pytest.raises(ConfigurationError, match="uses no rights of Airflow's own"):
        storage(checkpoint_location=place)
    assert storage(checkpoint_location=place, by_setting=True) == {}, "its owner has named it"


def test_the_owner_has_named_it_also_where_a_dag_says_that_it_recovers_it(monkeypatch):
    text = json.dumps([{"dag_id": "pay", "checkpoint_location": LAKE}])
    monkeypatch.setattr(reading, "conf", SimpleNamespace(get=lambda *_, **__: text))
    monkeypatch.setattr(reading, "paused", lambda _: {})
    beside = DagOrigin(bundle="b", owners=frozenset({"ann"}))
    said = {
        "pay": DagPipelines(origin=beside),
        "pay_recovery": DagPipelines(recovers=(LAKE,), origin=beside),
    }
    [listed], remarks = reading.pipelines(said, {"pay"})
    assert (listed.recovery_dag_id, remarks) == ("pay_recovery", [])
    assert listed.storage() == {}


def test_the_pages_setting_is_a_duration_as_everywhere(monkeypatch):
    for text in ("300", "5 minutes"):
        monkeypatch.setenv("AIRFLOW__AIRFLOW_EOS__STALL_AFTER", text)
        assert reading.stall_after_ms() == 300_000
    monkeypatch.setenv("AIRFLOW__AIRFLOW_EOS__STALL_AFTER", "5 minuets")
    with pytest.raises(ConfigurationError, match=r"\[airflow_eos\] stall_after='5 minuets'"):
        reading.stall_after_ms()


@pytest.mark.parametrize("place", ["/data/pay", "file:///data/pay"])
def test_a_folder_of_a_disk_needs_none(place):
    assert storage(checkpoint_location=place) == {}


def test_a_connection_says_where_it_leads():
    assert storage(checkpoint_location=LAKE, storage_conn_id="any") == {}
    for place in (LAKE, "s3a://lake/checkpoints/x"):
        assert storage(checkpoint_location=place, storage_conn_id="some") == {}
    for place in ("s3a://lake/payroll", "s3a://other/pay", "s3a://lake/pay/../payroll", "/data"):
        with pytest.raises(ConfigurationError, match="is for s3a://lake/checkpoints, s3a://lake/"):
            storage(checkpoint_location=place, storage_conn_id="some")


def test_a_connection_of_another_team_is_not_used(monkeypatch):
    monkeypatch.setattr(reading, "_of_another_team", lambda _dag, ids: sorted(ids))
    with pytest.raises(ConfigurationError, match="any, kafka_default are of another team than pay"):
        storage(checkpoint_location=LAKE, storage_conn_id="any")

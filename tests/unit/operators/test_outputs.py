"""SparkStreamingOperator hands on what was chosen, refuses what cannot work, and recovers there."""

from __future__ import annotations

import json
import logging
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.operators import SparkStreamingOperator

PASSWORD = "hunter-five-and-a-half"
CLEAN = {"name": "clean", "kind": "kafka", "topic": "orders.clean"}
TOTALS = {"name": "totals", "kind": "postgres", "table": "totals"}


@pytest.fixture
def operator(store, kafka, spark, monkeypatch):
    shop = {
        "conn_type": "postgres",
        "host": "db",
        "login": "etl",
        "password": PASSWORD,
        "schema": "shop",
    }
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))

    def make(**arguments):
        return SparkStreamingOperator(
            **{
                "task_id": "etl",
                "application": "/apps/etl.py",
                "checkpoint_location": store.location,
                "ship_package": False,
                "patience": timedelta(seconds=0.05),
                **arguments,
            }
        )

    return make


@pytest.fixture
def looked_under(monkeypatch, kafka) -> list[str | None]:
    """The prefixes that recovery was told to look under, whatever the checkpoint says."""
    seen: list[str | None] = []

    def participant_of(*_, prefix, **__):
        seen.append(prefix)
        return kafka.participant_of()

    monkeypatch.setattr("airflow_eos.ops.supervision.recovery.participant_of", participant_of)
    return seen


def told(spark) -> dict[str, str]:
    environment: dict[str, str] = spark.popen[-1]["env"]
    return environment


def test_the_app_is_told_outputs_and_guarantee_and_no_secret_of_them(operator, spark, says, caplog):
    spark.runs = [says("stopped")]
    task = operator(
        outputs=[CLEAN, TOTALS], guarantee="at_least_once", participant_conn_ids={"totals": "shop"}
    )
    with caplog.at_level(logging.DEBUG):
        task.execute({})
    assert json.loads(told(spark)["EOS_OUTPUTS"]) == [CLEAN, TOTALS]
    assert told(spark)["EOS_GUARANTEE"] == "at_least_once"
    assert told(spark)["EOS_PARTICIPANTS_FILE"]
    assert PASSWORD not in repr([spark.constructed, spark.popen, caplog.text, vars(task)])


def test_where_nothing_was_chosen_the_app_goes_by_its_own_outputs(operator, spark, says):
    spark.runs = [says("stopped")]
    operator().execute({})
    assert "EOS_OUTPUTS" not in told(spark)
    assert told(spark)["EOS_GUARANTEE"] == "exactly_once"


@pytest.mark.parametrize(
    "outputs", ["{{ params.outputs | tojson }}", [{**CLEAN, "topic": "{{ to }}"}]]
)
def test_both_are_templated(operator, spark, says, outputs):
    spark.runs = [says("stopped")]
    task = operator(outputs=outputs, guarantee="{{ params.guarantee }}")
    params = {"outputs": [CLEAN], "guarantee": "at_most_once"}
    task.render_template_fields({"params": params, "to": "orders.clean"})
    task.execute({})
    assert json.loads(told(spark)["EOS_OUTPUTS"]) == [CLEAN]
    assert told(spark)["EOS_GUARANTEE"] == "at_most_once"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": [{**TOTALS, "kind": "postgress"}]}, "kind 'postgress' .near: postgres"),
        ({"outputs": [{**TOTALS, "tabel": "x"}]}, "no option 'tabel' .near: table"),
        ({"outputs": [TOTALS]}, r"'totals' .postgres.: nothing usable says.*participant_conn_ids"),
        ({"outputs": [{**TOTALS, "dsn": "host=db"}]}, "no option 'dsn'"),
        ({"outputs": []}, "an empty list"),
        ({"outputs": [{"name": "l", "kind": "files", "folder": "l"}]}, "an absolute path"),
    ],
)
def test_what_cannot_work_fails_without_retry_and_before_anything_is_started(
    operator, spark, kafka, arguments, message
):
    with pytest.raises(AirflowFailException, match=message):
        operator(**arguments).execute({})
    assert spark.constructed == kafka.calls == []


@pytest.mark.parametrize(
    ("outputs", "prefix"),
    [
        (None, "etl"),
        ([CLEAN, TOTALS], "etl"),
        # Under the operator's prefix a recovery would find nothing, and leave the rows prepared.
        ([TOTALS], None),
        ([{**CLEAN, "transactional_id_prefix": "etl-clean"}], None),
    ],
)
def test_recovery_looks_where_the_outputs_are(operator, spark, says, looked_under, outputs, prefix):
    spark.runs = [says("stopped")]
    operator(
        outputs=outputs, transactional_id_prefix="etl", participant_conn_ids={"totals": "shop"}
    ).execute({})
    assert set(looked_under) == {prefix}

"""Pipelines are found in DAGs as Airflow serializes them, and in one setting beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.plugins.application import (
    DagPipelines,
    PipelineReference,
    SaidOf,
    in_a_dag,
    in_the_setting,
    joined,
    not_shown,
    pipelines,
    recovery_of,
    watchdogs,
)

try:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # where Airflow 3.1 has them
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization  # type: ignore[attr-defined,assignment]

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


def serialized(folder: Path) -> dict[str, DagPipelines]:
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
    assert one == PipelineReference(
        dag_id="others",
        task_id="one",
        checkpoint_location="s3a://lake/one",
        kafka_config_id="k",
        storage_conn_id="s",
        participant_conn_ids={"totals": "pg"},
    )
    [remark] = not_shown("others", said["others"], ())
    assert "others.two is not shown: its checkpoint or a connection is a template" in remark


def test_one_odd_dag_is_a_remark_and_takes_the_page_from_nobody():
    task = {"task_id": "one", "template_fields": ["checkpoint_location", "application"]}
    odd = {**task, "checkpoint_location": "/one", "storage_conn_id": 5}
    said = {"others": in_a_dag("others", {"dag": {"tasks": [odd]}})}
    assert joined(said, ()) == ()
    [odd_one] = not_shown("others", said["others"], ())
    assert "others.one is not shown" in odd_one
    assert "storage_conn_id" in odd_one


def test_the_setting_names_what_is_a_template_and_wins_over_a_dag():
    said = {
        "etl": DagPipelines(
            runs=(PipelineReference(dag_id="etl", checkpoint_location="/old"),),
            hidden={"two": "it is a template"},
        ),
        "rec": DagPipelines(recovers=("/two",)),
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
    assert in_a_dag("x", {}) == DagPipelines()
    task = {"__type": "operator", "__var": {"task_id": "t", "template_fields": ["sql"]}}
    assert in_a_dag("x", {"dag": {"tasks": [task]}}) == DagPipelines()


MAPPED = """
from airflow.sdk import DAG, TaskGroup, task, task_group
from airflow_eos.operators import SparkStreamingOperator as Spark

@task
def places():
    return ["/later"]

for name in ("many", "others"):
    with DAG(name, schedule=None) as made:
        partial = Spark.partial(task_id="run", application="a.py", kafka_config_id="k")
        partial.expand(checkpoint_location=["/a", "/b"])
        Spark.partial(task_id="kwargs", application="a.py").expand_kwargs(
            [{"checkpoint_location": "/c", "storage_conn_id": "s"}, {"checkpoint_location": "/d"}]
        )
        Spark.partial(task_id="names", application="a.py", checkpoint_location="/x").expand(
            name=["one", "two"]
        )
        Spark.partial(task_id="later", application="a.py").expand(checkpoint_location=places())
        Spark.partial(task_id="template", application="a.py").expand(
            checkpoint_location=["/e", "{{ var.value.f }}"]
        )

        @task_group
        def group(where):
            Spark(task_id="run", application="a.py", checkpoint_location=where)

        group.expand(where=["/g", "/h"])
        with TaskGroup("plain"):
            Spark(task_id="run", application="a.py", checkpoint_location="/i")
    globals()[name] = made
"""


@pytest.fixture(scope="module")
def mapped(tmp_path_factory) -> dict[str, DagPipelines]:
    folder = tmp_path_factory.mktemp("mapped")
    (folder / "mapped.py").write_text(MAPPED)
    return serialized(folder / "mapped.py")


def test_a_mapped_task_has_a_pipeline_for_each_checkpoint(mapped):
    shown: dict[tuple[str, str], list[str]] = {}
    for each in joined(mapped, ()):
        shown.setdefault(each.key, []).append(each.checkpoint_location)
    assert {key[1]: sorted(of) for key, of in shown.items() if key[0] == "many"} == {
        "run": ["/a", "/b"],
        "kwargs": ["/c", "/d"],
        "names": ["/x"],
        "template": ["/e"],
        "group.run": ["/g", "/h"],
        "plain.run": ["/i"],
    }
    assert len({(each.key, each.checkpoint_location) for each in joined(mapped, ())}) == 18
    by_place = {each.checkpoint_location: each for each in mapped["many"].runs}
    assert by_place["/a"].kafka_config_id == "k", "what partial was given"
    assert by_place["/c"].storage_conn_id == "s", "what this one was given"
    assert by_place["/d"].storage_conn_id is None


def test_what_a_task_is_mapped_over_later_is_said_to_be_not_known(mapped):
    said = sorted(not_shown("many", mapped["many"], ()))
    assert [each.partition(" is not shown")[0] for each in said] == ["many.later", "many.template"]
    assert "known only when it runs" in said[0]


def test_the_setting_names_several_of_one_task_and_replaces_none_but_its_own(mapped):
    named = [{"dag_id": "many", "task_id": "run", "checkpoint_location": p} for p in ("/b", "/z")]
    every = joined(mapped, in_the_setting(json.dumps(named)))
    places = sorted(each.checkpoint_location for each in every if each.key == ("many", "run"))
    assert places == ["/a", "/b", "/z"]


# --- whose DAG a button starts


PLACE = "s3a://lake/pay"
RUN = {"task_id": "run", "template_fields": ["checkpoint_location", "application"]}
RECOVER = {"task_id": "recover", "template_fields": ["checkpoint_location", "allowed_actions"]}


def a_dag(
    name: str, task: dict[str, Any], *, bundle="ours", owner="ann", file="/dags/pay.py"
) -> DagPipelines:
    told = {**task, "checkpoint_location": PLACE, "owner": owner}
    return in_a_dag(name, {"dag": {"tasks": [told], "fileloc": file}}, bundle)


def recovers(**recovering: DagPipelines) -> tuple[str | None, list[str]]:
    dags = {"pay": a_dag("pay", RUN), **recovering}
    [pipeline] = joined(dags, ())
    said = recovery_of(dags, pipeline, SaidOf.of(dags))[1]
    return pipeline.recovery_dag_id, [said] if said else []


@pytest.mark.parametrize(
    "stranger", [{"bundle": "theirs"}, {"owner": "eve"}, {"bundle": None, "owner": ""}], ids=str
)
def test_a_dag_of_another_bundle_or_owner_takes_no_button_over(stranger):
    ours = a_dag("pay_recovery", RECOVER)
    assert recovers(pay_recovery=ours) == ("pay_recovery", [])
    theirs = a_dag("zz", RECOVER, **stranger)
    for name in ("aa", "zz"):
        assert recovers(pay_recovery=ours, **{name: theirs}) == ("pay_recovery", [])
    alone, [said] = recovers(zz=theirs)
    assert alone is None
    assert "(zz) is of another bundle or owner than pay" in said


def test_of_two_that_might_be_meant_the_one_of_its_file_is_and_else_none():
    beside, elsewhere = a_dag("r1", RECOVER), a_dag("r2", RECOVER, file="/dags/other.py")
    assert recovers(r1=beside, r2=elsewhere) == ("r1", [])
    both, [said] = recovers(r2=elsewhere, r3=elsewhere)
    assert both is None
    assert "several DAGs say that they recover it (r2, r3)" in said


def test_who_may_not_see_a_dag_does_not_hear_its_name_from_the_page():
    dags = {"pay": a_dag("pay", RUN), **{n: a_dag(n, RECOVER, owner=n) for n in ("eve", "zoe")}}
    [pipeline] = joined(dags, ())
    for may_see, names in (({"pay"}, "which you may not see"), ({"pay", "zoe"}, "zoe")):
        why = recovery_of(dags, pipeline, SaidOf.of(dags), may_see)[1]
        assert why is not None
        assert f"({names})" in why
        assert "eve" not in why


def test_the_setting_says_which_whoever_it_is_of():
    theirs = a_dag("zz", RECOVER, bundle="theirs")
    named = [{"dag_id": "pay", "checkpoint_location": PLACE, "recovery_dag_id": "zz"}]
    dags = {"pay": a_dag("pay", RUN), "zz": theirs}
    [pipeline] = joined(dags, in_the_setting(json.dumps(named)))
    assert pipeline.recovery_dag_id == "zz"


def test_the_watchdog_of_the_example_is_known_by_what_it_looks_at():
    said = serialized(ROOT / "dags" / "eos_orders.py")
    [orders] = joined(said, ())
    assert watchdogs(said, orders, SaidOf.of(said)) == ("eos_watchdog",)


def _a_task(**fields: Any) -> dict[str, Any]:
    task = {"task_id": "run", "template_fields": ["checkpoint_location", "application"], **fields}
    return {"dag": {"tasks": [{"__type": "operator", "__var": task}]}}


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint_location": "/x\ud800"},
        {"checkpoint_location": "/x", "template_fields": [[]]},
        {"checkpoint_location": "/x", "expand_input": []},
    ],
)
def test_a_dag_that_cannot_be_read_takes_no_other_from_the_page(fields):
    """Whoever may write a DAG file would take the page from everybody."""
    odd = in_a_dag("odd", _a_task(**fields))
    [why] = not_shown("odd", odd, ())
    assert "cannot be read" in why
    assert odd.runs == ()


def _mapped(**lists: int) -> dict[str, Any]:
    value = {name: [f"/{name}/{n}" for n in range(count)] for name, count in lists.items()}
    expand = {"type": "dict-of-lists", "value": {"__type": "dict", "__var": value}}
    return _a_task(expand_input=expand, partial_kwargs={})


def test_what_a_task_is_mapped_over_besides_costs_the_page_nothing():
    """The product of four lists of a hundred is a hundred million: the server would stand still."""
    found = in_a_dag("d", _mapped(checkpoint_location=3, application=100, name=100, conf=100))
    assert len(found.runs) == 3


def test_a_task_that_is_mapped_over_too_much_is_said_to_be():
    found = in_a_dag("d", _mapped(checkpoint_location=1000, kafka_config_id=1000))
    assert found.runs == ()
    [why] = not_shown("d", found, ())
    assert "is too much" in why


class Counted(dict[str, DagPipelines]):
    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_however_many_pipelines_there_are_they_cost_one_look_at_each_dag():
    """500 of them took the API server two seconds an answer, and a page asks every three."""

    def looks(count: int) -> int:
        dags = Counted()
        for n in range(count):
            run = PipelineReference(dag_id=f"d{n}", checkpoint_location=f"/{n}")
            dags[f"d{n}"] = DagPipelines(runs=(run,))
            dags[f"d{n}_recovery"] = DagPipelines(recovers=(f"/{n}",))
        found = joined(dags, ())
        assert [each.recovery_dag_id for each in found] == [f"d{n}_recovery" for n in range(count)]
        return dags.looks

    assert looks(50) == looks(5)


@pytest.mark.parametrize(
    ("dag_id", "says"),
    [
        ("eos_recovery", "eos_recovery, which recovers it, is paused: nobody does"),
        ("eos_orders_etl", "eos_orders_etl, which runs the app, is paused: nothing starts it"),
    ],
)
def test_the_page_says_which_dag_of_a_pipeline_is_paused(monkeypatch, dag_id, says):
    """Of a paused recovery it had no word: a dead pipeline waits for it for ever."""
    said = serialized(ROOT / "dags")
    monkeypatch.setattr(
        "airflow_eos.plugins.application.paused",
        lambda dag_ids: {each: each == dag_id for each in dag_ids},
    )

    def remarks() -> list[str]:
        listed, above = pipelines(said, set(said))
        assert not [each for each in above if "is paused" in each], "a wall of them hid the list"
        return [remark for each in listed for remark in each.remarks]

    assert [each for each in remarks() if says in each]
    monkeypatch.setattr("airflow_eos.plugins.application.paused", lambda _: {})
    assert remarks() == []


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_pipeline_knows_its_watchdogs_and_whether_they_are_paused(monkeypatch, is_paused):
    monkeypatch.setattr(
        "airflow_eos.plugins.application.paused", lambda dag_ids: dict.fromkeys(dag_ids, is_paused)
    )
    said = serialized(ROOT / "dags")
    listed, _ = pipelines(said, set(said))
    found = {each.dag_id: each.watchdogs for each in listed}
    assert found["eos_orders_etl"] == (("eos_watchdog", is_paused),)

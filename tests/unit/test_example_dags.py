"""The example DAGs find their app where they are put, and what is said to type works."""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyspark
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from airflow_eos.core.checkpoint import CheckpointStore, write_heartbeat
from airflow_eos.cuts import Cut, Position
from airflow_eos.events import SettledEvent
from airflow_eos.factory import eos_pipeline, recovery, watchdog
from tests.support.by_asset import ByAsset
from tests.support.watchdog import HALF_TIME, NO_ANSWER, STALL, WELL, Airflow, Looked, Watching
from tests.unit.ops.supervision.lives import beat as dead

ROOT = Path(__file__).parents[2]
HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
WHEEL = HATCH["build"]["targets"]["wheel"]
DEAD = "local-7"
CLEAN = {
    "duplicated": 0,
    "reordered": 0,
    "visible_undecided": 0,
    "unexpected": 0,
    "rows_in": 9,
    "rows_out": {"out": 9},
    "matched": 9,
    "unjudged": [],
    "offenders": [],
}


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture
def read(monkeypatch) -> Callable[[Path], ModuleType]:
    """The DAG file in this folder, as Airflow reads it."""

    def module(folder: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location("eos_orders", folder / "eos_orders.py")
        assert spec is not None
        assert spec.loader is not None
        made: ModuleType = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "eos_orders", made)
        spec.loader.exec_module(made)
        return made

    return module


@pytest.fixture
def beat() -> SimpleNamespace:
    """The last heartbeat of the driver that is to be replaced."""
    return SimpleNamespace(
        application_id=DEAD,
        phase="failed",
        drained_by=None,
        term=1,
        submission="s1",
        restart_heals=None,
    )


@pytest.fixture
def dags(read, monkeypatch, airflow, beat, tmp_path) -> ModuleType:
    for module in (watchdog, recovery):
        monkeypatch.setattr(module, "get_current_context", lambda: {"ti": airflow})
    monkeypatch.setattr(watchdog, "last_heartbeat", lambda _: beat)
    store = CheckpointStore.open(tmp_path)
    write_heartbeat(store, dead("failed", application_id=DEAD))
    monkeypatch.setattr(watchdog, "store_of", lambda _: store)
    made: ModuleType = read(ROOT / "dags")
    return made


@pytest.fixture
def look(dags, airflow, monkeypatch) -> Callable[..., Looked]:
    run = SimpleNamespace(run_id="scheduled__1", logical_date="1")
    return Watching(dags.eos_watchdog, airflow, run, monkeypatch).look


def resumed_as(dags: ModuleType, airflow: Airflow) -> str:
    airflow.answers["audit"] = CLEAN
    return f"resume__{dags.eos_recovery.get_task('verdict').python_callable()}"


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (None, "has no report"),
        ({**CLEAN, "duplicated": 1}, "duplicated"),
        ({**CLEAN, "unexpected": 1}, "unexpected"),
        ({**CLEAN, "matched": 0, "unjudged": [{"why": "no row has it"}]}, "no row has it"),
    ],
    ids=["none", "twice", "from nowhere", "nothing judged"],
)
def test_a_recovery_resumes_nothing_on_an_audit_without_an_answer(dags, airflow, report, says):
    airflow.answers["audit"] = report
    with pytest.raises(AirflowFailException, match=says):
        dags.eos_recovery.get_task("verdict").python_callable()


def test_what_retention_took_does_not_keep_a_recovery_from_its_end(dags, airflow):
    airflow.answers["audit"] = {**CLEAN, "unjudged": [{"why": "past retention"}]}
    assert dags.eos_recovery.get_task("verdict").python_callable()


@pytest.mark.parametrize(
    ("found", "expected"), [(WELL, False), (STALL, True), (HALF_TIME, True), (NO_ANSWER, False)]
)
def test_a_stall_and_a_transaction_at_half_time_are_recovered(look, found, expected):
    looked = look(found)
    assert bool(looked.started) is expected
    assert looked.state == ("green" if found is WELL else "red")


@pytest.mark.parametrize("found", [STALL, HALF_TIME])
@pytest.mark.parametrize("state", ["queued", "running"])
def test_no_second_recovery_is_asked_for_while_one_is_at_it(look, airflow, found, state):
    airflow.runs = {("eos_recovery", "manual__1"): state}
    assert look(found).started == []


@pytest.mark.parametrize("state", ["queued", "running"])
def test_no_second_recovery_while_the_resumed_app_has_yet_to_give_a_heartbeat(
    dags, look, airflow, state
):
    airflow.runs = {
        ("eos_recovery", "manual__1"): "success",
        ("eos_orders_etl", resumed_as(dags, airflow)): state,
    }
    assert look(STALL).started == []
    assert look(HALF_TIME).started == []


def test_a_resumed_app_that_has_died_in_its_turn_is_recovered_once_its_run_has_given_up(
    look, airflow
):
    """While its run goes on, that starts it again: another run would only wait behind it."""
    airflow.runs = {
        ("eos_recovery", "manual__1"): "failed",
        ("eos_orders_etl", "resume__local-6__0"): "running",
    }
    assert look(STALL).started == []
    airflow.runs["eos_orders_etl", "resume__local-6__0"] = "failed"
    assert look(STALL).started != []


@pytest.mark.parametrize("state", ["queued", "running", "success"])
def test_a_dead_driver_is_replaced_once_however_many_recoveries_saw_it_dead(dags, airflow, state):
    first = resumed_as(dags, airflow)
    airflow.runs = {("eos_orders_etl", first): state}
    assert resumed_as(dags, airflow) == first


def test_what_failed_while_it_drained_is_recovered_and_not_started_again(dags, look, airflow, beat):
    """Its promises are kept in time; that it is to stop, a person has said."""
    beat.drained_by = "ada"
    assert look(HALF_TIME).started != []
    with pytest.raises(AirflowSkipException, match="ada asked the app to stop, and it died"):
        resumed_as(dags, airflow)
    airflow.runs.clear()
    assert look(STALL).started == [], "or every minute, for nothing"


def test_a_replacement_that_failed_before_its_first_heartbeat_is_replaced_itself(dags, airflow):
    """A broker that was away for the minute of the start would keep the pipeline down for ever."""
    tried = []
    for _ in range(watchdog.STARTS):
        tried.append(resumed_as(dags, airflow))
        airflow.runs["eos_orders_etl", tried[-1]] = "failed"
    assert len(set(tried)) == watchdog.STARTS
    for _ in range(3):
        with pytest.raises(AirflowFailException, match="Nobody brings the pipeline back any more"):
            resumed_as(dags, airflow)  # not for ever, and red


def test_housekeeping_that_deletes_airflows_rows_gives_no_twenty_starts_more(
    dags, airflow, monkeypatch
):
    """`airflow db clean`: the count is in the checkpoint, where it does not reach."""
    tried = []
    for _ in range(watchdog.STARTS):
        tried.append(resumed_as(dags, airflow))
        run = SimpleNamespace(run_id=tried[-1], conf={})
        context = {"ti": airflow, "dag_run": run}
        monkeypatch.setattr(watchdog, "get_current_context", lambda c=context: c)
        watchdog.note_that_it_begins(dags.PIPELINE)
        airflow.runs.clear()
    assert len(set(tried)) == watchdog.STARTS
    with pytest.raises(AirflowFailException, match="Nobody brings the pipeline back any more"):
        resumed_as(dags, airflow)


def test_a_resumption_whose_rows_are_there_is_the_same_one_though_it_has_begun(
    dags, airflow, monkeypatch
):
    first = resumed_as(dags, airflow)
    context = {"ti": airflow, "dag_run": SimpleNamespace(run_id=first, conf={})}
    monkeypatch.setattr(watchdog, "get_current_context", lambda: context)
    watchdog.note_that_it_begins(dags.PIPELINE)
    airflow.runs = {("eos_orders_etl", first): "running"}
    assert resumed_as(dags, airflow) == first


def test_nobody_is_resumed_beside_a_run_that_starts_its_app_again(dags, airflow):
    airflow.runs = {("eos_orders_etl", "manual__1"): "running"}
    with pytest.raises(AirflowSkipException, match="a run of eos_orders_etl is under way"):
        resumed_as(dags, airflow)


def test_outputs_by_configuration_are_run_watched_and_recovered_alike(read, monkeypatch):
    """A watchdog that was not told of the database, or looks at the prefix alone, sees nothing."""
    outputs = [{"name": "totals", "kind": "postgres", "options": {"table": "totals"}}]
    given = {"outputs": outputs, "participant_conn_ids": {"totals": "shop"}}
    monkeypatch.setenv("EOS_ORDERS_ETL", json.dumps(given))
    dags = read(ROOT / "dags")
    etl, recovery, watchdog = dags.eos_orders_etl, dags.eos_recovery, dags.eos_watchdog
    run = etl.get_task("run")
    assert (run.outputs, run.transactional_id_prefix) == (outputs, "orders-etl")
    looking = [*map(recovery.get_task, ("plan", "execute")), watchdog.get_task("look")]
    for task in [run, *looking]:
        assert task.participant_conn_ids == {"totals": "shop"}, task.task_id
    assert [task.transactional_id_prefix for task in looking] == [None] * 3, "the checkpoint says"
    assert "audit" not in recovery.task_ids, "there are no topics of its own to look at"


def test_without_outputs_the_topics_are_audited_unless_that_is_too_much(dags):
    _, without, _ = eos_pipeline(**dags.DEFAULTS, audit=False)
    assert without.get_task("execute").downstream_task_ids == {"verdict"}
    recovery = dags.eos_recovery
    assert recovery.get_task("audit").downstream_task_ids == {"verdict"}
    assert recovery.get_task("audit").id_expression == "headers.order-id"
    assert recovery.get_task("plan").transactional_id_prefix == "orders-etl"


def test_a_second_pipeline_is_a_call_and_not_a_copy(dags):
    settings = {**dags.DEFAULTS, "dag_id": "clicks", "recovery_dag_id": None}
    settings |= {"watchdog_dag_id": None, "checkpoint": "s3://b/clicks", "prefix": "clicks"}
    run, recovery, watchdog = eos_pipeline(**settings)
    assert [each.dag_id for each in (run, recovery, watchdog)] == [
        "clicks",
        "clicks_recovery",
        "clicks_watchdog",
    ]
    assert recovery.get_task("resume").trigger_dag_id == "clicks"
    assert watchdog.get_task("look")._pipeline.recovery == "clicks_recovery"
    assert run.get_task("run").checkpoint_location == "s3://b/clicks"


def test_a_run_may_be_started_with_another_trigger_and_limit(dags):
    run, *_ = eos_pipeline(**dags.DEFAULTS, max_offsets_per_trigger=500)
    task = copy.copy(run.get_task("run"))
    given = {"trigger": "available-now", "max_offsets_per_trigger": 7}
    task.render_template_fields({"params": given}, run.get_template_env())
    assert task.application_args[-4:] == [
        "--trigger",
        "available-now",
        "--max-offsets-per-trigger",
        "7",
    ]
    assert {name: run.params[name] for name in given} == {
        "trigger": "1 second",
        "max_offsets_per_trigger": 500,
    }
    assert "--max-offsets-per-trigger" not in dags.eos_orders_etl.get_task("run").application_args


def test_the_dag_finds_its_app_in_a_clone(read):
    assert Path(read(ROOT / "dags").PIPELINE.application) == ROOT / "spark_apps/orders_etl.py"


def test_the_dag_finds_its_app_in_a_wheel_and_where_it_is_copied_to(read, tmp_path):
    """Of the wheel, pyproject.toml says what lands where; the README copies it as it is."""
    sources = WHEEL["sources"]
    assert set(WHEEL["only-include"]) == {"airflow_eos", *sources}
    assert not (ROOT / "airflow_eos" / "examples").exists(), "else the two would be mixed"
    for source, target in sources.items():
        shutil.copytree(ROOT / source, tmp_path / target)
    [folder] = {(tmp_path / target).parent for target in sources.values()}
    home = tmp_path / "airflow"
    shutil.copytree(folder, home)
    assert f"/{folder.name}/." in (ROOT / "README.md").read_text()

    for place in (folder, home):
        app = Path(read(place / "dags").PIPELINE.application)
        assert app.is_relative_to(place)
        assert app.exists()


def test_no_airflow_runs_the_examples_by_itself():
    """Newer ones load the folder ``example_dags`` of each provider; ours has a watchdog in it."""
    places = [path.name for path in (ROOT / "airflow_eos").iterdir()]
    assert not [place for place in [*places, *WHEEL["sources"].values()] if "example_dags" in place]


# --- The DAGs that run because rows are there -----------------------------------------------------


FILE = Path(__file__).parents[2] / "dags" / "eos_settled.py"


def event(first: int, last: int) -> SettledEvent:
    return SettledEvent(
        pipeline="p",
        from_batch=first,
        to_batch=last,
        start={"0": {"orders": {"0": 10 * first}}},
        end={"0": {"orders": {"0": 10 * (last + 1)}}},
        rows={"sink": 10 * (last + 1 - first)},
        watermark_ms=None,
        settled_at_ms=1,
    )


def cut_of(event: SettledEvent) -> Any:
    archive = Position("files", 0, {"stamp": event.to_batch})
    cut = Cut(
        batch_id=event.to_batch, pipeline="p", incomplete=None, positions={"archive": archive}
    )
    return cut.as_json()


@pytest.fixture(scope="module")
def settled_dags() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eos_settled", FILE)
    assert spec is not None
    made: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def run(settled_dags, monkeypatch) -> Callable[..., Any]:
    """A task of a DAG, in a run that these events have started."""

    def go(dag_id: str, task_id: str, *events: SettledEvent, **params: Any) -> Any:
        told = [SimpleNamespace(extra=each.as_extra() | {"cut": cut_of(each)}) for each in events]
        foreign = SimpleNamespace(extra={"made": "by hand"})
        context = {
            "triggering_asset_events": ByAsset(settled_dags.SETTLED, [*reversed(told), foreign]),
            "params": params,
        }
        monkeypatch.setattr(settled_dags, "get_current_context", lambda: context)
        return getattr(settled_dags, dag_id)().get_task(task_id).python_callable()

    return go


def test_a_run_gets_the_ranges_it_was_started_by_in_their_order(run):
    assert run("eos_settled_report", "report", event(0, 4), event(5, 5)) == ["p/0-4", "p/5-5"]


def test_of_all_runs_one_acts_when_rows_up_to_an_offset_are_there(run):
    wanted = {"orders": {"0": 55}}
    ranges = [(0, 3), (4, 4), (5, 8), (9, 9)]
    acted = [
        span for span in ranges if run("eos_rows_are_there", "are_there", event(*span), upto=wanted)
    ]
    assert acted == [(5, 8)]


def test_several_events_of_one_run_are_looked_at_one_by_one(run):
    events = [event(0, 3), event(4, 6), event(7, 9)]
    assert run("eos_rows_are_there", "are_there", *events, upto={"orders": {"0": 55}})


def test_a_run_reads_up_to_the_cut_of_its_own_newest_event(run):
    """Not up to the checkpoint's newest: the pipeline goes on while the run waits for its turn."""
    assert run("eos_settled_cut", "read", event(0, 4), event(5, 5)) == {"archive": {"stamp": 5}}


def test_the_emitter_is_alone_waits_and_goes_on_for_ever(settled_dags):
    emitter = settled_dags.eos_settled.get_task("emit")
    assert settled_dags.eos_settled.task_ids == ["emit"]
    assert (emitter.deferrable, emitter.max_active_tis_per_dag) == (True, 1)
    assert settled_dags.eos_settled.start_date is not None, (
        "else @continuous stops after its first run"
    )
    assert settled_dags.eos_settled.max_active_runs == 1


# --- What the README and the example DAG say to type works with the Spark that the extra brings ---


TEXTS = [
    "README.md",
    "dags/eos_examples.py",
    "dags/eos_orders.py",
    "docs/airflow.md",
    "docs/examples.md",
    "spark_apps/avro_windows.py",
    "spark_apps/orders_etl.py",
]
EXTRA = re.search(r'"pyspark==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
PINNED = EXTRA[1] if EXTRA else None

of_the_pinned_spark = pytest.mark.skipif(
    version("pyspark") != PINNED, reason="the examples name the version that the extra pins"
)


@of_the_pinned_spark
@pytest.mark.parametrize("text", TEXTS)
def test_the_packages_that_an_example_names_fit_pyspark_and_its_hadoop(text):
    [client] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    named = (ROOT / text).read_text()
    for connector in re.findall(r"spark-sql-kafka-0-10_2\.13:([\d.]+\d)", named):
        assert connector == PINNED
    for avro in re.findall(r"spark-avro_2\.13:([\d.]+\d)", named):
        assert avro == PINNED
    for aws in re.findall(r"hadoop-aws:([\d.]+\d)", named):
        assert aws == hadoop


@pytest.mark.parametrize("text", [*TEXTS, "airflow_eos/cli/options.py"])
def test_no_example_uses_a_scheme_that_plain_spark_does_not_know(text):
    """Spark's S3 is s3a://, in hadoop-aws; s3:// is Amazon's own EMR."""
    assert "s3://" not in (ROOT / text).read_text()


def test_every_python_block_of_the_readme_can_be_parsed():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        ast.parse(block)

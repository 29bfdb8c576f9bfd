"""Values of YAML, JSON and templates: taken for what they say, or refused by name and value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, XComArg
from typer.testing import CliRunner

from airflow_eos.cli.app import app as cli
from airflow_eos.core.arguments import (
    Anything,
    Duration,
    Flag,
    Number,
    Text,
    Texted,
    Texts,
    TimeSpan,
    Word,
    arguments_of,
)
from airflow_eos.core.checkpoint.locations import located
from airflow_eos.core.delivery.policy import (
    CheckpointPolicy,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
)
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.factory import Pipeline, eos_pipeline
from airflow_eos.hooks.arguments import own_arguments
from airflow_eos.operators import (
    AuditOperator,
    EmitSettledBatchesOperator,
    PlanRecoveryOperator,
    RecoverTransactionsOperator,
    RehearseOperator,
    SparkStreamingOperator,
)
from airflow_eos.sensors import (
    BlockedTopicSensor,
    CheckpointProgressSensor,
    TransactionTimeoutSensor,
)
from airflow_eos.sinks import (
    ConsumerGroup,
    DeltaSink,
    FileSink,
    KafkaSink,
    MySqlSink,
    Output,
    PostgresSink,
    WriteAheadSink,
)
from airflow_eos.sinks.app import App, argument_parser
from airflow_eos.sources import ArrowKafkaSource

NAN, INF = float("nan"), float("inf")
PIPELINE: dict[str, Any] = {
    "dag_id": "e",
    "application": "a.py",
    "checkpoint": "/d",
    "prefix": "p",
    "input_topic": "i",
    "output_topic": "o",
}
KINDS = (
    AuditOperator,
    BlockedTopicSensor,
    CheckpointProgressSensor,
    EmitSettledBatchesOperator,
    PlanRecoveryOperator,
    RecoverTransactionsOperator,
    RehearseOperator,
    SparkStreamingOperator,
    TransactionTimeoutSensor,
)
MINUTE = timedelta(minutes=1)


def annotated(
    *,
    flag: bool,
    number: int | str | XComArg | None,
    limited: Annotated[int, Number(least=1)] | None,
    text: str | XComArg,
    several: Annotated[str | None, Text(several=True)],
    word: Literal["drain", "kill"] | None,
    texts: Sequence[str],
    mapping: Mapping[str, str] | XComArg | None,
    span: Duration | None,
    narrowed: Annotated[Duration, TimeSpan(words=("now",))],
    whatever: datetime | str | None,
    **others: Any,
) -> None:
    """Arguments of all types."""
    del flag, number, limited, text, several, word, texts, mapping, span, narrowed, whatever, others


BY_ANNOTATION = {
    "flag": (Flag(), False),
    "number": (Number(), True),
    "limited": (Number(least=1), True),
    "text": (Text(), False),
    "several": (Text(several=True), True),
    "word": (Word(words=("drain", "kill")), True),
    "texts": (Texts(), False),
    "mapping": (Texted(), True),
    "span": (TimeSpan(), True),
    "narrowed": (TimeSpan(words=("now",)), False),
    "whatever": (Anything(), True),
}


def streaming(**given: Any) -> SparkStreamingOperator:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        return SparkStreamingOperator(
            **{"task_id": "run", "application": "a.py", "checkpoint_location": "/d", **given}
        )


@pytest.mark.parametrize(
    "value",
    [
        *(60, 60.0, "60", "60 seconds", " 60 s", "1 minute", "1 MINUTE", "interval 1 minute"),
        *(MINUTE, "59 seconds 1000 ms", "0.5 minutes 30 seconds", "60000 milliseconds"),
    ],
)
def test_a_duration_is_said_in_one_of_three_ways_everywhere(value):
    assert own_arguments(SparkStreamingOperator)["patience"].of("patience", value) == MINUTE
    assert streaming(batch_within=value).budget.batch_within == MINUTE
    assert Pipeline(**PIPELINE, stall_after=value).stall_after == MINUTE
    assert FixedDelay(pause=value).pause == MINUTE
    assert CheckpointPolicy(min_pause=value).min_pause == MINUTE
    if not isinstance(value, timedelta):
        args = argument_parser("", prefix="p").parse_args(
            ["--checkpoint", "/d", "--bootstrap-servers", "h:1", "--trigger", str(value)]
        )
        assert App.of(args).trigger == {"processingTime": "1 minute"}


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            "",
            " ",
            NAN,
            INF,
            -INF,
            -1,
            "-1 second",
            timedelta(-1),
            True,
            [60],
            {"seconds": 1},
        ),
        *("1 fortnight", "10 seconds later", "ten", "1 2 seconds", "P1D", "{{ ds }}", 1e300),
        *("9999999999 days", "1e3", b"60", "\N{ARABIC-INDIC DIGIT ONE} second"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SparkStreamingOperator, "patience"),
        (BlockedTopicSensor, "max_age"),
        (SparkStreamingOperator, "transaction_timeout"),
    ],
)
def test_what_is_no_duration_is_refused_by_its_name_and_value(kind, name, value):
    with pytest.raises(ConfigurationError) as refused:
        own_arguments(kind)[name].of(name, value)
    assert str(refused.value).startswith(f"{name}={repr(value)[:100]}: expected a duration")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cancel": "stop"}, "cancel='stop': expected one of 'drain', 'kill', 'leave'"),
        ({"cancel": "drian"}, "did you mean 'drain'?"),
        ({"cancel": None}, "cancel=None"),
        ({"cancel": ""}, "cancel=''"),
        ({"cancel": True}, "cancel=True"),
        ({"guarantee": "exactly"}, "did you mean 'exactly_once'?"),
        ({"guarantee": ["exactly_once"]}, "guarantee=['exactly_once']"),
        ({"deploy_mode": "clustered"}, "did you mean 'cluster'?"),
        ({"deferrable": "maybe"}, "deferrable='maybe': expected True or False"),
        ({"deferrable": 1}, "deferrable=1"),
        ({"ship_package": None}, "ship_package=None"),
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"max_restarts": 1.5}, "max_restarts=1.5: expected an integer"),
        ({"max_restarts": "many"}, "max_restarts='many'"),
        ({"max_restarts": "9" * 5000}, "max_restarts='999"),
        ({"max_restarts": 10**400}, "max_restarts=1000"),
        ({"transactional_id_prefix": "None"}, "a template has rendered to nothing"),
        ({"checkpoint_location": "/d\n/e"}, "checkpoint_location='/d\\n/e'"),
        ({"num_executors": 0}, "num_executors=0: expected an integer from 1"),
        ({"kafka_config_id": ""}, "kafka_config_id=''"),
        ({"checkpoint_location": None}, "checkpoint_location=None"),
        ({"checkpoint_location": ["/d"]}, "checkpoint_location=['/d']"),
        ({"checkpoint_location": True}, "checkpoint_location=True"),
        ({"transactional_id_prefix": 1.5}, "transactional_id_prefix=1.5"),
        ({"conf": "spark.x=1"}, "conf='spark.x=1': expected a mapping"),
        ({"conf": {"spark.x": None}}, "conf['spark.x']=None"),
        ({"env_vars": ["A=b"]}, "env_vars=['A=b']"),
        ({"application_args": "--a b"}, "application_args='--a b': expected a list"),
        ({"application_args": [["--a"]]}, "application_args=['--a']"),
        ({"patience": "{{ var.value.patience }}"}, "it is no template field"),
        ({"cancel": "{{ params.cancel }}"}, "it is no template field"),
    ],
    ids=str,
)
def test_what_an_argument_cannot_be_is_refused_where_it_is_given(given, says):
    with pytest.raises(ConfigurationError) as refused:
        streaming(**given)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("storage_options", '{"azure_account_key": "hunter2"}'),  # not rendered natively
        ("conf", "{'spark.hadoop.fs.s3a.secret.key': 'hunter2'}"),
        ("conf", {"spark.hadoop.fs.s3a.secret.key": ["hunter2"]}),
        ("env_vars", [{"DB_PASSWORD": "hunter2"}]),
    ],
)
def test_a_password_is_not_repeated_where_its_argument_is_refused(name, given):
    with pytest.raises(ConfigurationError, match="expected a mapping of names to texts") as refused:
        own_arguments(SparkStreamingOperator)[name].of(name, given)
    assert str(refused.value).startswith(name)
    assert "hunter2" not in str(refused.value)


def test_words_are_read_without_regard_to_case_and_flags_as_words():
    made = streaming(cancel="Leave", guarantee="Exactly-Once", deferrable="False")
    assert (made.cancel, made.guarantee, made.deferrable) == ("leave", "exactly_once", False)
    assert streaming(deferrable="true").deferrable is True
    assert streaming(checkpoint_location=Path("/d")).checkpoint_location == "/d"
    assert streaming(max_restarts="2").restart == FixedDelay(2)


def test_the_end_of_a_line_that_a_template_brought_is_no_part_of_a_name():
    assert streaming(checkpoint_location=" /d\n").checkpoint_location == "/d"


def test_what_a_template_makes_of_nothing_is_no_name():
    """A sensor would look at a prefix of that name, where nothing is ever open."""
    X["v"] = None
    with pytest.raises(AirflowFailException, match="a template has rendered to nothing"):
        rendered(native=False, storage_conn_id="{{ x.v }}")
    assert rendered(storage_conn_id="{{ x.v }}").storage_conn_id is None


def rendered(**given: Any) -> SparkStreamingOperator:
    native = given.pop("native", True)
    with DAG("d", schedule=None, render_template_as_native_obj=native):
        task = SparkStreamingOperator(
            **{"task_id": "run", "application": "a.py", "checkpoint_location": "/d", **given}
        )
    context: Any = {"x": X}
    task.render_template_fields(context)
    return task


X: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("said", "x", "means"),
    [
        ("{{ x.v }}", "20260105", "20260105"),
        ("{{ x.v }}", 20260105, "20260105"),
        ("etl-{{ x.v }}", "20260105", "etl-20260105"),
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_a_text_that_is_rendered_natively_to_a_number_is_that_text(said, x, means, native):
    X["v"] = x
    assert rendered(native=native, transactional_id_prefix=said).transactional_id_prefix == means


@pytest.mark.parametrize(
    ("field", "x", "says"),
    [
        ("transactional_id_prefix", "None", "transactional_id_prefix=None"),
        ("checkpoint_location", "None", "checkpoint_location=None"),
        ("checkpoint_location", "", "checkpoint_location=''"),
        ("checkpoint_location", "True", "checkpoint_location=True"),
        ("checkpoint_location", "['/d']", "checkpoint_location=['/d']"),
        ("checkpoint_location", "1.5", "checkpoint_location=1.5"),
        ("checkpoint_location", "/d\x1b[2J", "checkpoint_location='/d\\x1b[2J'"),
        ("checkpoint_location", "{{ y }}", "rendered to another template"),
        ("guarantee", "exactly", "did you mean 'exactly_once'?"),
        ("num_executors", "-2", "num_executors=-2"),
        ("conf", "[1]", "conf=[1]"),
    ],
)
def test_what_a_template_gives_is_checked_again_and_fails_for_good(field, x, says):
    X["v"] = x
    if field == "transactional_id_prefix":
        assert rendered(**{field: "{{ x.v }}"}).transactional_id_prefix is None, "its default"
        return
    with pytest.raises(AirflowFailException) as refused:
        rendered(**{field: "{{ x.v }}"})
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (CheckpointProgressSensor, "since_batch"),
        (CheckpointProgressSensor, "batch_id"),
        (CheckpointProgressSensor, "since"),
        (RecoverTransactionsOperator, "plan"),
        (SparkStreamingOperator, "outputs"),
        (AuditOperator, "checkpoint_location"),
    ],
)
def test_a_question_that_rendered_to_nothing_is_not_one_that_nobody_asked(kind, field):
    """Before the first batch there is no last one: who waited for the next was done at once."""
    given = {
        SparkStreamingOperator: {"application": "a.py"},
        AuditOperator: {"input_topic": "i", "output_topic": "o"},
    }.get(kind, {})
    with DAG("d", schedule=None, render_template_as_native_obj=True):
        task = kind(**{"task_id": "t", "checkpoint_location": "/d", **given, field: "{{ x.v }}"})
    X["v"] = None
    context: Any = {"x": X}
    with pytest.raises(AirflowFailException, match=f"{field}=None.*has rendered to nothing"):
        task.render_template_fields(context)


def test_another_tasks_output_is_taken_where_a_template_is_and_nowhere_else():
    with DAG("d", schedule=None):
        plan = PlanRecoveryOperator(task_id="plan", checkpoint_location="/d")
        output: Any = plan.output
        asks = CheckpointProgressSensor(
            task_id="p", checkpoint_location="/d", since_batch=plan.output
        )
        RecoverTransactionsOperator(task_id="r", checkpoint_location="/d", plan=plan.output)
        with pytest.raises(ConfigurationError, match="max_age=XComArg"):
            CheckpointProgressSensor(task_id="q", checkpoint_location="/d", max_age=output)
    assert asks.upstream_task_ids == {"plan"}


ANYTHING = {"outputs", "pipeline", "plan", "since", "spark_submit", "watchdog_schedule"}
"""Arguments whose values are checked where they are used."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_argument_of_an_operator_or_sensor_says_its_type(kind):
    own = own_arguments(kind)
    assert len(own) > 4
    assert {name for name, each in own.items() if each.type == Anything()} <= ANYTHING
    assert set(kind.template_fields) <= own.keys()
    assert set(kind.template_fields) == {n for n, each in own.items() if XComArg in each.others}


def test_every_setting_of_a_pipeline_says_its_type():
    own = arguments_of(Pipeline)
    assert own.keys() == {each.name for each in dataclasses.fields(Pipeline)}
    assert {name for name, each in own.items() if each.type == Anything()} <= ANYTHING


@pytest.mark.parametrize(("name", "type_"), BY_ANNOTATION.items(), ids=str)
def test_an_annotation_says_the_type_of_its_argument(name, type_):
    argument = arguments_of(annotated)[name]
    assert (argument.type, argument.may_be_none) == type_


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stall_aftr": 1}, "did you mean 'stall_after'?"),
        ({"quite_else": 1}, "has no 'quite_else'. It takes dag_id, recovery_dag_id"),
        ({"trigger": "sometimes"}, "trigger='sometimes'"),
        ({"trigger": -1}, "trigger=-1"),
        ({"conf": "x"}, "conf='x'"),
        ({"max_restarts": "x"}, "max_restarts='x'"),
        ({"prefix": None}, "prefix=None"),
        ({"input_topic": ["a", "b"]}, "input_topic=['a', 'b']: expected a text"),
        ({"stall_after": "{{ var.value.x }}"}, "stall_after='{{ var.value.x }}'"),
        ({"transaction_timeout": 0}, "transaction_timeout=0"),
        ({"tags": "team-a"}, "tags='team-a': expected a list"),
    ],
    ids=str,
)
def test_what_a_setting_cannot_be_is_refused_where_it_is_given(given, says):
    with pytest.raises(ConfigurationError) as refused:
        eos_pipeline(**{**PIPELINE, **given})
    assert says.lower() in str(refused.value).lower()


def test_available_now_is_said_in_the_place_of_a_trigger():
    made = Pipeline(**PIPELINE, trigger="Available-Now")
    assert (made.params["trigger"], made.trigger_interval) == (
        "available-now",
        timedelta(seconds=1),
    )
    assert Pipeline(**PIPELINE, trigger=10).params["trigger"] == "10 seconds"
    args = argument_parser("", prefix="p").parse_args(
        ["--checkpoint", "/d", "--bootstrap-servers", "h:1", "--trigger", "available-now"]
    )
    assert App.of(args).trigger == {"availableNow": True}


def test_a_setting_that_is_a_template_waits_for_its_task():
    assert Pipeline(**{**PIPELINE, "checkpoint": "{{ var.value.lake }}/a"}).checkpoint[0] == "{"


@pytest.mark.parametrize(
    "make",
    [
        lambda v: ExponentialDelay(initial=v),
        lambda v: FailureRate(within=v),
        lambda v: CheckpointPolicy(timeout=v),
        lambda v: CheckpointPolicy(interval=v),
    ],
)
@pytest.mark.parametrize("value", [0, "0 seconds", NAN, "1 fortnight", -1])
def test_a_policy_takes_no_span_that_is_none(make, value):
    with pytest.raises(ConfigurationError, match="expected a duration above 0"):
        make(value)


@pytest.mark.parametrize(
    ("line", "fine"),
    [
        (["drain", "/nowhere", "--wait", "1 fortnight"], False),
        (["status", "/nowhere", "--interval", "0"], False),
        (["plan", "/nowhere", "--timeout", "nan"], False),
        (["doctor", "/nowhere", "--transaction-timeout", "15 minuts"], False),
        (["drain", "/nowhere", "--wait", "1 minute"], True),
        (["drain", "/nowhere", "--wait", "60"], True),
    ],
    ids=str,
)
def test_a_duration_of_the_command_line_is_a_number_or_a_text_with_its_unit(line, fine, tmp_path):
    line[1] = str(tmp_path)
    done = CliRunner().invoke(cli, line)
    assert isinstance(done.exception, ConfigurationError)
    assert ("expected a duration" in str(done.exception)) is not fine


NOTHING: Any = None
FUNCTION: Any = print
NO_TEXT = {
    "transactional id prefix": lambda: KafkaSink("b:1", topic="t", transactional_id_prefix=NOTHING),
    "gid prefix": lambda: PostgresSink("host=b", table="t", gid_prefix=NOTHING),
    "prefix": lambda: MySqlSink("mysql://u:p@b/d", table="t", prefix=NOTHING),
    "application id": lambda: DeltaSink("/t", application_id=NOTHING),
    "participant": lambda: Output(NOTHING, FileSink("/rows")),
    "a function instead of its name": lambda: WriteAheadSink(FUNCTION),
    "folder": lambda: FileSink(NOTHING),
    "table": lambda: DeltaSink(NOTHING, application_id="etl"),
    "checkpoint": lambda: located(NOTHING),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_a_name_that_is_no_text_is_refused_as_one_that_is_malformed(name):
    """As a variable that is not set gives it: not by a trace of ``re``."""
    with pytest.raises((ConfigurationError, StoreError), match=r"None|built-?in"):
        NO_TEXT[name]()


NO_COLUMN: Any = [1]
NO_COLUMNS: Any = 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: FileSink("/rows", partition_by=NO_COLUMN),
            r"partition_by=\[1\]: expected a list of columns",
        ),
        (
            lambda: FileSink("/rows", partition_by=NO_COLUMNS),
            "partition_by=1: expected a list of columns",
        ),
    ],
    ids=["a number", "no sequence"],
)
def test_what_is_no_name_of_a_column_is_refused_by_its_value(make, says):
    """It was Python's own error, of a line of ours."""
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_a_place_may_be_a_python_path():
    """Spark takes one for a checkpoint, too."""
    place: Any = Path("/data/orders")
    assert FileSink(place) == FileSink(str(place))
    assert DeltaSink(place, application_id="etl") == DeltaSink(str(place), application_id="etl")
    assert located(place) == located(str(place))


@pytest.mark.parametrize("given", [{"sasl.password": "hidden"}, "", NOTHING], ids=str)
@pytest.mark.parametrize(
    "of",
    [
        lambda given: KafkaSink(given, topic="t", transactional_id_prefix="p"),
        lambda given: ArrowKafkaSource(given, "t"),
        lambda given: ConsumerGroup("g", given),
    ],
    ids=["sink", "source", "group"],
)
def test_settings_in_the_place_of_servers_are_refused_and_not_shown(of, given):
    """``repr`` of a sink shows its servers."""
    with pytest.raises(ConfigurationError, match="bootstrap_servers: expected") as refused:
        of(given)
    assert "hidden" not in str(refused.value)

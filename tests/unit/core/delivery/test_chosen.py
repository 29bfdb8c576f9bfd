"""Outputs, guarantee and sources by configuration: what is made of them, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from airflow_eos.core.delivery import options as kinds
from airflow_eos.core.delivery import source as topics
from airflow_eos.core.delivery.configured import OutputConfig, as_json
from airflow_eos.core.delivery.options import AppFacts, SinkOptions
from airflow_eos.core.delivery.port import SPARK
from airflow_eos.core.delivery.source import (
    StreamSource,
    check_sources,
    require_one_cluster,
    require_replayable,
)
from airflow_eos.core.participants import KINDS
from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.preflight import Durability
from airflow_eos.kinds.upsert.sink import HBaseUpsert, PostgresUpsert, RedisUpsert
from airflow_eos.sinks import (
    DeltaSink,
    FileSink,
    IcebergSink,
    KafkaSink,
    MySqlSink,
    Output,
    PostgresSink,
    UpsertSink,
    WriteAheadSink,
)

PASSWORD = "hunter-two-and-a-half"
DSN = f"host=db dbname=shop password={PASSWORD}"
APP = AppFacts(
    kafka=KafkaSettings.from_librdkafka({"bootstrap.servers": "kafka:9092", "client.id": "etl"}),
    prefix="etl",
    transaction_timeout=timedelta(minutes=10),
    batch_within=timedelta(seconds=30),
    recover_within=timedelta(minutes=4),
)
TIMES = ("transaction_timeout", "batch_within", "recover_within")
TOPIC = {"name": "orders", "kind": "kafka", "topic": "orders.clean"}
TABLE = {"name": "totals", "kind": "postgres", "table": "totals"}


def made(*given: object, reach: dict[str, Any] | None = None) -> tuple[Output, ...]:
    return OutputConfig.of("exactly_once", list(given)).outputs(APP, reach or {})


def sink(given: dict[str, Any], how: object = None) -> Any:
    [output] = made(given, reach={} if how is None else {given["name"]: how})
    assert output.sink.name == given["name"]
    return output.sink


def refused(*given: object, reach: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        made(*given, reach=reach)
    assert PASSWORD not in str(refusal.value)
    return str(refusal.value)


# --- what is made


def test_kafka_goes_by_the_apps_cluster_prefix_and_times():
    assert sink(TOPIC) == KafkaSink(
        "kafka:9092",
        "orders.clean",
        "etl",
        transaction_timeout=timedelta(minutes=10),
        batch_within=timedelta(seconds=30),
        recover_within=timedelta(minutes=4),
        kafka_config=APP.kafka.config(),
        name="orders",
    )


def test_kafka_of_another_cluster_with_options_of_its_own():
    found = sink(
        {
            **TOPIC,
            "transactional_id_prefix": "far",
            "compression": "gzip",
            "producer": "librdkafka",
        },
        {"bootstrap.servers": "far:9092"},
    )
    assert found.bootstrap_servers == "far:9092"
    assert (found.transactional_id_prefix, found.compression) == ("far", "gzip")
    assert found.producer == "librdkafka"


def test_files(tmp_path):
    given = {"name": "lake", "kind": "files", "folder": str(tmp_path), "compression": "snappy"}
    assert sink(given) == FileSink(str(tmp_path), compression="snappy", name="lake")


@pytest.mark.parametrize("how", [DSN, {"host": "db", "dbname": "shop", "password": PASSWORD}])
def test_postgres(how):
    found = sink(
        {**TABLE, "two_phase": False, "tasks": 8, "lock_timeout": "1 minute", "schema": "eos"}, how
    )
    assert isinstance(found, PostgresSink)
    assert PASSWORD in found.dsn
    assert (found.table, found.gid_prefix, found.two_phase) == ("totals", "etl", False)
    assert (found.tasks, found.lock_timeout, found.schema) == (8, timedelta(minutes=1), "eos")
    assert found.answer_within == PostgresSink.answer_within


def test_mysql():
    given = {"name": "totals", "kind": "mysql", "table": "totals", "lock_timeout": "1 minute"}
    url = f"mysql://etl:{PASSWORD}@db:3306/shop"
    found = sink(given, url)
    assert found == MySqlSink(
        url, "totals", "etl", lock_timeout=timedelta(minutes=1), name="totals"
    )


def test_upserts():
    given = {"name": "now", "kind": "upsert", "system": "redis", "target": "now:", "key": ["id"]}
    url = f"redis://:{PASSWORD}@redis:6379/0"
    assert sink(given, url) == UpsertSink(RedisUpsert(url, "now:"), ["id"], name="now")
    table = {**given, "system": "postgres", "target": "now", "deleted": "gone"}
    expected = UpsertSink(PostgresUpsert(DSN, "now"), ["id"], deleted="gone", name="now")
    assert sink(table, DSN) == expected
    assert not sink({**given, "staged": "false"}, url).staged
    family = {**given, "system": "hbase", "target": "shop:now/f"}
    expected = UpsertSink(HBaseUpsert("http://hbase:8080", "shop:now/f"), ["id"], name="now")
    assert sink(family, {"url": "http://hbase:8080"}) == expected


def test_a_function_is_named_where_a_recovery_finds_it():
    given = {"name": "mails", "kind": "wal"}
    told = {"deliver": "shop.mails:send", "reach": PASSWORD}
    assert sink(given, "shop.mails:send") == WriteAheadSink("shop.mails:send", name="mails")
    assert sink(given, told) == WriteAheadSink("shop.mails:send", name="mails", reach=PASSWORD)


def test_tables_of_a_lake_know_the_output_by_prefix_and_name(tmp_path):
    delta = {"name": "d", "kind": "delta", "table_uri": str(tmp_path)}
    iceberg = {"name": "i", "kind": "iceberg", "identifier": "shop.orders", "catalog_name": "c"}
    assert sink(delta) == DeltaSink(str(tmp_path), application_id="etl-d", name="d")
    assert sink({**delta, "application_id": "x"}).application_id == "x"
    assert sink(iceberg, {"uri": "sqlite://"}) == IcebergSink(
        "shop.orders", {"uri": "sqlite://"}, application_id="etl-i", catalog_name="c", name="i"
    )


def test_every_kind_that_can_be_decided_on_can_be_chosen():
    for kind in KINDS:
        if kind == "consumer_group":  # takes no rows
            continue
        assert issubclass(kinds.options_of(kind), SinkOptions)


@pytest.mark.parametrize(
    ("kind", "of", "others"),
    [
        ("kafka", KafkaSink, {"bootstrap_servers", "kafka_config", "watched", *TIMES}),
        ("files", FileSink, {"storage_options"}),
        ("postgres", PostgresSink, {"dsn"}),
        ("mysql", MySqlSink, {"url"}),
        ("wal", WriteAheadSink, {"deliver", "reach"}),
        ("delta", DeltaSink, {"storage_options", "partitions"}),
        ("iceberg", IcebergSink, {"catalog", "folder", "metadata", "storage_options", "vended"}),
    ],
)
def test_a_kind_has_all_options_of_its_sink_but_those_that_come_another_way(kind, of, others):
    known = {each.name for each in fields(of)} - {"name", "store"} - others
    assert set(kinds.options_of(kind).__struct_fields__) == known


def test_a_connection_is_by_name_or_else_by_kind():
    other = {**TABLE, "name": "others", "gid_prefix": "other"}
    outputs = made(TABLE, other, reach={"postgres": "host=all", "others": "host=other"})
    assert [output.sink.dsn for output in outputs] == ["host=all", "host=other"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", ["struct(key)", ["key", "amount"], None])
def test_rows_are_sql_text(rows):
    [output] = made({**TOPIC, "rows": rows})
    assert output.rows == (tuple(rows) if isinstance(rows, list) else rows)


def test_rows_are_kept_where_it_is_said_also_by_a_template():
    assert [made({**TOPIC, "keep_rows": said})[0].keep_rows for said in (True, "true", False)] == [
        True,
        True,
        False,
    ]


def test_json_text_says_the_same_as_a_list():
    text = msgspec.json.encode([TOPIC, TABLE]).decode()
    assert OutputConfig.of("at_least_once", text) == OutputConfig.of(
        "at_least_once", [TOPIC, TABLE]
    )
    assert as_json([TOPIC]) == f"[{msgspec.json.encode(TOPIC).decode()}]"
    assert as_json(None) is None


def test_what_a_template_has_rendered_is_text():
    assert sink({**TABLE, "tasks": "8", "two_phase": "false"}, DSN).tasks == 8


# --- what is refused


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("[", "cannot be read.*expected a list such as"),
        ("{}", "outputs is a dict; expected a list"),
        ([], "an empty list; expected"),
        (7, "outputs is a int; expected"),
        (["orders"], "outputs has str, without name and kind"),
        ([{"name": "orders"}], r"outputs has \['name'\], without name and kind"),
        ([TOPIC, TOPIC], "more than one is called orders"),
        ([{**TOPIC, "name": "a b"}], "Participant 'a b': expected 1 to 50"),
    ],
)
def test_outputs_that_are_none_say_what_was_found_and_expected(outputs, message):
    with pytest.raises(ConfigurationError, match=message):
        OutputConfig.of("exactly_once", outputs)


def test_an_unknown_guarantee_is_named_with_the_near_one():
    with pytest.raises(ConfigurationError, match=r"at_most_once': did you mean 'exactly_once'\?"):
        OutputConfig.of("exactly_ones")


def test_an_unknown_kind_is_named_with_the_near_one_and_those_that_are_there():
    message = refused({**TABLE, "kind": "postgress"})
    assert "output 'totals': kind 'postgress' (near: postgres)" in message
    assert "knows delta, files, iceberg, kafka, mysql, postgres, upsert, wal" in message


def test_an_unknown_option_is_named_with_the_near_one_and_those_that_are_there():
    message = refused({**TABLE, "tabel": "x"})
    assert "output 'totals' (postgres) has no option 'tabel' (near: table)" in message
    assert "takes rows, keep_rows, table, gid_prefix, two_phase" in message


@pytest.mark.parametrize("option", ["dsn", "password", "url", "catalog", "bootstrap_servers"])
def test_a_secret_in_the_configuration_is_refused_and_not_repeated(option):
    for kind in ("postgres", "kafka", "iceberg"):
        message = refused({"name": "out", "kind": kind, "table": "t", option: DSN})
        assert "participant_conn_ids" in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "t", "kind": "postgres"}, "missing required field `table`"),
        ({**TABLE, "two_phase": "perhaps"}, r"Expected `bool.*\$.two_phase"),
        ({**TABLE, "table": 7}, r"Expected `str`.*\$.table"),
        ({**TABLE, "rows": {"a": 1}}, r"Expected `str \| array \| null`.*\$.rows"),
        ({**TOPIC, "producer": "java"}, r"Invalid enum value 'java'.*\$.producer"),
    ],
)
def test_an_option_of_another_type_is_named(given, message):
    with pytest.raises(
        ConfigurationError, match=rf"output '.*' \(.*\): .*{message}.*It takes rows,"
    ):
        OutputConfig.of("exactly_once", [given])


@pytest.mark.parametrize(
    ("given", "how", "message"),
    [
        ({"name": "lake", "kind": "files", "folder": "lake"}, None, "expected an absolute path"),
        ({**TABLE, "lock_timeout": "soon"}, DSN, "lock_timeout='soon'"),
        (TABLE, f"nonsense {PASSWORD}", "cannot be read"),
        (TOPIC, "far:9092", "librdkafka configuration"),
        ({**TABLE, "tasks": 0}, DSN, "tasks=0: expected an integer from 1"),
    ],
)
def test_what_a_sink_refuses_is_said_of_its_output(given, how, message):
    found = refused(given, reach={} if how is None else {given["name"]: how})
    assert found.startswith(f"output {given['name']!r} ({given['kind']}): ")
    assert message in found


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        {"name": "i", "kind": "iceberg", "identifier": "shop.orders"},
        {"name": "u", "kind": "upsert", "system": "mysql", "target": "t", "key": ["id"]},
        {"name": "w", "kind": "wal"},
    ],
)
def test_an_output_that_nobody_says_how_to_reach_names_both_ways_to_say_it(given):
    message = refused(given)
    assert "participant_conn_ids" in message
    assert "EOS_PARTICIPANTS_FILE" in message


def test_two_outputs_never_share_transactional_ids():
    other = {**TOPIC, "name": "rejected", "topic": "orders.rejected"}
    assert "orders, rejected have one transactional_id_prefix, 'etl'" in refused(TOPIC, other)
    assert len(made(TOPIC, {**other, "transactional_id_prefix": "etl-rejected"})) == 2


def test_rows_are_kept_only_where_a_system_can_lose_them():
    found = refused({**TABLE, "keep_rows": True}, reach={"totals": DSN})
    assert "output 'totals' (postgres): Output 'totals': keep_rows is for systems" in found


def test_who_writes_before_the_decision_is_alone():
    given = {"name": "now", "kind": "upsert", "system": "redis", "target": "now:", "key": ["id"]}
    reach = {"now": "redis://redis:6379/0"}
    assert len(made({**given, "staged": False}, reach=reach)) == 1
    assert "found 2 outputs" in refused({**given, "staged": False}, TOPIC, reach=reach)


# --- a kind of a user's own


class TapeOptions(SinkOptions, frozen=True):
    guarantees = ("exactly_once",)
    robot: int

    def sink(self, name: str, app: AppFacts, how: Any) -> FileSink:
        return FileSink(f"/tapes/{self.robot}/{how}/{app.prefix}", name=name)


@pytest.fixture
def tapes(monkeypatch) -> Callable[[str], None]:
    """A module that some other package brings."""
    module = ModuleType("their_tapes")
    module.TapeOptions = TapeOptions  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_tapes", module)

    def named(where: str) -> None:
        point = EntryPoint("tapes", where, kinds.GROUP)
        monkeypatch.setattr(kinds, "entry_points", lambda **_: EntryPoints([point]))

    named("their_tapes:TapeOptions")
    return named


ARCHIVE = {"name": "archive", "kind": "tapes", "robot": 7}


def test_a_users_kind_is_found_by_its_entry_point(tapes):
    assert sink(ARCHIVE, "shelf").folder == "/tapes/7/shelf/etl"
    assert "knows delta, files, iceberg, kafka, mysql, postgres, tapes" in refused(
        {**ARCHIVE, "kind": "?"}
    )
    assert "no option 'robbot' (near: robot)" in refused({**ARCHIVE, "robbot": 1})


def test_a_guarantee_that_a_kind_does_not_have_is_refused(tapes):
    with pytest.raises(
        ConfigurationError,
        match=r"'archive' \(tapes\) has no guarantee 'at_most_once': expected 'exactly_once'",
    ):
        OutputConfig.of("at_most_once", [ARCHIVE])


def test_a_users_kind_that_cannot_be_imported_says_where_it_should_be(tapes):
    tapes("their_tapes:Nothing")
    message = refused(ARCHIVE)
    assert "output 'archive': kind 'tapes' is their_tapes:Nothing, which cannot be" in message


# --- Which sources give their rows once only ------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_socket_is_refused_also_beside_others(guarantee):
    sources = [StreamSource("kafka", {}), StreamSource("socket", {})]
    with pytest.raises(ConfigurationError, match=f"'socket'.*{guarantee}"):
        require_replayable(sources, guarantee)


def test_whoever_asks_for_no_row_twice_may_read_it():
    require_replayable([StreamSource("socket", {})], "at_most_once")


@pytest.mark.parametrize("name", ["kafka", "rate", "rate-micro-batch", "FileSource[/in]", "mine"])
def test_others_are_read(name):
    require_replayable([StreamSource(name, {})], "exactly_once")


def test_a_consumer_group_is_of_one_cluster_and_so_is_what_goes_on_from_it():
    """Of topics of one name it had the lower of two offsets, and began there in both."""

    def reading(*servers: str) -> list[StreamSource]:
        kafka = [StreamSource("kafka", {"kafka.bootstrap.servers": each}) for each in servers]
        return [StreamSource("rate", {}), *kafka]

    for one in ((), ("a:1",), ("a:1,b:1", "b:1, c:1"), ("a:1", "a:1")):
        require_one_cluster(reading(*one))
    with pytest.raises(ConfigurationError, match="several Kafka clusters"):
        require_one_cluster(reading("a:1,b:1", "b:1", "c:1"))


class Options(dict[str, str]):
    """As Spark's map has them: names in lower case."""

    def keySet(self) -> Any:  # noqa: N802 - Java's name
        return SimpleNamespace(toArray=lambda: list(self))


def frame(**options: str) -> Any:
    """A query on Kafka, as its plan tells."""
    relation = SimpleNamespace(getSimpleName=lambda: "StreamingRelationV2")
    leaf = SimpleNamespace(
        isStreaming=lambda: True,
        sourceName=lambda: "kafka",
        getClass=lambda: relation,
        extraOptions=lambda: Options(options),
    )
    leaves = SimpleNamespace(length=lambda: 1, apply=lambda _number: leaf)
    plan = SimpleNamespace(collectLeaves=lambda: leaves)
    return SimpleNamespace(
        _jdf=SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: plan))
    )


@pytest.mark.parametrize(("told", "warnings"), [("False", 1), ("true", 0), ("", 0)])
def test_a_source_that_may_leave_rows_out_is_warned_of(told, warnings):
    with capture_logs() as logged:
        check_sources(frame(**({"failondataloss": told} if told else {})), "exactly_once")
    assert [each["event"] for each in logged] == ["rows_may_be_skipped"] * warnings


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "a, b"}, {"a", "b"}),
        ({"assign": '{"a":[0,1]}'}, {"a"}),
        ({"subscribepattern": "a.*"}, None),
        ({"subscribe": "a", "failondataloss": "false"}, None),
    ],
)
def test_which_topics_a_source_reads_is_known_where_they_are_named_and_none_may_go(options, topics):
    [source] = check_sources(frame(**options), "exactly_once")
    assert source.topics == topics


@dataclass(frozen=True)
class ConfigResource:
    kind: str
    name: str
    Type: ClassVar = SimpleNamespace(TOPIC="topic")


def java() -> Any:
    """What is asked of Spark's JVM beside the client."""
    lists = SimpleNamespace(ArrayList=lambda: SimpleNamespace(add=lambda _: None))
    common = SimpleNamespace(config=SimpleNamespace(ConfigResource=ConfigResource))
    apache = SimpleNamespace(kafka=SimpleNamespace(common=common))
    packages = {"java": SimpleNamespace(util=lists), "org": SimpleNamespace(apache=apache)}
    return SimpleNamespace(_jvm=SimpleNamespace(**packages))


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """An exception of the JVM, without a JVM."""

    def __init__(self, said: str) -> None:
        self.java_exception = said


def client(told: dict[Any, Any]) -> Any:
    """Java's client of a cluster that answers so."""
    done = SimpleNamespace(get=lambda: told)
    answer = SimpleNamespace(allTopicNames=lambda: done, all=lambda: done)
    return SimpleNamespace(describeTopics=lambda _: answer, describeConfigs=lambda _: answer)


def test_what_a_broker_does_not_tell_of_a_topic_is_no_answer_of_sparks_source_either():
    """No ids: noted, they would be another id once the broker is one that gives ids."""
    source = StreamSource("kafka", {"subscribe": "old, new"})
    ids = {"old": "AAAAAAAAAAAAAAAAAAAAAA", "new": "kAYhcTzRRoOJCQbzyfrM2w"}
    told = {n: SimpleNamespace(topicId=lambda each=each: each) for n, each in ids.items()}
    assert topics._ids(java(), client(told), source) == {"new": ids["new"]}
    compact = {"cleanup.policy": SimpleNamespace(value=lambda: "compact")}
    settings = {ConfigResource("topic", "old"): {}, ConfigResource("topic", "new"): compact}
    assert topics._policies(java(), client(settings), source) == {"new": "compact"}


@pytest.mark.parametrize(
    ("said", "may_ask"),
    [
        ("TopicAuthorizationException: Topic authorization failed.", False),
        ("TimeoutException: Timed out waiting for a node assignment.", True),
        ("DisconnectException: Cancelled describeConfigs request.", True),
        ("SaslAuthenticationException: Authentication failed", True),
    ],
)
def test_a_broker_that_does_not_answer_has_not_said_that_a_topic_is_not_compacted(said, may_ask):
    def refuse() -> None:
        raise JavaError(f"java.util.concurrent.ExecutionException: org.apache.kafka.{said}")

    answer = SimpleNamespace(all=lambda: SimpleNamespace(get=refuse))
    silent: Any = SimpleNamespace(describeConfigs=lambda _: answer)
    source = StreamSource("kafka", {"subscribe": "a,b"})
    if not may_ask:
        assert topics._policies(java(), silent, source) == {}
        return
    with pytest.raises(KafkaError, match=f"whether the topics a, b are compacted: .*{said}"):
        topics._policies(java(), silent, source)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("TimeoutException: Call(callName=listOffsets) timed out", KafkaUnavailableError),
        ("DisconnectException: Cancelled describeTopics request.", KafkaUnavailableError),
        ("SaslAuthenticationException: Authentication failed", KafkaError),
    ],
)
def test_a_cluster_of_the_source_that_is_away_has_refused_nothing(said, kind):
    def refuse(_: object) -> None:
        raise JavaError(f"java.util.concurrent.ExecutionException: org.apache.kafka.{said}")

    silent: Any = SimpleNamespace(describeTopics=refuse, describeConfigs=refuse)
    for ask in (topics._ids, topics._policies):
        with pytest.raises(KafkaError, match="that each partition has a leader") as told:
            ask(java(), silent, StreamSource("kafka", {"subscribe": "a"}))
        assert type(told.value) is kind


def test_a_spark_that_does_not_tell_is_refused():
    with pytest.raises(ConfigurationError, match=f"Expected {SPARK}: use one of these"):
        check_sources(SimpleNamespace(), "exactly_once")  # type: ignore[arg-type]


# --- Which topics may lose rows that were acknowledged, and what to set on them -------------------


INSYNC, CLEAN = {"min.insync.replicas": "2"}, {"unclean.leader.election.enable": "false"}


@pytest.mark.parametrize(
    ("copies", "min_insync", "unclean", "to_set"),
    [
        (1, 1, False, {}),
        (1, 1, True, {}),
        (2, 1, False, INSYNC),
        (2, 2, False, {}),
        (3, 2, True, CLEAN),
        (3, 1, True, INSYNC | CLEAN),
        (3, 3, False, {}),
    ],
)
def test_what_one_broker_could_take_with_it(copies, min_insync, unclean, to_set):
    assert Durability("out", copies, min_insync, unclean).to_set() == to_set


def test_settings_that_nobody_told_are_not_known_and_no_advice_is_made_of_them():
    untold = Durability("out", copies=3, min_insync=None, unclean=None)
    assert untold.to_set() == {}
    assert untold.not_told() == ["min.insync.replicas", "unclean.leader.election.enable"]
    assert Durability("out", copies=3, min_insync=2, unclean=False).not_told() == []

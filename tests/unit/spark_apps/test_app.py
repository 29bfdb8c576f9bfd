"""What an app is told: by arguments, by its operator's environment, or not at all."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.settings import environment
from airflow_eos.errors import (
    CalledOffError,
    ConfigurationError,
    KafkaUnavailableError,
    OwnershipError,
)
from airflow_eos.kafka.columns import SCHEMA as KAFKA
from airflow_eos.kinds.consumer_group.sink import ConsumerGroup
from airflow_eos.local.jars import java_program
from airflow_eos.ops.packaging import Secrets
from airflow_eos.sinks import FileSink, KafkaSink, PostgresSink, StartPosition
from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import tuned_source_options, tuned_spark_conf
from airflow_eos.sources import ArrowKafkaSource
from spark_apps.avro_windows import TOKEN, USER_INFO, read_schemas
from spark_apps.orders_arrow import cleaned

OPERATOR = {
    "EOS_CHECKPOINT_LOCATION": "s3://lake/checkpoints/orders",
    "EOS_TRANSACTIONAL_ID_PREFIX": "orders-eu",
    "EOS_TRIGGER_INTERVAL_MS": "2000",
    "EOS_BATCH_WITHIN_MS": "30000",
    "EOS_RECOVER_WITHIN_MS": "240000",
    "EOS_TRANSACTION_TIMEOUT_MS": "600000",
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    handed = ("KAFKA_CONFIG_FILE", "STORAGE_OPTIONS_FILE", "PARTICIPANTS_FILE", "READ_ONCE")
    chosen = ("OUTPUTS", "GUARANTEE", "MIN_PAUSE_MS", "BATCH_TIMEOUT_MS", "NUM_RETAINED")
    for name in (*OPERATOR, *(f"EOS_{each}" for each in (*handed, *chosen))):
        monkeypatch.delenv(name, raising=False)


def app(*arguments: str) -> App:
    return App.of(argument_parser("An app.", prefix="etl").parse_args(arguments))


def test_arguments_alone_are_enough():
    told = app("--bootstrap-servers", "kafka:9092", "--checkpoint", "/data/ckpt")

    assert told.kafka.bootstrap_servers == "kafka:9092"
    assert told.checkpoint == "/data/ckpt"
    assert told.prefix == "etl"
    assert told.trigger == {"processingTime": "1 second"}
    assert told.sink("out").transaction_timeout == timedelta(minutes=15)


def test_the_operators_environment_alone_is_enough(monkeypatch, tmp_path):
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps({"bootstrap.servers": "kafka:9092", "client.id": "etl"}))
    monkeypatch.setenv("EOS_KAFKA_CONFIG_FILE", str(config))
    for name, value in OPERATOR.items():
        monkeypatch.setenv(name, value)

    told = app()
    sink = told.sink("out")

    assert told.checkpoint == "s3://lake/checkpoints/orders"
    assert sink.settings.get("client.id") == "etl"
    assert sink.transactional_id_prefix == "orders-eu"
    assert told.trigger == {"processingTime": "2 seconds"}
    assert sink.batch_within == timedelta(seconds=30)
    assert sink.recover_within == timedelta(minutes=4)
    assert sink.transaction_timeout == timedelta(minutes=10)


@pytest.fixture
def handed_over(tmp_path, monkeypatch) -> dict[str, str]:
    """What the operator writes for one start."""
    secrets = Secrets(
        kafka={"bootstrap.servers": "kafka:9092", "sasl.password": "hunter-two"},
        storage={"aws_secret_access_key": "hunter-three"},
    )
    told = secrets.hand_over(tmp_path)
    told["EOS_READ_ONCE"] = ",".join(told)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    return told


def test_the_operators_secrets_are_gone_from_the_disk_once_they_are_read(handed_over, tmp_path):
    told = app("--checkpoint", "s3a://lake/ck")

    assert told.storage_options == {"aws_secret_access_key": "hunter-three"}
    assert told.kafka.get("sasl.password") == "hunter-two"
    assert list(tmp_path.iterdir()) == []
    assert "hunter" not in repr(told)


def test_a_configuration_that_a_person_keeps_is_left_alone(handed_over, monkeypatch):
    monkeypatch.delenv("EOS_READ_ONCE")

    assert app("--checkpoint", "/c").kafka == app("--checkpoint", "/c").kafka


@pytest.mark.parametrize(
    ("once", "left"),
    [("EOS_STORAGE_OPTIONS_FILE", ["kafka.json"]), ("1", []), ("true", []), ("", ["kafka.json"])],
)
def test_only_files_that_were_handed_over_are_removed_and_1_means_all(
    handed_over, monkeypatch, tmp_path, once, left
):
    """``env_vars`` may name a file that a person keeps, beside those of the operator."""
    (tmp_path / "storage.json").unlink()
    monkeypatch.delenv("EOS_STORAGE_OPTIONS_FILE")
    monkeypatch.setenv("EOS_READ_ONCE", once)
    app("--checkpoint", "/c")
    assert [each.name for each in tmp_path.iterdir()] == left


@pytest.mark.parametrize("variable", ["EOS_STANDBY", "EOS_SKIP_LOST_INPUT"])
def test_a_word_that_is_neither_yes_nor_no_is_not_taken_for_no(monkeypatch, variable):
    """With EOS_STANDBY=1 it would take the running driver's place."""
    for told, expected in (("", False), ("True", True), ("false", False)):
        monkeypatch.setenv(variable, told)
        args = argument_parser("", prefix="p").parse_args(["--checkpoint", "/ck"])
        assert (args.standby or args.skip_lost_input) is expected
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigurationError, match=f"{variable}='1': expected True or False"):
        argument_parser("", prefix="p")


def test_an_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("EOS_TRIGGER_INTERVAL_MS", "2000")

    told = app("--bootstrap-servers", "k:1", "--checkpoint", "/c", "--trigger", "available-now")

    assert told.trigger == {"availableNow": True}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "names no JSON|cannot be read"),
        ("{", "cannot be read as JSON"),
        ("[]", "no JSON obj"),
    ],
)
def test_an_unreadable_kafka_configuration_is_named(monkeypatch, tmp_path, content, message):
    config = tmp_path / "kafka.json"
    if content is not None:
        config.write_text(content)
    monkeypatch.setenv("EOS_KAFKA_CONFIG_FILE", str(config))

    with pytest.raises(ConfigurationError, match=message):
        app("--checkpoint", "/c")


def test_no_kafka_at_all_says_both_ways_to_name_one():
    with pytest.raises(ConfigurationError, match=r"--bootstrap-servers.*EOS_KAFKA_CONFIG_FILE"):
        app("--checkpoint", "/c")


OUTPUTS = [
    {"name": "clean", "kind": "kafka", "topic": "orders.clean"},
    {"name": "lake", "kind": "files", "folder": "/lake", "rows": ["key"]},
]
SHELL = ("--bootstrap-servers", "k:1", "--checkpoint", "/c")


@pytest.fixture
def started(monkeypatch) -> list[tuple[Any, dict[str, Any]]]:
    """What ``start_exactly_once`` is given."""
    seen: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(
        "airflow_eos.core.delivery.start.start_exactly_once",
        lambda _, sink, **others: seen.append((sink, others)),
    )
    return seen


def test_where_nothing_was_chosen_rows_go_to_the_apps_own_topic(started):
    app(*SHELL).start(None, topic="out", query_name="etl", output_mode="update")  # type: ignore[arg-type]

    [(sink, others)] = started
    assert sink == app(*SHELL).sink("out")
    assert others == {
        "checkpoint_location": "/c",
        "trigger": {"processingTime": "1 second"},
        "output_mode": "update",
        "query_name": "etl",
        "standby": False,
        "guarantee": "exactly_once",
        "storage_options": {},
        "consumer_group": None,
        "policy": CheckpointPolicy(),
    }


def test_the_consumer_group_is_where_the_app_reads_from(started):
    told = app(*SHELL, "--consumer-group", "etl-lag", "--resume-from-group")
    told.start(None, topic="out", query_name="etl")  # type: ignore[arg-type]
    [(_, others)] = started
    group = others["consumer_group"]
    assert (group.group_id, group.bootstrap_servers, group.resume) == ("etl-lag", "k:1", True)
    with pytest.raises(ConfigurationError, match="Give --consumer-group, too"):
        app(*SHELL, "--resume-from-group")


def test_a_source_in_arrow_is_made_of_what_the_app_was_told(monkeypatch, tmp_path):
    config = {"bootstrap.servers": "k:1", "security.protocol": "SSL"}
    (tmp_path / "kafka.json").write_text(json.dumps(config))
    monkeypatch.setenv("EOS_KAFKA_CONFIG_FILE", str(tmp_path / "kafka.json"))
    told = app("--checkpoint", "/c", "--start", "latest")
    source = ArrowKafkaSource.of_app(told, "orders")
    given: list[Any] = []
    monkeypatch.setattr(
        "airflow_eos.core.delivery.start.start_exactly_once",
        lambda rows, *_, **__: given.append(rows),
    )
    told.start(source, topic="out", query_name="etl")
    assert given == [source]
    assert source.settings == told.kafka
    assert source.starting == StartPosition.latest()
    assert source.max_rows_per_batch is None


def test_a_teams_own_topic_of_owners_is_where_its_driver_claims_the_prefix(monkeypatch, tmp_path):
    """Otherwise the driver claims it in the common topic, and a recovery asks the team's."""
    config = {"bootstrap.servers": "k:1", "airflow-eos.prefixes.topic": "team.prefixes"}
    (tmp_path / "kafka.json").write_text(json.dumps(config))
    monkeypatch.setenv("EOS_KAFKA_CONFIG_FILE", str(tmp_path / "kafka.json"))
    told = app("--checkpoint", "/c", "--consumer-group", "etl-lag")
    assert told.sink("out").settings == told.kafka
    assert told.sink("out").settings.prefixes_topic == "team.prefixes"
    assert told.consumer_group is not None
    assert told.consumer_group.settings == told.kafka


def test_an_arrow_source_of_an_app_has_its_limit_and_goes_on_from_its_group(monkeypatch):
    at = '{"orders":{"0":1500}}'
    monkeypatch.setattr(
        ConsumerGroup, "starting_offsets", lambda _, topic: at * (topic == "orders")
    )
    limit = ("--max-offsets-per-trigger", "70")
    group = ("--consumer-group", "etl", "--resume-from-group")

    resumed = ArrowKafkaSource.of_app(app(*SHELL, *limit, *group), "orders", max_tasks=2)

    assert (resumed.starting, resumed.max_rows_per_batch, resumed.max_tasks) == (at, 70, 2)
    beside = ArrowKafkaSource.of_app(app(*SHELL, *limit, *group[:2]), "orders")
    assert beside.starting == StartPosition.earliest()
    chosen = ArrowKafkaSource.of_app(app(*SHELL, *group), "orders", starting="latest")
    assert chosen.starting == "latest"


@pytest.mark.parametrize("kept", ["as text", "in a file"])
def test_what_a_person_chose_goes_before_the_apps_own_topic(started, tmp_path, kept):
    text, file = json.dumps(OUTPUTS), tmp_path / "outputs.json"
    file.write_text(text)
    chosen = text if kept == "as text" else str(file)

    told = app(*SHELL, "--outputs", chosen, "--guarantee", "at_least_once")
    told.start(None, topic="out", query_name="etl")  # type: ignore[arg-type]

    [((clean, lake), others)] = started
    assert clean.sink == KafkaSink(
        "k:1", "orders.clean", "etl", name="clean", kafka_config=clean.sink.kafka_config
    )
    assert (lake.sink, lake.rows) == (FileSink("/lake", name="lake"), ("key",))
    assert others["guarantee"] == "at_least_once"


def test_the_operators_choice_meets_the_secrets_that_it_handed_over(tmp_path, monkeypatch):
    handed = Secrets(
        kafka={"bootstrap.servers": "kafka:9092"},
        storage={},
        participants={"totals": "host=db password=hunter-four"},
    ).hand_over(tmp_path)
    totals = [{"name": "totals", "kind": "postgres", "table": "totals"}]
    handed["EOS_READ_ONCE"] = ",".join(handed)
    chosen = environment(guarantee="at_most_once", outputs=json.dumps(totals))
    for name, value in {**handed, **chosen}.items():
        monkeypatch.setenv(name, value)

    told = app("--checkpoint", "/c", "--prefix", "orders-eu")

    [output] = told.outputs
    expected = PostgresSink(
        "host=db password=hunter-four", "totals", gid_prefix="orders-eu", name="totals"
    )
    assert output.sink == expected
    assert told.guarantee == "at_most_once"
    assert "hunter" not in repr(told) + repr(os.environ)
    assert list(tmp_path.iterdir()) == []


def test_an_app_that_would_not_hear_what_was_chosen_is_stopped():
    told = app(*SHELL, "--outputs", json.dumps(OUTPUTS))

    with pytest.raises(ConfigurationError, match=r"clean, lake were chosen.*topic out.*app\.start"):
        told.sink("out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--guarantee", "exact"), "guarantee='exact': expected one of 'exactly_once'"),
        (("--outputs", "/no/such/file"), "--outputs '/no/such/file' is no JSON list, and no file"),
        (("--outputs", "[{}]"), "without name and kind"),
        (("--outputs", '{"name": "a"}'), "outputs is a dict; expected a list"),
    ],
)
def test_a_choice_that_cannot_work_is_refused_before_there_is_a_spark(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        app(*SHELL, *arguments)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("The topic is missing."), 78),
        (OwnershipError("The topic is missing."), 78),
        (KafkaUnavailableError("The topic is missing."), 1),
        (CalledOffError("The topic is missing."), 0),
    ],
)
def test_an_error_of_the_package_is_one_line_and_its_status_says_whether_a_restart_helps(
    error, status, capsys
):
    def main():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_app(main)

    assert ended.value.code == status
    assert capsys.readouterr().err == f"{type(error).__name__}: The topic is missing.\n"


def test_only_a_backlog_waits_for_full_fetches():
    assert "kafka.fetch.min.bytes" not in tuned_source_options()
    assert tuned_source_options(bulk=True)["kafka.fetch.min.bytes"] == "1000000"
    assert tuned_source_options()["kafka.max.poll.records"] == "20000"


POLICY = CheckpointPolicy(
    min_pause=timedelta(seconds=2), timeout=timedelta(minutes=3), num_retained=20
)


def test_the_operators_policy_reaches_the_query(monkeypatch, started):
    told = environment(
        min_pause=POLICY.min_pause,
        batch_timeout=POLICY.timeout,
        num_retained=POLICY.num_retained,
    )
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    app(*SHELL).start(None, topic="out", query_name="etl")  # type: ignore[arg-type]
    [(_, others)] = started
    assert others["policy"] == POLICY


def test_a_policy_in_arguments():
    told = app(
        *SHELL, "--min-pause", "2 seconds", "--batch-timeout", "3 minutes", "--num-retained", "20"
    )
    assert told.policy == POLICY


# --- A registry that asks for a login: it is given, it goes nowhere else, and nothing prints it ---


SECRET = "s3cret"
BASIC = "Basic " + base64.b64encode(f"key:{SECRET}".encode()).decode()
ANSWERS: dict[str, Any] = {
    "/subjects/people-value/versions": [1],
    "/subjects/people-value/versions/1": {"id": 7, "schema": '"string"'},
    "/subjects/garbled/versions": "none",
}


class Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        login = self.headers.get("Authorization")
        self.server.logins.append(login)  # type: ignore[attr-defined]
        found = ANSWERS.get(self.path)
        known = login in (BASIC, f"Bearer {SECRET}")
        self.send_response(302 if "moved" in self.path else 200 if known and found else 401)
        self.send_header("Location", f"{self.server.elsewhere}/x")  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    made = [ThreadingHTTPServer(("127.0.0.1", 0), Registry) for _ in range(2)]
    for each in made:
        each.logins, each.elsewhere = [], f"http://127.0.0.1:{made[1].server_port}"  # type: ignore[attr-defined]
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield made
    for each in made:
        each.shutdown()
        each.server_close()


def test_it_logs_in_by_the_url_by_a_user_or_by_a_token(
    servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = servers[0].server_port
    assert read_schemas(f"http://key:{SECRET}@127.0.0.1:{port}/", "people-value") == {7: '"string"'}
    monkeypatch.setenv(USER_INFO, f"key:{SECRET}")
    assert read_schemas(f"http://127.0.0.1:{port}", "people-value") == {7: '"string"'}
    monkeypatch.setenv(TOKEN, SECRET)
    assert read_schemas(f"http://127.0.0.1:{port}", "people-value") == {7: '"string"'}
    assert servers[0].logins[-1] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("url", "subject", "said"),
    [
        ("http://key:{secret}@127.0.0.1:{port}", "nothing", "HTTP status 401.*" + USER_INFO),
        ("http://key:{secret}@127.0.0.1:{port}", "garbled", "does not tell the schemas"),
        ("http://key:{secret}@127.0.0.1:{port}", "moved", "HTTP status 302"),
        ("http://key:{secret}@127.0.0.1:1", "people-value", "URLError"),
        ("http://key:{secret}", "people-value", "cannot be read"),
        ("http://key:{secret}@[127.0.0.1:{port}", "people-value", "cannot be read"),
        ("key:{secret}@127.0.0.1:{port}", "people-value", "cannot be read"),
    ],
)
def test_no_error_prints_the_secret(servers: list[Any], url: str, subject: str, said: str) -> None:
    address = url.format(secret=SECRET, port=servers[0].server_port)
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_schemas(address, subject)
    whole = f"{refused.value} {refused.value.__cause__!r}"
    assert SECRET not in whole
    assert BASIC not in whole
    assert servers[1].logins == [], "a login goes nowhere else"


ORDER = """{"order_id": "o", "customer_id": "c", "currency": "EUR", "placed_at": "%s",
    "items": [{"quantity": %s, "unit_price": %s}], "more": %s}"""
NOON = "2026-11-20T12:00:00Z"


@pytest.mark.parametrize(
    ("odd", "topic"),
    [
        ((NOON, 1, 1, "[]"), None),
        ((NOON, 1, 1, "[" * 100_000), "bad"),
        ((NOON, 1, "1e300", "[]"), "bad"),
        ((NOON, 1, '"NaN"', "[]"), "bad"),
        ((NOON, 3_000_000_000, 1, "[]"), "bad"),
        (("9999-12-31T23:59:59-10:00", 1, 1, "[]"), "bad"),
        (("0001-01-01T00:00:00+10:00", 1, 1, "[]"), "bad"),
    ],
    ids=["well", "deep", "dear", "no number", "many", "year 10000", "year 0"],
)
def test_an_order_of_no_number_or_time_is_a_dead_letter_and_no_end_of_the_query(odd, topic):
    """An error in a task comes again with each try: one row would keep all others back."""
    row = dict.fromkeys(KAFKA.names) | {"value": (ORDER % odd).encode()}
    [out] = cleaned(iter([pa.RecordBatch.from_pylist([row], KAFKA)]), dead_letter_topic="bad")
    assert out["topic"].to_pylist() == [topic]


def test_a_driver_starts_with_a_class_archive_and_without_one(tmp_path):
    """It is Java's of a machine, which may not have it: then classes are loaded as ever."""
    name = "spark.driver.extraJavaOptions"
    plain, shared = tuned_spark_conf(), tuned_spark_conf(class_archive=f"{tmp_path}/driver.jsa")
    shared_options = shared.pop(name)
    assert shared_options.startswith(plain.pop(name)), "the options that there are stay"
    assert shared == plain, "executors are other machines"
    options = shlex.split(shared_options)
    assert "-XX:+RecordDynamicDumpInfo" in options, "the first driver leaves one"
    subprocess.run([java_program(), *options, "-version"], check=True, timeout=60)

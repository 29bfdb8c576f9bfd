"""What an app is told: by arguments, by SparkStreamingOperator's environment, or not at all."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.app import App, argument_parser, run_app
from airflow_eos.sinks.source import tuned_source_options
from airflow_eos.supervision.workspace import Secrets

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
    for name in (*OPERATOR, "EOS_KAFKA_CONFIG_FILE", "EOS_STORAGE_OPTIONS_FILE", "EOS_READ_ONCE"):
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
    assert told.trigger == {"processingTime": "2000 milliseconds"}
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


def test_an_error_of_the_package_is_one_line_and_exit_status_1():
    def main() -> None:
        raise ConfigurationError("The topic is missing.")

    with pytest.raises(SystemExit) as ended:
        run_app(main)

    assert ended.value.code == "ConfigurationError: The topic is missing."  # Python prints it: 1


def test_only_a_backlog_waits_for_full_fetches():
    assert "kafka.fetch.min.bytes" not in tuned_source_options()
    assert tuned_source_options(bulk=True)["kafka.fetch.min.bytes"] == "1000000"
    assert tuned_source_options()["kafka.max.poll.records"] == "20000"

"""A password of the connection is nowhere but in the connection: every log at DEBUG, every output.

One pipeline lives a whole life on a broker with logins (start, batch, death, plan, recovery, audit,
wrong password), and whatever it said or left behind is searched for the password.
"""

from __future__ import annotations

import base64
import json
import logging
import pickle
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.errors import EosError, KafkaError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops.plan_tables import plan_view
from airflow_eos.ops.tables import as_text
from airflow_eos.recovery import audit, execute_recovery, plan_recovery
from tests.integration.hazards.direct import Direct

SECRET = "hunter2-MARKER-of-the-password"
WRONG = "wrong-MARKER-of-the-password"
MAIN = "from airflow_eos.cli.app import main; main()"
MARKER = "MARKER-of-the-password"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_etl="{SECRET}" user_other="x";'
)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(
        {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl.plain.sasl.jaas.config": JAAS},
        listeners={"SASL": "SASL_PLAINTEXT"},
    ) as running:
        yield running


def login(broker: EmbeddedKafka, password: str = SECRET) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.addresses("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "etl",
        "sasl.password": password,
    }


@pytest.fixture
def pipeline(broker: EmbeddedKafka, tmp_path: Path) -> Direct:
    return Direct(
        broker.addresses("SASL"),
        tmp_path,
        broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2),
        kafka_config=login(broker),
        plain_bootstrap=broker.bootstrap_servers,
    )


def assert_not_in(text: str, where: str) -> None:
    encoded = base64.b64encode(f"\0etl\0{SECRET}".encode()).decode()
    for secret in (MARKER, encoded, repr(MARKER.encode())[2:-1]):
        assert secret not in text, f"a password is in {where}"


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client logs all it can; Airflow, once imported, switches the loggers of others off."""
    caplog.set_level(logging.DEBUG)
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in (
            "kafka",
            "airflow_eos",
        ):
            monkeypatch.setattr(logger, "disabled", False)
            monkeypatch.setattr(logger, "propagate", True)
            caplog.set_level(logging.DEBUG, logger=name)


@pytest.mark.long
@pytest.mark.usefixtures("loud")
def test_nothing_that_a_pipeline_says_or_leaves_holds_the_password(
    pipeline: Direct,
    broker: EmbeddedKafka,
    die_at: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    pipeline.feed_numbers(30)
    pipeline.run()
    pipeline.feed_numbers(30)
    die_at("settled-some")
    with pytest.raises(RuntimeError) as died:
        pipeline.run()
    die_at("")
    plan = plan_recovery(str(pipeline.checkpoint), login(broker))
    report = execute_recovery(plan, login(broker), force=True)
    pipeline.run()
    other = broker.create_topic(f"other-{uuid.uuid4().hex[:8]}", 1)
    audited = audit(login(broker), other, pipeline.topic, id_expression="value", timeout_s=100)

    assert "SASL" in caplog.text or "sasl" in caplog.text, "the clients do log at DEBUG"
    said = {
        "the logs": caplog.text,
        "the output": "".join(capfd.readouterr()),
        "an exception": "".join(traceback.format_exception(died.value)),
        "the plan": plan.to_json().decode() + as_text(plan_view(plan)) + repr(plan),
        "the report": report.to_json().decode() + repr(report),
        "the audit": audited.to_json().decode() + repr(audited),
        "a repr": repr([pipeline.sink, pipeline.settings, f"{pipeline.sink}"]),
    }
    for where, text in said.items():
        assert_not_in(text, where)
    left = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("decisions" in file.parts for file in left)
    for file in left:
        assert_not_in(file.read_bytes().decode(errors="replace"), str(file.relative_to(tmp_path)))


ATTEMPTS: dict[str, Callable[[Direct], Any]] = {
    "starting": lambda p: p.run(),
    "connecting": lambda p: ConnectionPool(p.settings, timeout_s=100),
    "planning": lambda p: plan_recovery(str(p.checkpoint), p.settings),
    "auditing": lambda p: audit(p.settings, "other", p.topic, timeout_s=30),
}


@pytest.mark.long
@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_a_wrong_password_is_said_soon_and_never_shown(
    pipeline: Direct,
    broker: EmbeddedKafka,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    attempt: Callable[[Direct], Any],
) -> None:
    caplog.set_level(logging.DEBUG)
    pipeline.feed_numbers(3)
    pipeline.run()  # a checkpoint to plan for
    pipeline.kafka_config = login(broker, WRONG)
    pipeline.feed_numbers(3)
    with pytest.raises(KafkaError) as refused:
        attempt(pipeline)
    assert "did not accept this client" in str(refused.value)
    assert_not_in("".join(traceback.format_exception(refused.value)), "the exception")
    assert_not_in(caplog.text, "the logs")
    assert_not_in("".join(capfd.readouterr()), "the output")


@pytest.mark.long
@pytest.mark.parametrize("password", [SECRET, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("command", ["plan", "status", "recover"])
def test_the_command_line_never_shows_the_password(
    pipeline: Direct, broker: EmbeddedKafka, tmp_path: Path, command: str, password: str
) -> None:
    pipeline.feed_numbers(3)
    pipeline.run()
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(login(broker, password)))
    options = ["--kafka-config", str(config), "--timeout", "100"]
    ended = subprocess.run(
        [sys.executable, "-c", MAIN, command, str(pipeline.checkpoint), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == (0 if password == SECRET else 2), ended.stderr
    assert_not_in(ended.stdout + ended.stderr, command)
    if password == WRONG:
        assert "did not accept this client" in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "extra",
    [
        {"security.protocol": "SASL_LATER"},
        {"sasl.mechanism": "MD5"},
        {"sasl.username": ""},
        {"socket.timeout.ms": "soon"},
        {"security.protocol": "SASL_SSL", "ssl.key.pem": SECRET},
        {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": "/no/such/file",
            "ssl.key.password": SECRET,
        },
        {"security.protocol": "SASL_SSL", "ssl.ca.pem": SECRET},
    ],
    ids=lambda extra: ",".join(extra),
)
def test_settings_that_cannot_work_are_refused_without_their_secrets(extra: dict[str, str]) -> None:
    config = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "etl",
        "sasl.password": SECRET,
        "sasl.oauthbearer.client.secret": SECRET,
    }
    with pytest.raises(EosError) as refused:
        KafkaSettings.from_librdkafka(config | extra).kafka_python()
    assert_not_in("".join(traceback.format_exception(refused.value)), "the exception")


def test_settings_travel_to_executors_and_show_nothing_on_the_way() -> None:
    config = {
        "bootstrap.servers": "h:1",
        "sasl.password": SECRET,
        "ssl.key.pem": SECRET,
        "ssl.key.password": SECRET,
        "ssl.keystore.password": SECRET,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.config": f"secret={SECRET}",
        "sasl.jaas.config": f'password="{SECRET}"',
    }
    settings = KafkaSettings.from_librdkafka(config)
    assert_not_in(repr(settings) + str(settings) + f"{settings!r}", "the repr")
    assert dict(pickle.loads(pickle.dumps(settings)).items)["sasl.password"] == SECRET

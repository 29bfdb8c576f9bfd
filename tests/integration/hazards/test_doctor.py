"""The doctor beside a real broker: what a start would refuse is told before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_eos.cli import app
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.guarded import Acl, Guarded
from tests.integration.hazards.test_least_acls import AUTHORIZED

pytestmark = pytest.mark.integration


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with EmbeddedKafka(AUTHORIZED, listeners={"SASL": "SASL_PLAINTEXT"}) as running:
        yield Guarded(running, tmp_path)


def doctor(checkpoint: Path, *arguments: str, status: int) -> dict[str, dict[str, str]]:
    told = ["doctor", str(checkpoint), "--rounds", "1", "--json", *arguments]
    answer = CliRunner().invoke(app, told)
    assert answer.exit_code == status, answer.output
    return {line["what"]: line for line in json.loads(answer.output)}


def test_what_a_start_would_refuse_is_told_line_by_line(
    kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, broker = topic("out", 2), ["-b", kafka_broker.bootstrap_servers]
    found = doctor(tmp_path / "q", *broker, "--topic", out, "--prefix", f"p-{out}", status=0)
    assert {line["verdict"] for line in found.values()} == {"ok"}, found
    assert found[f"topic {out}"]["found"] == "2 partitions; may be written"
    assert found[f"prefix p-{out}"]["found"].startswith("nobody's")

    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    ledger = PrefixLedger(settings, prefix=f"p-{out}")
    ledger.claim("s3://elsewhere/q")
    ledger.close()
    wrong = ["--topic", f"{out}-no", "--prefix", f"p-{out}", "--transaction-timeout", "90000"]
    found = doctor(tmp_path / "q", *broker, *wrong, status=1)
    assert {what for what, line in found.items() if line["verdict"] == "fail"} == {
        f"topic {out}-no",
        f"prefix p-{out}",
        "timeouts",
    }
    assert "s3://elsewhere/q" in found[f"prefix p-{out}"]["found"]
    assert "transaction.max.timeout.ms" in found["timeouts"]["found"]


def test_a_right_that_is_missing_is_told_and_none_beside_it(
    guarded: Guarded, tmp_path: Path
) -> None:
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(guarded.login("app")))
    output = guarded.names["OUTPUT"]
    asked = ["--kafka-config", str(config), "--topic", output]
    guarded.grant(
        Acl("app", "Describe", "Topic", output, "Literal"),
        Acl("app", "DescribeConfigs", "Cluster", "kafka-cluster", "Literal"),
    )
    found = doctor(tmp_path / "q", *asked, status=1)
    assert found[f"topic {output}"]["found"] == "2 partitions; no right to write"
    assert [w for w, line in found.items() if line["verdict"] == "fail"] == [f"topic {output}"]
    guarded.grant(Acl("app", "Write", "Topic", output, "Literal"))
    assert doctor(tmp_path / "q", *asked, status=0)[f"topic {output}"]["verdict"] == "ok"

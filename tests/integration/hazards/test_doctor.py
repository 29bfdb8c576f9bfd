"""The doctor beside a real broker: what a start would refuse is told before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.guarded import Acl, Guarded
from tests.integration.hazards.test_least_acls import AUTHORIZED
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import ROOT
from tests.support.pipelines import owner_at


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with EmbeddedKafka(AUTHORIZED, listeners={"SASL": "SASL_PLAINTEXT"}) as running:
        yield Guarded(running, tmp_path)


def doctor(checkpoint: Path, *arguments: str, status: int) -> dict[str, dict[str, str]]:
    told = ["doctor", str(checkpoint), "--rounds", "1", "--json", *arguments]
    answer = CliRunner().invoke(app, told)
    assert answer.exit_code == status, answer.output
    return {line["what"]: line for line in json.loads(answer.output)}


@pytest.mark.proof
def test_what_a_start_would_refuse_is_told_line_by_line(
    kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, broker = topic("out", 2), ["-b", kafka_broker.bootstrap_servers]
    found = doctor(tmp_path / "q", *broker, "--topic", out, "--prefix", f"p-{out}", status=0)
    assert wrong(found) == set(), found
    assert wrong(found, "warn") == {"folder"}, "pytest's is a temporary one"
    assert found[f"topic {out}"]["found"] == "2 partitions; may be written"
    assert found[f"prefix p-{out}"]["found"].startswith("nobody's")

    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    ledger = PrefixLedger(settings, prefix=f"p-{out}")
    ledger.claim(owner_at("s3://elsewhere/q"))
    ledger.close()
    bad = ["--topic", f"{out}-no", "--prefix", f"p-{out}", "--transaction-timeout", "90000"]
    found = doctor(tmp_path / "q", *broker, *bad, status=1)
    assert {what for what, line in found.items() if line["verdict"] == "fail"} == {
        f"topic {out}-no",
        f"prefix p-{out}",
        "timeouts",
    }
    assert "s3://elsewhere/q" in found[f"prefix p-{out}"]["found"]
    assert "transaction.max.timeout.ms" in found["timeouts"]["found"]


def test_a_pipeline_that_has_delivered_is_told_of_its_own_names_and_of_no_others(direct) -> None:
    direct.feed_numbers(10)
    direct.run()
    broker = ["-b", direct.bootstrap]
    found = doctor(direct.checkpoint, *broker, status=0)
    assert f"topic {direct.topic}" in found, "it is where the pipeline delivers to"
    assert "drain, move the checkpoint" in found["folder"]["next"], "it has begun"
    found = doctor(direct.checkpoint, *broker, "--prefix", "another", status=1)
    assert found["owner"]["expected"] == "transactional_id_prefix 'another'"
    assert "prefix another" not in found, "nothing was ever promised under it"


def wrong(found: dict[str, dict[str, str]], verdict: str = "fail") -> set[str]:
    return {what for what, line in found.items() if line["verdict"] == verdict}


@pytest.mark.proof
def test_rights_on_input_group_and_transactional_ids_are_told_one_by_one(
    guarded: Guarded, tmp_path: Path
) -> None:
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(guarded.login("app")))
    read, group = guarded.names["INPUT"], guarded.names["GROUP"]
    prefix = guarded.names["PREFIX-"].removesuffix("-")
    asked = ["--kafka-config", str(config), "--input-topic", read, "--group", group]
    asked += ["--prefix", prefix, "--timeout", "100"]
    guarded.grant(
        Acl("app", "DescribeConfigs", "Cluster", "kafka-cluster", "Literal"),
        Acl("app", "Read", "Topic", "airflow-eos.prefixes", "Literal"),
        Acl("app", "Describe", "Topic", "INPUT", "Literal"),
        Acl("app", "Describe", "Group", "GROUP", "Literal"),
        # enough to find their coordinator, and to list them; not to end what a driver left open
        Acl("app", "Describe", "TransactionalId", "PREFIX-", "Prefixed"),
    )
    ids = f"id {prefix}-doctor", f"id {group}-offsets"
    found = doctor(tmp_path / "q", *asked, status=1)
    assert wrong(found) == {f"topic {read}", f"group {group}", *ids}
    assert found[f"topic {read}"]["found"] == "1 partition; no right to read"
    assert f"Write on TransactionalId '{prefix}-doctor'" in found[ids[0]]["found"]
    assert found["Spark's groups"]["verdict"] == "warn"
    assert found["broker's clock"]["found"].startswith("not told")

    guarded.grant(
        Acl("app", "Read", "Topic", "INPUT", "Literal"),
        Acl("app", "Read", "Group", "GROUP", "Literal"),
        Acl("app", "Read", "Group", "spark-kafka-source", "Prefixed"),
        Acl("app", "Write", "TransactionalId", "PREFIX-", "Prefixed"),
        Acl("app", "Write", "TransactionalId", "GROUP-offsets", "Literal"),
        Acl("app", "Describe", "Cluster", "kafka-cluster", "Literal"),
    )
    found = doctor(tmp_path / "q", *asked, status=0)
    assert wrong(found, "warn") | wrong(found) == {"folder"}
    assert found["broker's clock"]["found"].endswith("s against this machine")


@pytest.mark.proof
def test_without_transactions_no_right_to_them_is_asked_for(
    kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    asked = ["-b", kafka_broker.bootstrap_servers, "--prefix", "etl"]
    assert "id etl-doctor" in doctor(tmp_path / "q", *asked, status=0)
    loose = [*asked, "--guarantee", "at_least_once"]
    found = doctor(tmp_path / "q", *loose, status=0)
    assert "id etl-doctor" not in found
    assert "protocol" not in found
    assert found["Spark's own logs"]["verdict"] == "warn"


def test_the_right_to_end_is_asked_for_without_ending_what_is_open(
    kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka_broker.bootstrap_servers})
    with ConnectionPool(settings) as wire:
        transactions = TransactionCoordinator(wire)
        held = transactions.init("lag-offsets", timeout_ms=60_000)
        asked = ["-b", kafka_broker.bootstrap_servers, "--group", "lag"]
        found = doctor(tmp_path / "q", *asked, status=0)
        assert found["id lag-offsets"]["verdict"] == "ok"
        assert transactions.holder("lag-offsets") == held


def asked_by(python: str, folder: Path) -> tuple[int, dict[str, dict[str, str]]]:
    """Its status and its lines, of a process of its own: the Spark that it starts, it ends."""
    asked = ["--master", "local[1]", "--conf", "spark.driver.host=127.0.0.1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "airflow_eos", "doctor", str(folder / "q"), *asked],
        env={
            **os.environ,
            "PYSPARK_PYTHON": python,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": spark_submit_opts(),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, {line["what"]: line for line in json.loads(done.stdout)}


@pytest.mark.slow
@pytest.mark.proof
def test_the_workers_of_a_master_are_asked_what_they_can_import(tmp_path: Path) -> None:
    status, lines = asked_by(sys.executable, tmp_path)
    assert (status, lines["Spark's workers"]["verdict"]) == (0, "ok"), lines
    assert "of 20 rounds, 2 at once" in lines["Spark's own logs, raced"]["found"]


@pytest.mark.slow
@pytest.mark.proof
def test_workers_that_cannot_import_it_are_named_with_what_they_lack(tmp_path: Path) -> None:
    """As a start says it, which tests/integration/sinks/test_workers.py has for all that lacks."""
    bare = tmp_path / "bare"
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", str(bare)], check=True)
    status, lines = asked_by(str(bare / "bin" / "python"), tmp_path)
    line = lines["Spark's workers"]
    assert (status, line["verdict"]) == (1, "fail")
    assert "lacks" in line["found"]
    assert str(bare) in line["found"]


@pytest.mark.proof
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

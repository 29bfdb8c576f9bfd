"""An example app, as it is: rows go to Kafka and to files, because configuration says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_eos.local import spark_jars
from tests.support.jvm import spark_submit_opts
from tests.support.pipeline import KILLED
from tests.support.topics import produce, read_topic

APP = Path(__file__).parents[3] / "spark_apps" / "orders_etl.py"


pytestmark = pytest.mark.proof


def order(number: int) -> tuple[str, str]:
    item = {"sku": "sku-1", "quantity": 1 + number % 3, "unit_price": 2.5}
    told = {
        "order_id": f"o-{number}",
        "customer_id": f"c-{number % 7}",
        "placed_at": "2026-11-20T10:15:30Z",
        "country": "DE",
        "currency": "EUR",
        "email": "ada@example.com",
        "items": [item],
    }
    return told["customer_id"], json.dumps(told)  # type: ignore[return-value]


def run(*arguments: str, failpoints: str = "", expect: int = 0) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(APP.parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": (
            f"--master local[2] --jars {','.join(str(jar) for jar in spark_jars())} "
            "--conf spark.ui.enabled=false pyspark-shell"
        ),
        "SPARK_SUBMIT_OPTS": spark_submit_opts(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "EOS_FAILPOINTS": failpoints,
    }
    ended = subprocess.run(
        [sys.executable, str(APP), *arguments],
        env=environment,
        timeout=300,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ended.returncode == expect, ended.stdout[-6000:]
    return ended.stdout


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_both_have_every_order_once_though_the_driver_is_killed_between_them(
    kafka_broker, topic, tmp_path
):
    orders, clean = topic("orders", 2), topic("clean", 2)
    total = "from_json(cast(value AS string), 'order_id string, total_eur decimal(20, 2)')"
    outputs = tmp_path / "outputs.json"
    outputs.write_text(
        json.dumps(
            [
                {"name": "clean", "kind": "kafka", "topic": clean},
                {
                    "name": "totals",
                    "kind": "files",
                    "folder": str(tmp_path / "totals"),
                    "rows": total,
                },
            ]
        )
    )
    arguments = [
        *("--bootstrap-servers", kafka_broker.bootstrap_servers),
        *("--checkpoint", str(tmp_path / "ckpt")),
        *("--input-topic", orders, "--output-topic", "nowhere", "--prefix", orders),
        *("--trigger", "available-now", "--max-offsets-per-trigger", "150"),
        *("--outputs", str(outputs)),
    ]
    produce(kafka_broker.bootstrap_servers, orders, [order(n) for n in range(300)])
    run(*arguments, failpoints="settled-some=kill@1", expect=KILLED)
    run(*arguments)

    sent = [json.loads(value) for _, value in read_topic(kafka_broker.bootstrap_servers, clean)]
    files = pq.read_table(tmp_path / "totals").to_pylist()
    every = Counter(f"o-{n}" for n in range(300))
    assert Counter(each["order_id"] for each in sent) == every
    assert Counter(each["order_id"] for each in files) == every
    assert {each["order_id"]: float(each["total_eur"]) for each in files} == {
        each["order_id"]: each["total_eur"] for each in sent
    }

    # The names are for ever: other outputs are refused, by the status that says not to try again.
    refused = run(*arguments[:-1], json.dumps([{"name": "clean", "kind": "kafka"}]), expect=78)
    assert "OwnershipError" in refused

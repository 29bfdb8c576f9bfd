import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from airflow_eos.local import spark_jars
from airflow_eos.recovery import Action, audit, execute_recovery, plan_recovery

APP = Path(__file__).with_name("clicks.py")


def run(arguments: dict[str, str], **environment: str) -> int:
    """Start the app as its own process, until it has read what is there; the exit status."""
    jars = ",".join(str(jar) for jar in spark_jars())
    words = [word for pair in arguments.items() for word in pair]
    environment |= {
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --jars {jars} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, str(APP), "--trigger", "available-now", *words]
    return subprocess.run(command, env=os.environ | environment, timeout=300).returncode


def test_killed_after_its_decision_it_delivers_each_click_once(kafka_broker, topic, tmp_path):
    clicks, clean = topic("clicks", partitions=2), topic("clean", partitions=2)
    kafka = {"bootstrap.servers": kafka_broker.bootstrap_servers}
    producer = Producer(kafka)
    for number in range(100):
        value = json.dumps({"id": f"c-{number}", "page": "/"})
        producer.produce(clicks, key=f"user-{number % 7}", value=value)
    assert producer.flush(30) == 0

    checkpoint = str(tmp_path / "checkpoint")
    arguments = {
        "--bootstrap-servers": kafka_broker.bootstrap_servers,
        "--checkpoint": checkpoint,
        "--prefix": clean,  # of this test alone, as the topics are
        "--input-topic": clicks,
        "--output-topic": clean,
    }
    assert run(arguments, EOS_FAILPOINTS="decided=kill") == -signal.SIGKILL

    plan = plan_recovery(checkpoint, kafka)
    assert plan.count(Action.COMMIT) > 0
    execute_recovery(plan, kafka, force=True)  # it has died a moment ago, and looks alive
    assert plan_recovery(checkpoint, kafka).listed == ()

    assert run(arguments) == 0
    audit(kafka, clicks, clean, id_expression="value.id", checkpoint=checkpoint).require_ok()

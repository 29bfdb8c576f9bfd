from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType
from kafka.admin import KafkaAdminClient

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.broker import DIFFERENCES, differences, own_properties

PARENT = """
import sys, time
from airflow_eos.local import EmbeddedKafka
with EmbeddedKafka() as broker:
    print(broker.bootstrap_servers, broker._data, flush=True)
    time.sleep(600)
"""


def brokers_of(folder):
    """Processes, guards included, that name a folder on their command line."""
    return [
        p for p in psutil.process_iter(["cmdline"]) if folder in " ".join(p.info["cmdline"] or [])
    ]


def wait_until(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def not_at_default(bootstrap_servers, node_id):
    """Setting → Kafka's default, and what a broker says that it is; of each where they differ."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    broker = ConfigResource(ResourceType.BROKER, str(node_id))
    settings = admin.describe_configs([broker])[broker].result(30).values()
    defaults = {
        each.name: synonym.value
        for each in settings
        for synonym in each.synonyms.values()
        if synonym.source == ConfigSource.DEFAULT_CONFIG.value
    }
    return {
        each.name: (defaults.get(each.name), each.value)
        for each in settings
        if not each.is_sensitive and each.value != defaults.get(each.name)
    }


def write_and_read(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"hello")
    assert producer.flush(20) == 0
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        reader.subscribe([topic])
        message = reader.poll(20)
        assert message is not None
        return message.value()
    finally:
        reader.close()


@pytest.mark.proof
def test_a_row_goes_in_and_comes_out(kafka_broker, topic):
    assert write_and_read(kafka_broker, topic(partitions=1)) == b"hello"


def test_a_topic_has_the_partitions_and_the_configuration_asked_for(kafka_broker, topic):
    name = topic(partitions=3, config={"max.message.bytes": "2000"})
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    assert len(admin.list_topics(name, timeout=60).topics[name].partitions) == 3
    with pytest.raises(LocalEnvironmentError, match="already exists"):
        kafka_broker.create_topic(name)


@pytest.mark.proof
def test_a_second_broker_gets_other_ports_and_closing_leaves_nothing(kafka_broker):
    with EmbeddedKafka() as other:
        assert other.bootstrap_servers != kafka_broker.bootstrap_servers
        data = other._data
        assert len(brokers_of(str(data))) == 2  # the guard and Java
    assert brokers_of(str(data)) == []
    assert not data.exists()
    assert (other.log_folder / "node-1" / "server.log").stat().st_size > 0


@pytest.mark.proof
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_broker_outlives_the_process_that_started_it(how):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        _, data = parent.stdout.readline().split()
        assert brokers_of(data)
        os.kill(parent.pid, how)
    wait_until(lambda: not brokers_of(data))
    wait_until(lambda: not Path(data).exists())


def test_a_guard_that_is_killed_takes_its_broker_along():
    with EmbeddedKafka() as broker:
        data = str(broker._data)
        os.kill(broker._processes[1]._process.pid, signal.SIGKILL)
        wait_until(lambda: not brokers_of(data))
        assert not broker.running, "`airflow-eos broker start` brings it back"


@pytest.mark.proof
def test_a_killed_broker_starts_again_with_its_data():
    with EmbeddedKafka() as broker:
        name = broker.create_topic("kept")
        broker.kill()
        broker.start(1)
        assert write_and_read(broker, name) == b"hello"


@pytest.mark.proof
def test_three_brokers_form_a_cluster_that_lives_on_without_one():
    with EmbeddedKafka(brokers=3) as cluster:
        name = cluster.create_topic("copied", partitions=3)
        cluster.kill(2)
        assert write_and_read(cluster, name) == b"hello"
        cluster.start(2)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        assert set(admin.list_topics(timeout=60).brokers) == {1, 2, 3}


@pytest.mark.proof
@pytest.mark.parametrize("level", [0, 1])
def test_features_are_formatted_as_asked(level):
    with EmbeddedKafka(features={"transaction.version": level}) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        found = admin.describe_features()["transaction.version"]
        admin.close()
    assert found.get("finalized", (0, 0))[1] == level  # level 0 is not listed


@pytest.mark.proof
def test_a_further_listener_speaks_its_protocol():
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required user_ann="secret";'
    with EmbeddedKafka(
        {"sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl.plain.sasl.jaas.config": login},
        listeners={"SASL": "SASL_PLAINTEXT"},
    ) as broker:
        admin = AdminClient(
            {
                "bootstrap.servers": broker.addresses("SASL"),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "ann",
                "sasl.password": "secret",
            }
        )
        assert set(admin.list_topics(timeout=60).brokers) == {1}


@pytest.mark.proof
def test_a_property_that_kafka_refuses_is_named_and_nothing_is_left():
    broker = EmbeddedKafka({"log.retention.ms": "many"})
    with pytest.raises(LocalEnvironmentError, match=r"many"):
        broker.start()
    assert brokers_of(str(broker._data)) == []
    assert not broker._data.exists()


@pytest.mark.proof
@pytest.mark.parametrize("brokers", [1, pytest.param(3, marks=pytest.mark.proof)])
def test_a_broker_differs_from_kafkas_defaults_in_what_is_listed_and_in_nothing_else(brokers):
    """Asked of the running broker: what was told to it, each with Kafka's default beside it."""
    with EmbeddedKafka(brokers=brokers) as kafka:
        told = not_at_default(kafka.bootstrap_servers, node_id=1)
        nodes = [process.node for process in kafka._processes.values()]
        itself = {*own_properties(nodes[0], nodes, {}), "broker.id"}  # former name of node.id
        assert {name: value for name, value in told.items() if name not in itself} == {
            each.name: (each.default, differences(brokers)[each.name])
            for each in DIFFERENCES
            if each.name in differences(brokers)
        }

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from airflow_eos.local.broker import (
    DIFFERENCES,
    HOST,
    differences,
    free_ports,
    lay_out,
    new_cluster_id,
    own_properties,
    server_properties,
)


def properties(count, listeners=None, extra=None, which=0):
    nodes = lay_out(count, Path("data"), Path("logs"), list(listeners or {}))
    text = server_properties(nodes[which], nodes, listeners or {}, extra or {})
    return dict(line.split("=", 1) for line in text.splitlines()), nodes


def test_ports_in_use_are_not_given():
    with socket.socket() as taken:
        port = free_ports(1)[0]
        taken.bind((HOST, port))
        taken.listen()
        assert port not in free_ports(50)


def test_one_node_keeps_one_copy_and_listens_on_loopback_only():
    found, _ = properties(1)
    assert found["transaction.state.log.replication.factor"] == "1"
    assert found["transaction.state.log.min.isr"] == "1"
    assert all(f"://{HOST}:" in item for item in found["listeners"].split(","))


def test_three_nodes_vote_and_keep_three_copies():
    found, nodes = properties(3, which=2)
    assert found["node.id"] == "3"
    assert len(found["controller.quorum.voters"].split(",")) == 3
    assert "transaction.state.log.replication.factor" not in found  # Kafka's default is 3
    assert found["default.replication.factor"] == "3"
    assert found["min.insync.replicas"] == "2"
    assert len({port for node in nodes for port in node.ports.values()}) == 6


def test_a_further_listener_is_advertised_with_its_protocol():
    found, nodes = properties(1, {"SASL": "SASL_PLAINTEXT"})
    assert f"SASL://{HOST}:{nodes[0].ports['SASL']}" in found["advertised.listeners"]
    assert "SASL:SASL_PLAINTEXT" in found["listener.security.protocol.map"]
    assert "CONTROLLER" not in found["advertised.listeners"]


@pytest.mark.parametrize("key", ["min.insync.replicas", "transaction.max.timeout.ms"])
def test_the_callers_properties_win(key):
    found, _ = properties(1, extra={key: "7"})
    assert found[key] == "7"


def test_a_cluster_id_is_22_characters_and_no_option():
    found = [new_cluster_id() for _ in range(200)]
    assert all(len(item) == 22 and item[0] != "-" for item in found)


def test_the_docs_list_each_setting_that_is_not_kafkas_default():
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    for each in DIFFERENCES:
        row = f"| `{each.name}` | {each.default} | {each.value(1)} | {each.value(3)} | {each.why} |"
        assert row in page
    assert page.count("\n| `") - page.count("\n| `kafka_broker`") - 1 == len(DIFFERENCES)


def test_what_is_told_to_a_broker_is_in_the_table_or_is_itself():
    found, nodes = properties(3)
    assert found == own_properties(nodes[0], nodes, {}) | differences(3)

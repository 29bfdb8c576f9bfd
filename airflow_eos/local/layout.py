"""What a broker's ``server.properties`` says: arguments in, text out."""

from __future__ import annotations

import base64
import random
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError

HOST = "127.0.0.1"
PLAIN = "PLAINTEXT"
CONTROLLER = "CONTROLLER"
# Below the range from which systems take ports of outgoing connections: there, a client could sit
# on the port of a broker that is stopped and started again.
_PORTS = range(18_000, 32_000)
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Node:
    """One broker: its id, its folders, and a port for each listener."""

    id: int
    data: Path
    logs: Path
    ports: Mapping[str, int]


def free_ports(count: int) -> list[int]:
    """Ports on the loopback interface on which nobody listens now.

    Raises:
        LocalEnvironmentError: none were found.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, _TRIES):
        if len(found) == count:
            return found
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    raise LocalEnvironmentError(
        f"found {len(found)} free ports on {HOST} among {_TRIES} tried, needed {count}: "
        "end other brokers on this machine and try again"
    )


def lay_out(count: int, data: Path, logs: Path, listeners: Sequence[str]) -> tuple[Node, ...]:
    """Give each of ``count`` nodes its folders and free ports."""
    names = [PLAIN, CONTROLLER, *listeners]
    ports = iter(free_ports(count * len(names)))
    return tuple(
        Node(
            id=number,
            data=data / f"node-{number}",
            logs=logs / f"node-{number}",
            ports={name: next(ports) for name in names},
        )
        for number in range(1, count + 1)
    )


def server_properties(
    node: Node,
    nodes: Sequence[Node],
    listeners: Mapping[str, str],
    extra: Mapping[str, str],
) -> str:
    """The ``server.properties`` of one node.

    Args:
        node: whose file it is.
        nodes: all nodes of the cluster.
        listeners: further listeners, name to security protocol.
        extra: properties of the caller, which win.
    """
    copies = min(3, len(nodes))
    open_names = [name for name in node.ports if name != CONTROLLER]
    protocols = {PLAIN: "PLAINTEXT", CONTROLLER: "PLAINTEXT", **listeners}
    properties = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": ",".join(
            f"{other.id}@{HOST}:{other.ports[CONTROLLER]}" for other in nodes
        ),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in node.ports.items()),
        "advertised.listeners": ",".join(f"{n}://{HOST}:{node.ports[n]}" for n in open_names),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAIN,
        "log.dirs": node.data / "log",
        # A missing topic must be an error in tests, as it is on a cluster that people care for.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "share.coordinator.state.topic.replication.factor": copies,
        "min.insync.replicas": max(1, copies - 1),
        "transaction.state.log.min.isr": max(1, copies - 1),
        "share.coordinator.state.topic.min.isr": max(1, copies - 1),
        # 50 partitions each would only make the first transaction slow.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # A broker that was killed may register again only when its old session is over (9 s else).
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        **extra,
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them: 16 random bytes, URL-safe base64 without padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's tools would take it for an option
            return text

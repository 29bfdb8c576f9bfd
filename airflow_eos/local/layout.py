"""What a broker's ``server.properties`` says: arguments in, text out."""

from __future__ import annotations

import base64
import random
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
        if is_free(port):
            found.append(port)
    raise LocalEnvironmentError(
        f"found {len(found)} free ports on {HOST} among {_TRIES} tried, needed {count}: "
        "end other brokers on this machine and try again"
    )


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def lay_out(
    count: int, data: Path, logs: Path, listeners: Sequence[str], port: int | None = None
) -> tuple[Node, ...]:
    """Give each of ``count`` nodes its folders and free ports; the first one ``port``, if free."""
    names = [PLAIN, CONTROLLER, *listeners]
    found = free_ports(count * len(names))
    ports = iter([port, *found[1:]] if port is not None and is_free(port) else found)
    return tuple(
        Node(
            id=number,
            data=data / f"node-{number}",
            logs=logs / f"node-{number}",
            ports={name: next(ports) for name in names},
        )
        for number in range(1, count + 1)
    )


class Difference(NamedTuple):
    """A setting that is another one here than Kafka's default, and why.

    Attributes:
        name: as in ``server.properties``.
        default: Kafka's own.
        value: here; given how many copies there can be, 1 to 3.
        why: for people.
    """

    name: str
    default: str
    value: Callable[[int], int]
    why: str


_ONE_BROKER = "one broker has no others to copy to"
_KEPT_COPY = "a topic outlives the loss of one of several brokers"
_FEW = "50 partitions each make the first transaction, or group, of a new broker slow"

DIFFERENCES = (
    Difference("default.replication.factor", "1", lambda copies: copies, _KEPT_COPY),
    Difference("min.insync.replicas", "1", lambda copies: max(1, copies - 1), _KEPT_COPY),
    Difference("offsets.topic.replication.factor", "3", lambda copies: copies, _ONE_BROKER),
    Difference("transaction.state.log.replication.factor", "3", lambda copies: copies, _ONE_BROKER),
    Difference(
        "transaction.state.log.min.isr", "2", lambda copies: max(1, copies - 1), _ONE_BROKER
    ),
    Difference(
        "share.coordinator.state.topic.replication.factor", "3", lambda copies: copies, _ONE_BROKER
    ),
    Difference(
        "share.coordinator.state.topic.min.isr", "2", lambda copies: max(1, copies - 1), _ONE_BROKER
    ),
    Difference("offsets.topic.num.partitions", "50", lambda _: 4, _FEW),
    Difference("transaction.state.log.num.partitions", "50", lambda _: 4, _FEW),
    Difference(
        "group.initial.rebalance.delay.ms", "3000", lambda _: 0, "a test's consumer waits for it"
    ),
    Difference(
        "broker.session.timeout.ms",
        "9000",
        lambda _: 3000,
        "a broker that was killed may register again only when its old session is over",
    ),
    Difference(
        "broker.heartbeat.interval.ms", "2000", lambda _: 500, "a session of 3 s needs some of them"
    ),
)
"""All of them: whatever else a broker can be told is as Kafka ships it, unless a test says so."""


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
    properties = own_properties(node, nodes, listeners) | differences(len(nodes)) | dict(extra)
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def own_properties(
    node: Node, nodes: Sequence[Node], listeners: Mapping[str, str]
) -> dict[str, str]:
    """Who it is and where: what each broker has to be told."""
    open_names = [name for name in node.ports if name != CONTROLLER]
    protocols = {PLAIN: "PLAINTEXT", CONTROLLER: "PLAINTEXT", **listeners}
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(
            f"{other.id}@{HOST}:{other.ports[CONTROLLER]}" for other in nodes
        ),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in node.ports.items()),
        "advertised.listeners": ",".join(f"{n}://{HOST}:{node.ports[n]}" for n in open_names),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAIN,
        "log.dirs": str(node.data / "log"),
    }


def differences(brokers: int) -> dict[str, str]:
    """Those of :data:`DIFFERENCES` that a cluster of so many brokers has."""
    values = {each: str(each.value(min(3, brokers))) for each in DIFFERENCES}
    return {each.name: value for each, value in values.items() if value != each.default}


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them: 16 random bytes, URL-safe base64 without padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's tools would take it for an option
            return text

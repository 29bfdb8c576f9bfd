"""Kafka's other servers, as their documents say they answer: a proxy in front of a real broker.

A profile takes away: messages, versions, features, settings. What is left is answered by Apache
Kafka, so it shows how we start and deliver there, and nothing of how such a server keeps its word.
``docs/brokers.md`` has a row for each, with its source; a test holds the rows against this table.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kafka.protocol.admin import DescribeClusterResponse, DescribeConfigsResponse
from kafka.protocol.metadata import ApiVersionsResponse, FindCoordinatorResponse, MetadataResponse

KEYS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "WriteTxnMarkers": 27,
    "TxnOffsetCommit": 28,
    "DescribeConfigs": 32,
    "DescribeQuorum": 55,
    "DescribeProducers": 61,
    "DescribeTransactions": 65,
    "ListTransactions": 66,
}
_TRANSACTIONS = ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
_KIP_664 = ("DescribeProducers", "DescribeTransactions", "ListTransactions")
_CLUSTER_AUTHORIZATION_FAILED = 31
_OF_A_TOPIC, _OF_A_BROKER = 2, 4


@dataclass(frozen=True)
class Profile:
    """What one server leaves out.

    Attributes:
        name: as the row of ``docs/brokers.md`` has it.
        source: where it is written.
        read: when, as a date.
        without: messages that it does not speak.
        most: the highest version of others.
        tells: the broker settings that it tells; None: all.
        denied: nobody may read broker settings.
        topic: settings that its topics have besides.
        transaction_version: the feature; None as the broker behind has it.
        refused: what a start's refusal says; empty: it delivers.
    """

    name: str
    source: str
    read: str
    without: tuple[str, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    tells: tuple[str, ...] | None = None
    denied: bool = False
    topic: Mapping[str, str] = field(default_factory=dict)
    transaction_version: int | None = 0
    refused: str = ""


PROFILES = (
    Profile(
        "Redpanda",
        "src/v/kafka/server/handlers (redpanda-data/redpanda)",
        "2026-11-26",
        without=("WriteTxnMarkers", "DescribeQuorum"),
        most={
            "Produce": 7,
            "Fetch": 11,
            "ListOffsets": 4,
            "Metadata": 8,
            "OffsetFetch": 4,
            "FindCoordinator": 2,
            "InitProducerId": 3,
            "AddPartitionsToTxn": 2,
            "EndTxn": 3,
            "TxnOffsetCommit": 3,
            "ListTransactions": 0,
        },
        tells=("log.retention.ms", "num.partitions", "auto.create.topics.enable"),
    ),
    Profile(
        "WarpStream",
        "docs.warpstream.com/warpstream/reference/protocol-and-feature-support",
        "2026-11-26",
        without=("WriteTxnMarkers", "DescribeProducers", "DescribeQuorum"),
        tells=(),
    ),
    Profile(
        "Bufstream",
        "buf.build/docs/bufstream/kafka-compatibility/conformance",
        "2026-11-26",
        without=("WriteTxnMarkers", "DescribeQuorum"),
        most={"Produce": 10, "Fetch": 16, "Metadata": 12, "EndTxn": 3, "ListTransactions": 0},
        tells=(),
    ),
    Profile(
        "Azure Event Hubs",
        "learn.microsoft.com/azure/event-hubs/apache-kafka-transactions; its messages: "
        "Azure/azure-event-hubs-for-kafka 209",
        "2026-11-26",
        without=("WriteTxnMarkers", "DescribeQuorum", *_KIP_664),
        most={"Produce": 7, "Fetch": 10, "Metadata": 7, "DescribeConfigs": 2},
        tells=(),
        refused="ListTransactions, to find what a driver that died has left open, is missing",
    ),
    Profile(
        "Azure Event Hubs, Standard",
        "Azure/azure-event-hubs-for-kafka 209",
        "2026-11-26",
        without=(*_TRANSACTIONS, "WriteTxnMarkers", "TxnOffsetCommit", "DescribeQuorum", *_KIP_664),
        most={"Produce": 7, "Fetch": 10, "Metadata": 7, "DescribeConfigs": 2},
        tells=(),
        refused="EndTxn, to commit in one process what another has prepared, is missing",
    ),
    Profile(
        "Amazon MSK",
        "docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html",
        "2026-11-26",
        transaction_version=None,
    ),
    Profile(
        "Amazon MSK Serverless",
        "docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html",
        "2026-11-26",
        denied=True,
    ),
    Profile(
        "Confluent Cloud",
        "docs.confluent.io/cloud/current/clusters/cluster-types.html",
        "2026-11-26",
        without=("DescribeQuorum",),
        tells=(),
        transaction_version=None,
    ),
    Profile(
        "AutoMQ",
        "docs.automq.com/automq/what-is-automq/compatibility-with-apache-kafka",
        "2026-11-26",
        transaction_version=None,
    ),
    Profile(
        "StreamNative Ursa",
        "docs.streamnative.io/cloud/build/kafka-clients/compatibility/kafka-protocol-and-features",
        "2026-11-26",
        without=(*_TRANSACTIONS, "WriteTxnMarkers", "DescribeQuorum", *_KIP_664),
        tells=(),
        refused="EndTxn, to commit in one process what another has prepared, is missing",
    ),
    Profile(
        "a diskless topic (KIP-1150)",
        "aiven.io/docs/products/kafka/diskless/concepts/limitations",
        "2026-11-26",
        topic={"diskless.enable": "true"},
        transaction_version=None,
        refused="is diskless (diskless.enable=true): such a topic takes no transactions",
    ),
)


class ProfileProxy:
    """Stands in front of one broker, and says of it what the profile says; a context manager."""

    def __init__(self, bootstrap_servers: str, profile: Profile) -> None:
        host, _, port = bootstrap_servers.partition(":")
        self._broker = host, int(port)
        self._profile = profile
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.asked: set[int] = set()
        """The keys of all messages that came through."""
        self._answers = {
            18: (ApiVersionsResponse, self._versions),
            3: (MetadataResponse, self._addresses),
            10: (FindCoordinatorResponse, self._coordinator),
            60: (DescribeClusterResponse, self._addresses),
            32: (DescribeConfigsResponse, self._configs),
        }

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                self._open += [client, broker]
                asked: dict[int, tuple[int, int]] = {}
                for way in (self._requests, self._responses):
                    threading.Thread(target=way, args=(client, broker, asked), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, asked: Any) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(client)
                key, version, correlation = struct.unpack_from(">hhi", frame)
                self.asked.add(key)
                asked[correlation] = key, version
                broker.sendall(struct.pack(">i", len(frame)) + frame)
        with contextlib.suppress(OSError):
            broker.shutdown(socket.SHUT_WR)

    def _responses(self, client: socket.socket, broker: socket.socket, asked: Any) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(broker)
                [correlation] = struct.unpack_from(">i", frame)
                key, version = asked.pop(correlation, (-1, 0))
                if key in self._answers:
                    kind, changed = self._answers[key]
                    # ApiVersions has the old header in every version, or nobody could read it.
                    tags = 1 if key != 18 and kind.flexible_version_q(version) else 0
                    answer = kind.decode(frame[4 + tags :], version=version)
                    answer._header = None  # which encoding looks for, and decoding leaves out
                    changed(answer)
                    frame = frame[: 4 + tags] + bytes(answer.encode(version=version))
                client.sendall(struct.pack(">i", len(frame)) + frame)
        for each in (client, broker):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    # -- what is said otherwise ----------------------------------------------------------------

    def _versions(self, answer: Any) -> None:
        missing = {KEYS[name] for name in self._profile.without}
        most = {KEYS[name]: version for name, version in self._profile.most.items()}
        answer.api_keys = [each for each in answer.api_keys if each.api_key not in missing]
        for each in answer.api_keys:
            each.max_version = min(each.max_version, most.get(each.api_key, each.max_version))
        level = self._profile.transaction_version
        for feature in answer.finalized_features or ():
            if feature.name == "transaction.version" and level is not None:
                feature.max_version_level = feature.min_version_level = level

    def _addresses(self, answer: Any) -> None:
        for each in answer.brokers:
            each.host, each.port = "127.0.0.1", self.port

    def _coordinator(self, answer: Any) -> None:
        for each in answer.coordinators or [answer]:
            if each.error_code == 0:
                each.host, each.port = "127.0.0.1", self.port

    def _configs(self, answer: Any) -> None:
        for result in answer.results:
            if result.resource_type == _OF_A_BROKER:
                if self._profile.denied:
                    result.error_code, result.configs = _CLUSTER_AUTHORIZATION_FAILED, []
                elif self._profile.tells is not None:
                    result.configs = [c for c in result.configs if c.name in self._profile.tells]
            elif result.resource_type == _OF_A_TOPIC and result.configs:
                kind = type(result.configs[0])
                for name, value in self._profile.topic.items():
                    result.configs.append(kind(name=name, value=value, config_source=1))


def _frame(sock: socket.socket) -> bytes:
    [size] = struct.unpack(">i", _exactly(sock, 4))
    return _exactly(sock, size)


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = sock.recv(min(1 << 20, count - len(found)))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)

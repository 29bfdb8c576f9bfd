"""The fake broker behind the interface of ``airflow_eos.kafka.client.connection.ConnectionPool``.

So listing, taking ids, EndTxn, settling and asking the log are the real code, down to the message.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from crc32c import crc32c

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import BrokerCapabilities
from airflow_eos.kafka.client.fetch import READ_COMMITTED
from airflow_eos.kafka.client.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListTransactionsRequest,
)
from airflow_eos.kafka.client.settings import DEFAULT_TOPIC
from airflow_eos.kafka.transactions.identity import TransactionIdentity
from tests.model.broker import PARTITIONS, UNFINISHED, Broker, State, Transaction
from tests.model.scheduler import external
from tests.support.metadata import capable

CLUSTER_ID = "cluster"
TOPIC = "out"
_TRIES = 3
_EARLIEST = -2  # ListOffsetsRequest.EARLIEST_TIMESTAMP
_STATES = {State.OPEN: "Ongoing", State.COMMITTING: "PrepareCommit", State.ABORTING: "PrepareAbort"}
_SUMMED_FROM = 21
_HEADER = struct.Struct(">qiibIhiqqqhii")  # KIP-98, as in airflow_eos.kafka.client.fetch


def no_answer() -> Exception:
    return KafkaUnavailableError("no answer")


class VirtualTime:
    """Stands for the module ``time`` of a deadline: three pauses use up a minute."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, _seconds: float) -> None:
        self._now += 21.0


class FakeCluster:
    """See :class:`airflow_eos.kafka.client.cluster.ClusterView`: one broker, which leads all."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.transaction_version = broker.version

    def capabilities(self) -> BrokerCapabilities:
        most = {InitProducerIdRequest: 5 if self._broker.two_phase == "not spoken" else 6}
        return capable(transaction_version=self.transaction_version, most=most)

    def coordinators(self, ids: Collection[str], *, timeout_s: float = 30.0) -> dict[str, int]:
        del timeout_s
        return dict.fromkeys(ids, 1)

    def forget_coordinators(self, ids: Iterable[str]) -> None: ...

    def require_coordinators(self, *, timeout_s: float) -> None: ...

    def brokers(self) -> list[int]:
        return [1]

    def topic_config(self, _topic: str, names: Collection[str]) -> dict[str, str]:
        return {name: "delete" for name in names if name == "cleanup.policy"}

    def leaders(self, topic: str, *, refresh: bool = False) -> dict[int, int]:
        return self.find_leaders(topic, refresh=refresh)

    def find_leaders(self, _topic: str, *, refresh: bool = False) -> dict[int, int]:
        del refresh
        return dict.fromkeys(range(PARTITIONS), 1)


class FakeWire:
    """See :class:`airflow_eos.kafka.client.connection.ConnectionPool`."""

    cluster_id = CLUSTER_ID
    settings = SimpleNamespace(prefixes_topic=DEFAULT_TOPIC)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.cluster = FakeCluster(broker)

    def close(self) -> None:
        """Nothing is held."""

    def submit(
        self, message: Any, *, node_id: int | None, timeout_s: float | None = None
    ) -> Future[Any]:
        del node_id, timeout_s
        future: Future[Any] = Future()
        try:
            future.set_result(self._ask(message))
        except KafkaUnavailableError as error:
            future.set_exception(error)
        return future

    def request_many(
        self, requests: Sequence[tuple[Any, int | None]], *, timeout_s: float = 30.0
    ) -> list[Any]:
        del timeout_s
        return [self._repeat(message) for message, _ in requests]

    def highest_version(self, _message: Any) -> int:
        return 2

    def _repeat(self, message: Any) -> Any:
        for _ in range(_TRIES - 1):
            try:
                return self._ask(message)
            except KafkaUnavailableError:
                continue
        return self._ask(message)

    def _ask(self, message: Any) -> Any:
        doing, answer = {
            EndTxnRequest: ("EndTxn", self._end),
            InitProducerIdRequest: ("InitProducerId", self._init),
            ListTransactionsRequest: ("ListTransactions", self._list),
            DescribeTransactionsRequest: ("DescribeTransactions", self._describe),
            FetchRequest: ("Fetch", self._fetch),
            ListOffsetsRequest: ("ListOffsets", self._offsets),
            DescribeProducersRequest: ("DescribeProducers", self._producers),
        }[type(message)]
        return external(doing, lambda: answer(message), no_answer)

    def _end(self, message: Any) -> Any:
        identity = TransactionIdentity(
            message.transactional_id, message.producer_id, message.producer_epoch
        )
        version = 5 if self.cluster.transaction_version >= 2 else 4
        code = self._broker.end(identity, commit=message.committed, version=version)
        return SimpleNamespace(error_code=code)

    def _init(self, message: Any) -> Any:
        if message.enable2_pc and self._broker.two_phase != "offered":
            return SimpleNamespace(error_code=faults.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        code, identity = self._broker.init(message.transactional_id, message.transaction_timeout_ms)
        return SimpleNamespace(
            error_code=code,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
        )

    def _list(self, _message: Any) -> Any:
        states = [
            SimpleNamespace(
                transactional_id=t.identity.transactional_id, producer_id=t.identity.producer_id
            )
            for t in self._broker.ongoing()
        ]
        return SimpleNamespace(
            error_code=faults.NONE, transaction_states=states, unknown_state_filters=()
        )

    def _describe(self, message: Any) -> Any:
        states = [self._described(each) for each in message.transactional_ids]
        return SimpleNamespace(transaction_states=states)

    def _described(self, transactional_id: str) -> Any:
        held = self._broker.holders.get(transactional_id)
        if held is None:
            return SimpleNamespace(
                transactional_id=transactional_id, error_code=faults.TRANSACTIONAL_ID_NOT_FOUND
            )
        return SimpleNamespace(
            transactional_id=transactional_id,
            error_code=faults.NONE,
            transaction_state=_STATES.get(held.state, "Other"),
            producer_id=held.identity.producer_id,
            producer_epoch=held.identity.producer_epoch,
            transaction_start_time_ms=held.started_ms,
            transaction_timeout_ms=held.timeout_ms,
            topics=[SimpleNamespace(topic=TOPIC, partitions=[held.partition])],
        )

    def _fetch(self, message: Any) -> Any:
        [topic] = message.topics
        [wanted] = topic.partitions
        index, offset = wanted.partition, wanted.fetch_offset
        log = self._broker.partitions[index]
        at = [t for t in log.batches if t.first <= offset <= t.last]
        answer = SimpleNamespace(
            error_code=faults.NONE if offset >= log.start else faults.OFFSET_OUT_OF_RANGE,
            high_watermark=log.end,
            last_stable_offset=log.last_stable,
            preferred_read_replica=-1,
            partition_index=index,
            records=b"".join(_batch(t) for t in at)
            or b"".join(_marker(t) for t in log.batches if t.marker == offset),
            aborted_transactions=[
                SimpleNamespace(producer_id=t.identity.producer_id, first_offset=t.first)
                for t in self._broker.aborted_over(index, offset)
            ],
        )
        self._broker.settle_down(index)  # whoever asks again finds the markers written
        return SimpleNamespace(responses=[SimpleNamespace(topic=TOPIC, partitions=[answer])])

    def _offsets(self, message: Any) -> Any:
        [topic] = message.topics
        committed_only = message.isolation_level == READ_COMMITTED
        answers = []
        for wanted in topic.partitions:
            log = self._broker.partitions[wanted.partition_index]
            end = log.last_stable if committed_only else log.end
            answers.append(
                SimpleNamespace(
                    error_code=faults.NONE,
                    partition_index=wanted.partition_index,
                    offset=log.start if wanted.timestamp == _EARLIEST else end,
                )
            )
            if committed_only:
                self._broker.settle_down(wanted.partition_index)
        return SimpleNamespace(topics=[SimpleNamespace(name=topic.name, partitions=answers)])

    def _producers(self, message: Any) -> Any:
        [topic] = message.topics
        answers = [self._producers_of(index) for index in topic.partition_indexes]
        return SimpleNamespace(topics=[SimpleNamespace(name=topic.name, partitions=answers)])

    def _producers_of(self, index: int) -> Any:
        opened = [t for t in self._broker.partitions[index].batches if t.state in UNFINISHED]
        active = [
            SimpleNamespace(
                producer_id=t.identity.producer_id,
                producer_epoch=t.identity.producer_epoch,
                coordinator_epoch=-1,
                current_txn_start_offset=t.first,
                last_timestamp=t.started_ms,
                last_sequence=len(t.rows) - 1,
            )
            for t in opened
        ]
        self._broker.settle_down(index)  # as above
        return SimpleNamespace(
            partition_index=index, error_code=faults.NONE, active_producers=active
        )


def _batch(transaction: Transaction) -> bytes:
    rows = len(transaction.rows)
    told = 0 if transaction.emptied else rows
    return _header(transaction, transaction.first, rows - 1, attributes=0x10, told=told)


def _marker(transaction: Transaction) -> bytes:
    return _header(transaction, transaction.marker, 0, attributes=0x30, told=1)


def _header(transaction: Transaction, at: int, more: int, *, attributes: int, told: int) -> bytes:
    whose = transaction.identity.producer_id, transaction.identity.producer_epoch
    made = _HEADER.pack(at, _HEADER.size - 12, 0, 2, 0, attributes, more, 0, 0, *whose, 0, told)
    summed = crc32c(made[_SUMMED_FROM:]).to_bytes(4, "big")
    return made[: _SUMMED_FROM - 4] + summed + made[_SUMMED_FROM:]

"""Requests to a consumer group's coordinator: committed offsets, members, permitted operations.

No group is joined. Requests may be repeated: where a response is lost, or the coordinator has
moved, the coordinator is found anew and asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import SHORTLY_S, Deadline
from airflow_eos.kafka.client.messages import (
    CoordinatorType,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
)

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.topics import TopicPartition


_NOBODY_YET = frozenset({faults.GROUP_ID_NOT_FOUND})
"""Error codes for a group that does not exist; Kafka itself answers with no offsets instead."""
_NO_CLASSIC_GROUP = "Dead"
_WITHOUT_MEMBERS = frozenset({"Empty", _NO_CLASSIC_GROUP})


class CommittedOffset(msgspec.Struct, frozen=True):
    """A group's committed offset of one partition (the next row's), and the text beside it."""

    offset: int
    metadata: str = ""


def _read_code(answer: Any) -> int:
    """Return the group's error code, else a partition's: its missing offset is no answer then."""
    parts = (each.error_code for topic in answer.topics for each in topic.partitions)
    return int(answer.error_code) or next((int(code) for code in parts if code), faults.NONE)


class GroupCoordinator:
    """Client of one consumer group's coordinator."""

    def __init__(self, wire: ConnectionPool, group: str) -> None:
        self.group = group
        self._wire = wire
        self._node: int | None = None

    def read(self, *, deadline_s: float = 60.0) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all committed offsets, without those of an open transaction.

        Raises:
            KafkaError: the group may not be read.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        # Versions up to 7 ask for one group, by names of topics; all brokers from 2.5 have them.
        request = OffsetFetchRequest(group_id=self.group, topics=None, max_version=7)
        answer = self.ask(
            request,
            _read_code,
            deadline_s=deadline_s,
            passes=_NOBODY_YET,
        )
        return {
            (topic.name, each.partition_index): CommittedOffset(
                each.committed_offset, each.metadata or ""
            )
            for topic in answer.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    def used_by(self, *, deadline_s: float = 60.0) -> str:
        """Return who consumes as the group now, for people; empty where nobody does.

        Of a group of a later protocol (KIP-848) DescribeGroups says what it says of one that does
        not exist, and Kafka takes offsets for it in a transaction: so the listing is asked as well.

        Raises:
            KafkaError: the group may not be described.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        found = self._described(rights=False, deadline_s=deadline_s)
        if clients := sorted(each.client_id for each in found.members):
            return f"{len(clients)} consumers now, as client {clients[0]!r}"
        if found.group_state != _NO_CLASSIC_GROUP:
            return ""
        request = ListGroupsRequest(states_filter=[], types_filter=[])
        answer = self.ask(request, lambda answer: int(answer.error_code), deadline_s=deadline_s)
        kinds = {
            each.group_type
            for each in answer.groups
            if each.group_id == self.group and each.group_state not in _WITHOUT_MEMBERS
        }
        return f"consumers now, by the protocol {min(kinds)!r}" if kinds else ""

    def rights(self, *, deadline_s: float = 60.0) -> frozenset[int] | None:
        """Return the operations on the group that these credentials may do; None: not told.

        Raises:
            KafkaError: these credentials may not even describe the group.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        told = self._described(rights=True, deadline_s=deadline_s).authorized_operations
        return None if told is None else frozenset(told)

    def _described(self, *, rights: bool, deadline_s: float) -> Any:
        # Version 6 answers a group that nobody has used yet with an error.
        request = DescribeGroupsRequest(
            groups=[self.group], include_authorized_operations=rights, max_version=5
        )
        answer = self.ask(
            request,
            lambda answer: faults.first_code(each.error_code for each in answer.groups),
            deadline_s=deadline_s,
        )
        return answer.groups[0]

    def ask(
        self,
        request: Any,
        code_of: Callable[[Any], int],
        *,
        deadline_s: float,
        passes: frozenset[int] = frozenset(),
        acl: str | None = None,
    ) -> Any:
        """Send a request until its answer is final; return that also for the codes in ``passes``.

        ``acl`` is the permission that the request needs, if other than Read on the group.

        Raises:
            KafkaError: the coordinator refused for good.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        deadline = Deadline(deadline_s, first_pause_s=SHORTLY_S)
        while True:
            last: int | KafkaUnavailableError
            try:
                if self._node is None:
                    self._node = self._find(deadline)
                answer = self._wire.submit(
                    request, node_id=self._node, timeout_s=deadline.answer_s
                ).result(deadline.remaining)
                last = code_of(answer)
                if last == faults.NONE or last in passes:
                    return answer
                if not faults.is_retriable(last):
                    raise self.refused(last, acl)
            except (KafkaUnavailableError, TimeoutError) as error:
                last = KafkaUnavailableError(str(error) or "no answer in time")
            if last not in (faults.CONCURRENT_TRANSACTIONS, faults.COORDINATOR_LOAD_IN_PROGRESS):
                self._node = None
            if not deadline.pause():
                raise KafkaUnavailableError(
                    f"The coordinator of consumer group {self.group!r} gave no final answer within "
                    f"{deadline}: {faults.said(last)}."
                )

    def refused(self, code: int, acl: str | None = None) -> KafkaError:
        """Return the error for an answer that does not change when the request is repeated."""
        doing = f"while asking for the offsets of consumer group {self.group!r}"
        of_group = f"Read on Group {self.group!r}"
        is_the_groups = code == faults.GROUP_AUTHORIZATION_FAILED or acl is None
        return faults.refusal(code, doing, acl=of_group if is_the_groups else str(acl))

    def _find(self, deadline: Deadline) -> int:
        request = FindCoordinatorRequest(
            key=self.group, key_type=CoordinatorType.GROUP.value, max_version=3
        )
        while True:
            found = self._wire.request(request, timeout_s=deadline.remaining)
            if found.error_code == faults.NONE:
                return int(found.node_id)
            if not faults.is_retriable(found.error_code):
                raise self.refused(found.error_code)
            if not deadline.pause():  # as while a new cluster creates __consumer_offsets
                raise KafkaUnavailableError(
                    f"No coordinator for consumer group {self.group!r}: "
                    f"{faults.error_name(found.error_code)} for {deadline}. Check that "
                    "__consumer_offsets has live replicas."
                )

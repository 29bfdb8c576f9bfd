"""What a client asks of a consumer group's coordinator: its committed offsets, and who is in it.

No group is joined. Asking may be repeated; where an answer is lost, or the coordinator has moved,
it is found anew and asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.errors import SHORTLY_S, Deadline
from airflow_eos.kafka.client.messages import (
    CoordinatorType,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_eos.kafka.client.connection import ConnectionPool

Place = tuple[str, int]
"""(topic, partition)"""


_NOBODY_YET = frozenset({faults.GROUP_ID_NOT_FOUND})
"""Of a group that never was, Kafka says that it has no offsets; others say that there is none."""


class CommittedOffset(msgspec.Struct, frozen=True):
    """What a group has committed for one partition: the next row's offset, and a text beside it."""

    offset: int
    metadata: str = ""


def _read_code(answer: Any) -> int:
    """Of the group, else of the first partition that has one: no offset there is no answer then."""
    parts = (each.error_code for topic in answer.topics for each in topic.partitions)
    return int(answer.error_code) or next((int(code) for code in parts if code), faults.NONE)


class GroupCoordinator:
    """One group, as its coordinator knows it.

    Args:
        wire: the connections to the cluster.
        group: its id.
    """

    def __init__(self, wire: ConnectionPool, group: str) -> None:
        self.group = group
        self._wire = wire
        self._node: int | None = None

    def read(self, *, deadline_s: float = 60.0) -> Mapping[Place, CommittedOffset]:
        """Every offset that is committed; what an open transaction holds is not.

        Raises:
            KafkaError: the group may not be read.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        # Up to version 7 there is one group and there are names of topics, in all brokers from 2.5.
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

    def members(self, *, deadline_s: float = 60.0) -> tuple[str, ...]:
        """The client ids of those who consume as this group now.

        Raises:
            KafkaError: the group may not be described.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        found = self._described(rights=False, deadline_s=deadline_s)
        return tuple(sorted(each.client_id for each in found.members))

    def rights(self, *, deadline_s: float = 60.0) -> frozenset[int] | None:
        """What these credentials may do with the group, by Kafka's own operations; None: not told.

        Raises:
            KafkaError: they may not even describe it.
            KafkaUnavailableError: no coordinator answered within ``deadline_s``.
        """
        told = self._described(rights=True, deadline_s=deadline_s).authorized_operations
        return None if told is None else frozenset(told)

    def _described(self, *, rights: bool, deadline_s: float) -> Any:
        # Version 6 has an error for a group that nobody has used yet.
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
        """Ask until the answer is none that passes by itself; ``passes`` are the caller's to read.

        ``acl`` is what the request needs, where that is not Read on the group alone.

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
        """The error for an answer that no repeating helps."""
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

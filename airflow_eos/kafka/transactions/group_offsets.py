"""The offsets of a consumer group, set in a Kafka transaction under one fixed id.

This is sendOffsetsToTransaction. A plain OffsetCommit could not do it: a driver that sleeps between
reading the committed offsets and committing could replace a newer offset by an older one. Here a
process takes the id first (InitProducerId), and *then* reads the committed offsets:

* it sees all offsets that another process committed before: InitProducerId answers only once a
  transaction that is ending has ended;
* offsets that another process has prepared and not committed are aborted;
* a process that takes the id later fences it: its own offsets are then never committed.

So no other process can have set offsets between its read and its commit, however long it sleeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.log import Log
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.consumer_groups import CommittedOffset, GroupCoordinator
from airflow_eos.kafka.client.errors import SHORTLY_S, Deadline, NextStep, next_step
from airflow_eos.kafka.client.messages import TxnOffsetCommitRequest
from airflow_eos.kafka.transactions.coordinator import (
    EndResult,
    TransactionCoordinator,
    end_transactions,
)
from airflow_eos.kafka.transactions.identity import TransactionIdentity

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.topics import TopicPartition

log = Log(__name__)

_TIMEOUT_MS = 60_000
"""The transaction timeout. Nothing waits for it: the next transaction aborts one left open."""
_SHOWN_S = 2.0
_NEW_TOPIC_S = 1.2
"""How long an unknown topic is retried: other brokers learn of a new partition a moment later."""
_FENCED = frozenset(
    {
        faults.INVALID_PRODUCER_EPOCH,
        faults.INVALID_TXN_STATE,
        faults.INVALID_PRODUCER_ID_MAPPING,
        faults.UNKNOWN_PRODUCER_ID,
        faults.PRODUCER_FENCED,
        faults.TRANSACTION_ABORTABLE,
    }
)


def transactional_id(group: str) -> str:
    """Return the one id under which a group's offsets are set; no sink task's id ends like it."""
    return f"{group}-offsets"


class GroupOffsets(GroupCoordinator):
    """Reader and setter of one consumer group's offsets, for any process."""

    def replace(
        self,
        wanted: Callable[
            [Mapping[TopicPartition, CommittedOffset]], Mapping[TopicPartition, CommittedOffset]
        ],
        *,
        deadline_s: float = 60.0,
    ) -> None:
        """Commit the offsets that ``wanted`` returns for the committed ones, until it returns none.

        Where another process takes the id meanwhile, the id is taken again and ``wanted`` is called
        again, with the offsets committed by then. Offsets of a topic that is gone are left out.

        Raises:
            KafkaError: refused for good, with the ACL that is missing.
            KafkaUnavailableError: not committed within ``deadline_s``; call again.
        """
        deadline = Deadline(deadline_s)
        while True:
            identity = TransactionCoordinator(self._wire).init(
                transactional_id(self.group), _TIMEOUT_MS, deadline_s=deadline.remaining
            )
            offsets = wanted(self.read(deadline_s=deadline.remaining))
            if not offsets:
                return
            failpoint("group-taken")
            held = self._prepared(identity, offsets, deadline)
            if held == 0:
                return
            if held:
                failpoint("group-prepared")
                ended = end_transactions(
                    self._wire, [identity], commit=True, deadline_s=deadline.remaining
                )
                if ended[identity] is EndResult.DONE and self._shows(wanted, deadline):
                    return
            if not deadline.pause():
                raise KafkaUnavailableError(
                    f"The offsets of consumer group {self.group!r} could not be set within "
                    f"{deadline}: others take transactional id {transactional_id(self.group)!r} "
                    "again and again. Which other pipeline names that group?"
                )

    def _shows(
        self,
        wanted: Callable[
            [Mapping[TopicPartition, CommittedOffset]], Mapping[TopicPartition, CommittedOffset]
        ],
        deadline: Deadline,
    ) -> bool:
        """Whether ``wanted`` returns none within a moment after the transaction was committed."""
        shortly = Deadline(min(_SHOWN_S, deadline.remaining), first_pause_s=SHORTLY_S)
        while wanted(self.read(deadline_s=deadline.remaining)):
            if not shortly.pause():
                return False
        return True

    def _prepared(
        self,
        identity: TransactionIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
    ) -> int | None:
        """Add the offsets to the transaction; return how many, or None if the id was taken."""
        together = self._wire.cluster.transaction_version >= 2  # KIP-890: the commit adds the group
        if not together:
            added = TransactionCoordinator(self._wire).add_offsets(
                identity, self.group, deadline_s=deadline.remaining
            )
            if next_step(added) is NextStep.LOOK:
                return None
            if added != faults.NONE:
                raise self.refused(added)
        request = self._request(identity, offsets, version=5 if together else 4)
        unknown = Deadline(_NEW_TOPIC_S)
        while True:
            answer = self.ask(
                request,
                _code,
                deadline_s=deadline.remaining,
                passes=_FENCED | {faults.UNKNOWN_TOPIC_OR_PARTITION},
                acl=f"Read on Topic {', '.join(sorted({repr(topic) for topic, _ in offsets}))}",
            )
            code = _code(answer)
            if code in _FENCED:
                return None
            if code == faults.NONE:
                return len(offsets)
            if not unknown.pause():
                log.warning("offsets_of_a_topic_that_is_gone", group=self.group)
                return _codes(answer).count(faults.NONE)

    def _request(
        self,
        identity: TransactionIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        version: int,
    ) -> Any:
        topic_of = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition_of = topic_of.TxnOffsetCommitRequestPartition
        topics: defaultdict[str, list[Any]] = defaultdict(list)
        for (topic, partition), each in sorted(offsets.items()):
            topics[topic].append(
                partition_of(
                    partition_index=partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=-1,
                    committed_metadata=each.metadata,
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=identity.transactional_id,
            group_id=self.group,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=[topic_of(name=topic, partitions=parts) for topic, parts in topics.items()],
            max_version=version,
        )


def _code(answer: Any) -> int:
    """Return the partitions' decisive code: a final one first, then an unknown topic, then none."""
    codes = set(_codes(answer))
    telling = sorted(codes - {faults.NONE, faults.UNKNOWN_TOPIC_OR_PARTITION})
    if telling:
        return telling[0]
    missing = faults.UNKNOWN_TOPIC_OR_PARTITION
    return missing if missing in codes else faults.NONE


def _codes(answer: Any) -> list[int]:
    return [int(each.error_code) for topic in answer.topics for each in topic.partitions]

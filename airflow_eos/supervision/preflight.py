"""What is checked before anything is started: the chain of timeouts, by the sink's own rule."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_eos.closing import closed_on_error

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.protocol.participant import Participant


@dataclass(frozen=True, slots=True)
class TimeoutBudget:
    """What a transaction has to outlive; the names are those of ``KafkaSink``.

    Attributes:
        trigger_interval: between two batches.
        batch_within: the longest that a batch is expected to take.
        recover_within: after a crash, recovery is promised to have run within this.
        transaction_timeout: after this the broker aborts an open transaction, promised or not.
    """

    trigger_interval: timedelta = timedelta(seconds=1)
    batch_within: timedelta = timedelta(minutes=1)
    recover_within: timedelta = timedelta(minutes=5)
    transaction_timeout: timedelta = timedelta(minutes=15)

    def check(self, broker_max: timedelta | None) -> None:
        """Check both ends of the chain.

        Raises:
            TimeoutBudgetError: the timeout is shorter than what was promised, or longer than the
                broker allows; the message has all the numbers.
        """
        from airflow_eos.kinds.kafka.preflight import check_timeouts

        check_timeouts(
            timeout=self.transaction_timeout,
            trigger=self.trigger_interval,
            batch=self.batch_within,
            recovery=self.recover_within,
            broker_max=broker_max,
        )


class FirstConnection:
    """Kafka, reached once for a start: the recovery takes over what the look before it has opened.

    Args:
        wire: open; closed here where nobody takes it over.
    """

    def __init__(self, wire: ConnectionPool) -> None:
        self._wire: ConnectionPool | None = wire

    def take(self) -> ConnectionPool | None:
        """The connection, for its taker to close; None from the second time on."""
        wire, self._wire = self._wire, None
        return wire

    def close(self) -> None:
        """Close what nobody took; harmless at any time."""
        wire = self.take()
        if wire is not None:
            wire.close()


def reached_within(budget: TimeoutBudget, settings: KafkaSettings) -> FirstConnection:
    """Reach the cluster, and hold the chain of timeouts against the longest that it accepts.

    Raises:
        KafkaError: the brokers lack a message that is needed.
        TimeoutBudgetError: see :meth:`TimeoutBudget.check`.
        KafkaUnavailableError: no broker answered, or too few run for a transaction.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kinds.kafka.preflight import (
        longest_timeout,
        require_capable,
        require_transaction_log,
    )

    with closed_on_error(FirstConnection(wire := ConnectionPool(settings))) as first:
        require_capable(wire)
        require_transaction_log(wire)
        budget.check(longest_timeout(wire))
    return first


def require_prefix_free(settings: KafkaSettings, prefix: str, store: CheckpointStore) -> None:
    """Refuse what the app would refuse after Spark's start, by the same gate.

    Raises:
        OwnershipError: with what was found and how to go on.
        KafkaError: who owns it may not be read, or (KafkaUnavailableError) no broker answered.
    """
    from airflow_eos.checkpoint.snapshot import admitted

    with closing(of_prefix(settings, prefix, store)) as participant:
        admitted(store, participant)[0].require()


def of_prefix(
    settings: KafkaSettings, prefix: str, store: CheckpointStore, *, timeout_s: float = 30.0
) -> Participant:
    """Kafka under a prefix, by the name that the checkpoint has for it; close it when done.

    Raises:
        KafkaError: no broker answers.
    """
    from airflow_eos.checkpoint import read_pipeline
    from airflow_eos.kinds.kafka.participant import PREFIX, connect
    from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT
    from airflow_eos.protocol.participant import Member

    pipeline = read_pipeline(store)
    named = () if pipeline is None else pipeline.participants
    nobodys = Member(DEFAULT_PARTICIPANT, "kafka", {PREFIX: prefix})
    member = next((each for each in named if each.address.get(PREFIX) == prefix), nobodys)
    return connect(member, settings, timeout_s=timeout_s)

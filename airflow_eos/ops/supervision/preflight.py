"""Checks before an app is started: the chain of timeouts (the sink's own rule), the prefix."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.settings import INTERVAL, AppSettings

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.protocol.participant import Participant
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.client.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class TimeoutBudget:
    """The times that a transaction has to outlive; the names are those of ``KafkaSink``.

    Attributes:
        batch_within: the longest that a batch is expected to take.
        recover_within: after a crash, recovery is promised to have run within this.
        transaction_timeout: after this the broker aborts an open transaction, promised or not.
    """

    trigger_interval: timedelta = INTERVAL
    batch_within: timedelta = AppSettings.batch_within
    recover_within: timedelta = AppSettings.recover_within
    transaction_timeout: timedelta = AppSettings.transaction_timeout

    def check(self, broker_max: timedelta | None) -> None:
        """Check that the timeout covers the times promised, and that the broker allows it.

        Raises:
            TimeoutBudgetError: the timeout is shorter than what was promised, or longer than the
                broker allows; the message has all the numbers.
        """
        from airflow_eos.kafka.preflight import check_timeouts

        check_timeouts(
            timeout=self.transaction_timeout,
            trigger=self.trigger_interval,
            batch=self.batch_within,
            recovery=self.recover_within,
            broker_max=broker_max,
        )


def reached_within(budget: TimeoutBudget, settings: KafkaSettings) -> ConnectionPool:
    """Connect to the cluster, and check the timeouts against the longest that it accepts.

    The recovery before the start takes the connection over.

    Raises:
        KafkaError: the brokers lack a message that is needed.
        TimeoutBudgetError: see :meth:`TimeoutBudget.check`.
        KafkaUnavailableError: no broker answered, or too few run for a transaction.
    """
    from airflow_eos.kafka.client.connection import ConnectionPool
    from airflow_eos.kafka.preflight import (
        longest_timeout,
        require_capable,
        require_transaction_log,
    )

    with closed_on_error(ConnectionPool(settings)) as wire:
        require_capable(wire)
        require_transaction_log(wire)
        budget.check(longest_timeout(wire))
    return wire


def require_prefix_free(settings: KafkaSettings, prefix: str, store: CheckpointStore) -> None:
    """Refuse a prefix that the app would refuse after Spark's start, by the app's own check.

    Raises:
        OwnershipError: the prefix is in use; with what was found and how to go on.
        KafkaError: the owner may not be read, or (KafkaUnavailableError) no broker answered.
    """
    from airflow_eos.core.checkpoint.snapshot import admitted

    with closing(of_prefix(settings, prefix, store)) as participant:
        admitted(store, participant)[0].require()


def of_prefix(
    settings: KafkaSettings, prefix: str, store: CheckpointStore, *, timeout_s: float = 30.0
) -> Participant:
    """Connect to Kafka as the participant of a prefix, by its name in the checkpoint; close it.

    Raises:
        KafkaError: no broker answers.
    """
    from airflow_eos.core.checkpoint import read_pipeline
    from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT
    from airflow_eos.core.protocol.participant import Member
    from airflow_eos.kafka.participant import PREFIX, connect

    pipeline = read_pipeline(store)
    named = () if pipeline is None else pipeline.participants
    nobodys = Member(DEFAULT_PARTICIPANT, "kafka", {PREFIX: prefix})
    member = next((each for each in named if each.address.get(PREFIX) == prefix), nobodys)
    return connect(member, settings, store=store, timeout_s=timeout_s)

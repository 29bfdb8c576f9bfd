"""The chain of timeouts, checked before anything is started; the rule is the sink's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class TimeoutBudget:
    """What a transaction has to outlive; the names are those of ``KafkaSink``.

    Attributes:
        trigger_interval: between two batches.
        batch_within: the longest that a batch is expected to take.
        recover_within: after a crash, recovery is promised to have run within this.
        transaction_timeout: after this the broker aborts an open transaction, promised or not.
    """

    trigger_interval: timedelta
    batch_within: timedelta
    recover_within: timedelta
    transaction_timeout: timedelta

    def check(self, broker_max: timedelta) -> None:
        """Check both ends of the chain.

        Raises:
            TimeoutBudgetError: the timeout is shorter than what was promised, or longer than the
                broker allows; the message has all the numbers.
        """
        from airflow_eos.sinks.kafka.preflight import check_timeouts

        check_timeouts(
            timeout=self.transaction_timeout,
            trigger=self.trigger_interval,
            batch=self.batch_within,
            recovery=self.recover_within,
            broker_max=broker_max,
        )


def broker_maximum(settings: KafkaSettings) -> timedelta:
    """Return the longest transaction timeout that the cluster accepts.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.sinks.kafka.preflight import MAX_TIMEOUT

    with Wire(settings) as wire:
        return timedelta(milliseconds=int(wire.cluster.broker_config([MAX_TIMEOUT])[MAX_TIMEOUT]))

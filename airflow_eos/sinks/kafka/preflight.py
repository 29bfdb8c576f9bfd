"""What is refused before the first row: the timeout chain, the topics, the store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from airflow_eos.errors import TimeoutBudgetError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.fetch import READ_COMMITTED, fetch_request, only_partition
from airflow_eos.protocol.decision import SPARED
from airflow_eos.sinks.kafka.durability import require_transaction_log, warn_of_truncation

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import Wire

log = structlog.get_logger(__name__)

MAX_TIMEOUT = "transaction.max.timeout.ms"


def check_timeouts(
    *,
    timeout: timedelta,
    trigger: timedelta,
    batch: timedelta,
    recovery: timedelta,
    broker_max: timedelta | None,
) -> None:
    """Refuse a transaction timeout that the broker rejects or that promises too much.

    An open transaction must outlive the batch that opened it, the wait for the next trigger and
    the time until a recovery commits it; else its rows are replayed more often than need be.

    Raises:
        TimeoutBudgetError: with the figures, in seconds, and the way out.
    """
    if broker_max is not None and timeout > broker_max:
        raise TimeoutBudgetError(
            f"transaction_timeout is {_s(timeout)}, above the broker's {MAX_TIMEOUT} of "
            f"{_s(broker_max)}. Lower transaction_timeout, or raise the broker's setting."
        )
    needed = trigger + batch + recovery
    if timeout < needed:
        raise TimeoutBudgetError(
            f"transaction_timeout is {_s(timeout)}, but trigger interval {_s(trigger)} + longest "
            f"expected batch (batch_within) {_s(batch)} + promised recovery (recover_within) "
            f"{_s(recovery)} = {_s(needed)}. Raise transaction_timeout "
            f"({allowed(broker_max)}), or lower one of the three."
        )
    if trigger + batch > timeout * (1 - SPARED):
        raise TimeoutBudgetError(
            f"transaction_timeout is {_s(timeout)}, and a batch is not promised with less than "
            f"{SPARED:.0%} of it left: trigger interval {_s(trigger)} + longest expected batch "
            f"(batch_within) {_s(batch)} leave too little. Raise transaction_timeout "
            f"({allowed(broker_max)}), or lower one of the two."
        )


def check_cluster(
    wire: Wire,
    *,
    topic: str | None,
    timeout: timedelta,
    trigger: timedelta,
    batch: timedelta,
    recovery: timedelta,
) -> None:
    """Ask the cluster what the sink needs to know before its first row.

    Raises:
        TopicError: the sink's topic does not exist.
        KafkaUnavailableError: see :func:`~.durability.require_transaction_log`.
        TimeoutBudgetError: see :func:`check_timeouts`.
    """
    if topic is not None:
        _require_readable(wire, topic)
        policy = wire.cluster.topic_config(topic, ["cleanup.policy"])["cleanup.policy"]
        if "compact" in policy:
            log.warning(
                "compacted_topic",
                topic=topic,
                hint="a transaction whose id was reused may have no provable outcome",
            )
    require_transaction_log(wire)
    warn_of_truncation(wire, topic)
    check_timeouts(
        timeout=timeout,
        trigger=trigger,
        batch=batch,
        recovery=recovery,
        broker_max=longest_timeout(wire),
    )


def longest_timeout(wire: Wire) -> timedelta | None:
    """The longest that the broker lets a transaction stay open; None where it does not tell.

    Then the first transaction shows whether it takes the timeout that is asked for.
    """
    told = wire.cluster.broker_config([MAX_TIMEOUT]).get(MAX_TIMEOUT)
    return None if told is None else timedelta(milliseconds=int(told))


def allowed(broker_max: timedelta | None) -> str:
    """What a broker allows, for people."""
    if broker_max is None:
        return f"the broker does not tell its {MAX_TIMEOUT}"
    return f"the broker allows {_s(broker_max)}"


def _require_readable(wire: Wire, topic: str) -> None:
    """Refuse a topic that is not there or may not be read.

    Reading it is needed only when an outcome is asked of the log: after a crash, when it is needed
    most.
    """
    partition, leader = min(wire.cluster.leaders(topic).items())
    request = fetch_request(topic, partition, 0, isolation=READ_COMMITTED, max_bytes=1)
    answer = only_partition(wire.request(request, node_id=leader))
    if answer is not None and answer.error_code == faults.TOPIC_AUTHORIZATION_FAILED:
        doing, acl = f"while reading topic {topic!r}", f"Read on Topic {topic!r}"
        raise faults.refusal(answer.error_code, doing, acl=acl)


def _s(value: timedelta) -> str:
    return f"{value.total_seconds():g} s"

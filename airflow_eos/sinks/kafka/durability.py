"""Topics that may lose rows which were acknowledged: told of before the first row, not refused.

The protocol takes Kafka's word: an acknowledged row stays, and so does a commit that EndTxn has
answered. Kafka keeps it only where a second replica must have a row before it is acknowledged, and
where no replica that lacks rows may become the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from airflow_eos.errors import KafkaUnavailableError, Remedy, TopicError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import topic_refused

if TYPE_CHECKING:
    from airflow_eos.kafka.client.connection import Wire

log = structlog.get_logger(__name__)

TRANSACTIONS = "__transaction_state"
_MIN_INSYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_STATE_COPIES = "transaction.state.log.replication.factor"
_STATE_MIN_INSYNC = "transaction.state.log.min.isr"


@dataclass(frozen=True)
class Durability:
    """What decides whether the rows of a topic outlive the broker that acknowledged them."""

    topic: str
    copies: int
    min_insync: int
    unclean: bool

    def to_set(self) -> dict[str, str]:
        """The settings of the topic to change; none where a topic has one copy, as at a desk."""
        if self.copies < 2:
            return {}
        changes = {_MIN_INSYNC: "2"} if self.min_insync < 2 else {}
        return changes | ({_UNCLEAN: "false"} if self.unclean else {})


def require_transaction_log(wire: Wire) -> None:
    """Refuse a cluster that cannot make its log of transactions, or not write to it.

    Kafka makes it with the first transaction, with as many copies as its settings say; where there
    are fewer brokers, every transaction waits for its coordinator, and runs into its time.

    Raises:
        KafkaUnavailableError: with the settings and the brokers that there are.
    """
    told = wire.cluster.broker_config([_STATE_COPIES, _STATE_MIN_INSYNC])
    if told.keys() != {_STATE_COPIES, _STATE_MIN_INSYNC}:
        return  # the broker does not tell: the first transaction shows it
    copies, least = int(told[_STATE_COPIES]), int(told[_STATE_MIN_INSYNC])
    found = wire.cluster.describe_topic(TRANSACTIONS)
    if found.error_code == faults.NONE:
        alive, copies = (
            copies,
            min((len(p.replica_nodes) for p in found.partitions), default=copies),
        )
    elif found.error_code == faults.UNKNOWN_TOPIC_OR_PARTITION:
        alive = len(wire.cluster.brokers())
    else:
        return  # we may not look whether it is there already
    if copies <= alive and least <= copies:
        return
    most = min(copies, alive)
    raise KafkaUnavailableError(
        f"This cluster can run no transaction: its log of transactions, {TRANSACTIONS}, is to have "
        f"{copies} copies ({_STATE_COPIES}), {least} of them in sync ({_STATE_MIN_INSYNC}), and "
        + (
            f"{alive} of its brokers run{'s' if alive == 1 else ''}."
            if copies > alive
            else f"{least} is more than {copies}."
        ),
        Remedy(change="start as many brokers as it is to have copies", start=True),
        Remedy(
            change="restart the brokers with these in their server.properties",
            settings={_STATE_COPIES: str(most), _STATE_MIN_INSYNC: str(max(1, most - 1))},
            start=True,
            costs="with one copy, the loss of a disk loses what was promised",
        ),
    )


def warn_of_truncation(wire: Wire, topic: str | None) -> None:
    """Log each of ``topic`` and Kafka's own log of transactions that may lose acknowledged rows."""
    for found in (*([_of_topic(wire, topic)] if topic else []), _of_transactions(wire)):
        changes = found.to_set()
        if changes:
            log.warning(
                "acknowledged_rows_can_be_lost",
                topic=found.topic,
                copies=found.copies,
                set_on_the_topic=changes,
                hint="a broker that fails could take committed transactions with it, which "
                "nobody would notice",
            )


def _of_topic(wire: Wire, topic: str) -> Durability:
    """As it is now; TopicError where it does not exist or may not be described."""
    found = wire.cluster.describe_topic(topic)
    if found.error_code != faults.NONE:
        raise topic_refused(found.error_code, topic)
    config = wire.cluster.topic_config(topic, [_MIN_INSYNC, _UNCLEAN])
    return Durability(
        topic,
        copies=min((len(p.replica_nodes) for p in found.partitions), default=1),
        min_insync=int(config[_MIN_INSYNC]),
        unclean=config[_UNCLEAN] == "true",
    )


def _of_transactions(wire: Wire) -> Durability:
    """Of ``__transaction_state``, or what it is created with where we may not look or it is not.

    Kafka creates it without unclean election (``TransactionCoordinator``).
    """
    try:
        return _of_topic(wire, TRANSACTIONS)
    except TopicError:
        config = wire.cluster.broker_config([_STATE_COPIES, _STATE_MIN_INSYNC])
        return Durability(
            TRANSACTIONS,
            copies=int(config.get(_STATE_COPIES, 3)),
            min_insync=int(config.get(_STATE_MIN_INSYNC, 2)),
            unclean=False,
        )

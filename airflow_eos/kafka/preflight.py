"""Checks before the first row: the timeouts, the topic, the cluster's log of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import MIN_TIME_LEFT
from airflow_eos.errors import (
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    TimeoutBudgetError,
    TopicError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import (
    MAX_TIMEOUT,
    STATE_COPIES,
    STATE_MIN_INSYNC,
    TRANSACTIONS,
    topic_refused,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.fetch import READ_COMMITTED, fetch_request, only_partition
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, two_phase_refused

_MIN_INSYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_POLICY = "cleanup.policy"
_DISKLESS = ("diskless.enable", "inkless.enable")
"""The topic setting of KIP-1150, and that of its first implementation."""


@dataclass(frozen=True)
class Durability:
    """The settings by which rows of a topic outlive the broker that acknowledged them."""

    topic: str
    copies: int
    min_insync: int | None
    unclean: bool | None

    def to_set(self) -> dict[str, str]:
        """Return the topic's settings to change; none where it has one copy, as in development."""
        if self.copies < 2:
            return {}
        changes = {_MIN_INSYNC: "2"} if self.min_insync is not None and self.min_insync < 2 else {}
        return changes | ({_UNCLEAN: "false"} if self.unclean else {})

    def not_told(self) -> list[str]:
        """Return the settings that no broker told, so that durability is not known."""
        told = {_MIN_INSYNC: self.min_insync, _UNCLEAN: self.unclean}
        return [name for name, value in told.items() if value is None]


def require_transaction_log(wire: ConnectionPool) -> None:
    """Refuse a cluster that cannot create its log of transactions, or not write to it.

    Kafka creates it with the first transaction, with as many copies as its settings say; where
    there are fewer brokers, every transaction waits for its coordinator until it times out. A log
    that is there may have other copies since, or be older than the settings: it is asked itself.

    Raises:
        KafkaUnavailableError: with the settings and the brokers that there are.
    """
    told = wire.cluster.capabilities().settings
    if not told.keys() >= {STATE_COPIES, STATE_MIN_INSYNC}:
        return  # the broker does not tell its settings: the first transaction shows it
    copies, least = int(told[STATE_COPIES]), int(told[STATE_MIN_INSYNC])
    found = wire.cluster.describe_topic(TRANSACTIONS)
    if found.error_code == faults.NONE and found.partitions:
        _require_in_sync(wire, min(len(each.replica_nodes) for each in found.partitions))
        return
    if found.error_code != faults.UNKNOWN_TOPIC_OR_PARTITION:
        return  # these credentials may not see whether the topic is there already
    alive = len(wire.cluster.brokers())
    if copies <= alive and least <= copies:
        return
    most = min(copies, alive)
    raise KafkaUnavailableError(
        f"This cluster can run no transaction: its log of transactions, {TRANSACTIONS}, is to have "
        f"{copies} copies ({STATE_COPIES}), {least} of them in sync ({STATE_MIN_INSYNC}), and "
        + (
            f"{alive} of its brokers run{'s' if alive == 1 else ''}."
            if copies > alive
            else f"{least} is more than {copies}."
        ),
        Remedy(change="start as many brokers as it is to have copies", start=True),
        Remedy(
            change="restart the brokers with these in their server.properties",
            settings={STATE_COPIES: str(most), STATE_MIN_INSYNC: str(max(1, most - 1))},
            start=True,
            costs="with one copy, the loss of a disk loses what was promised",
        ),
    )


def _require_in_sync(wire: ConnectionPool, copies: int) -> None:
    """Refuse a log of transactions that is there and has fewer copies than must be in sync.

    The brokers' settings are of a new one alone: whatever they say by now, it is as it was made.
    """
    try:
        least = int(wire.cluster.topic_config(TRANSACTIONS, [_MIN_INSYNC])[_MIN_INSYNC])
    except (TopicError, KeyError):
        return  # these credentials may not see what it was made with
    if least <= copies:
        return
    alter = (
        f"kafka-configs.sh --bootstrap-server {wire.settings.bootstrap_servers} --alter "
        f"--entity-type topics --entity-name {TRANSACTIONS} "
        f"--add-config {_MIN_INSYNC}={max(1, copies - 1)}"
    )
    raise KafkaUnavailableError(
        f"This cluster can run no transaction: a partition of its log of transactions, "
        f"{TRANSACTIONS}, has {copies} {'copy' if copies == 1 else 'copies'}, and "
        f"{_MIN_INSYNC}={least}: {least} is more than {copies}. It was made so, and no setting of "
        "the brokers changes it.",
        Remedy(
            change=f"give each of its partitions {least} copies or more, by "
            "kafka-reassign-partitions.sh",
            start=True,
        ),
        Remedy(
            commands=(alter,),
            start=True,
            costs="with one copy in sync, the loss of a disk loses what was promised",
        ),
    )


def warn_of_truncation(wire: ConnectionPool, topic: str | None) -> None:
    """Warn where ``topic`` or Kafka's log of transactions may lose acknowledged rows."""
    for found in (*([_of_topic(wire, topic)] if topic else []), _of_transactions(wire)):
        if missing := found.not_told():
            log.warning("durability_not_known", topic=found.topic, not_told=missing)
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


def _of_topic(wire: ConnectionPool, topic: str) -> Durability:
    """Return a topic's durability; TopicError: it does not exist or may not be described."""
    found = wire.cluster.describe_topic(topic)
    if found.error_code != faults.NONE:
        raise topic_refused(found.error_code, topic)
    config = wire.cluster.topic_config(topic, [_MIN_INSYNC, _UNCLEAN])
    return Durability(
        topic,
        copies=min((len(p.replica_nodes) for p in found.partitions), default=1),
        min_insync=int(config[_MIN_INSYNC]) if _MIN_INSYNC in config else None,
        unclean=config[_UNCLEAN] == "true" if _UNCLEAN in config else None,
    )


def _of_transactions(wire: ConnectionPool) -> Durability:
    """Return the durability of ``__transaction_state``; if not seen, that of its creation.

    Kafka creates it without unclean election (``TransactionCoordinator``).
    """
    try:
        return _of_topic(wire, TRANSACTIONS)
    except KafkaUnavailableError:
        raise
    except KafkaError:
        told = wire.cluster.capabilities().settings
        return Durability(
            TRANSACTIONS,
            copies=int(told.get(STATE_COPIES, 3)),
            min_insync=int(told[STATE_MIN_INSYNC]) if STATE_MIN_INSYNC in told else None,
            unclean=False,
        )


# --- preflight ------------------------------------------------------------------------------------


log = Log(__name__)


def check_timeouts(
    *,
    timeout: timedelta,
    trigger: timedelta,
    batch: timedelta,
    recovery: timedelta,
    broker_max: timedelta | None,
) -> None:
    """Refuse a transaction timeout that the broker rejects or that is too short.

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
    if trigger + batch > timeout * (1 - MIN_TIME_LEFT):
        raise TimeoutBudgetError(
            f"transaction_timeout is {_s(timeout)}, and a batch is not promised with less than "
            f"{MIN_TIME_LEFT:.0%} of it left: trigger interval {_s(trigger)} + longest expected "
            f"batch (batch_within) {_s(batch)} leave too little. Raise transaction_timeout "
            f"({allowed(broker_max)}), or lower one of the two."
        )


def check_cluster(
    wire: ConnectionPool,
    *,
    topic: str | None,
    timeout: timedelta | None,
    trigger: timedelta,
    batch: timedelta,
    recovery: timedelta,
) -> None:
    """Refuse a cluster, topic or timeout with which the sink cannot deliver; None: it has none.

    Raises:
        KafkaError: the brokers lack a message that is needed.
        TopicError: the sink's topic does not exist, or takes no transactions.
        KafkaUnavailableError: see :func:`require_transaction_log`.
        TimeoutBudgetError: see :func:`check_timeouts`.
    """
    require_capable(wire)
    if topic is not None:
        _require_readable(wire, topic)
        _require_transactional(wire, topic)
    require_transaction_log(wire)
    warn_of_truncation(wire, topic)
    if timeout is None:
        return
    check_timeouts(
        timeout=timeout,
        trigger=trigger,
        batch=batch,
        recovery=recovery,
        broker_max=longest_timeout(wire),
    )


def require_two_phase(wire: ConnectionPool, prefix: str) -> None:
    """Refuse a cluster that opens no transaction without a timer under this prefix.

    Asked by taking an id that no task has, and under which nothing is ever written.

    Raises:
        TransactionError: with what is missing: the message, the setting or the ACL.
    """
    probe = f"{prefix}-two-phase"
    if TransactionCoordinator(wire).init_two_phase(probe) is None:
        raise two_phase_refused(wire, probe)


def require_capable(wire: ConnectionPool) -> None:
    """Refuse brokers that lack a needed message; log what does not work with these brokers.

    Raises:
        KafkaError: with what is missing, what for, and on which brokers.
        KafkaUnavailableError: no broker answered.
    """
    found = wire.cluster.capabilities()
    found.require()
    for remark in found.remarks():
        log.warning("not_with_these_brokers", what=remark)


def _require_transactional(wire: ConnectionPool, topic: str) -> None:
    """Refuse a topic that takes no transactions; warn of a compacted one, which drops rows.

    Raises:
        TopicError: the topic is diskless.
    """
    config = wire.cluster.topic_config(topic, [_POLICY, *_DISKLESS])
    diskless = [name for name in _DISKLESS if config.get(name) == "true"]
    if diskless:
        raise TopicError(
            f"Topic {topic!r} is diskless ({diskless[0]}=true): such a topic takes no transactions "
            "(KIP-1150), so nothing can be delivered to it exactly once.",
            Remedy(change="write to a topic that is not diskless", start=True),
        )
    if _POLICY not in config:
        log.warning("cleanup_policy_not_known", topic=topic)
    elif "compact" in config[_POLICY]:
        log.warning(
            "compacted_topic",
            topic=topic,
            hint="a transaction whose id was reused may have no provable outcome",
        )


def longest_timeout(wire: ConnectionPool) -> timedelta | None:
    """Return the broker's longest transaction timeout; None where it does not tell.

    Then the first transaction shows whether it takes the timeout that is asked for.
    """
    told = wire.cluster.capabilities().settings.get(MAX_TIMEOUT)
    return None if told is None else timedelta(milliseconds=int(told))


def allowed(broker_max: timedelta | None) -> str:
    """Return the longest timeout that a broker allows, as text for an error."""
    if broker_max is None:
        return f"the broker does not tell its {MAX_TIMEOUT}"
    return f"the broker allows {_s(broker_max)}"


def _require_readable(wire: ConnectionPool, topic: str) -> None:
    """Refuse a topic without a leader, or that may not be read.

    Reading is needed only when the log is asked for an outcome: after a crash, when it matters
    most.
    """
    led = {each: leader for each, leader in wire.cluster.leaders(topic).items() if leader >= 0}
    if not led:
        raise KafkaUnavailableError(
            f"No partition of topic {topic!r} has a leader now, so nobody says whether it may be "
            "read. Check that the brokers run that have its copies."
        )
    partition, leader = min(led.items())
    request = fetch_request(topic, partition, 0, isolation=READ_COMMITTED, max_bytes=1)
    answer = only_partition(wire.request(request, node_id=leader), (topic, partition))
    if answer is not None and answer.error_code == faults.TOPIC_AUTHORIZATION_FAILED:
        doing, acl = f"while reading topic {topic!r}", f"Read on Topic {topic!r}"
        raise faults.refusal(answer.error_code, doing, acl=acl)


def _s(value: timedelta) -> str:
    return f"{value.total_seconds():g} s"

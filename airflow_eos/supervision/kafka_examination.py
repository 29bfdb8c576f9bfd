"""The doctor's probes of a Kafka cluster. What they ask for changes nothing there."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.snapshot import admitted
from airflow_eos.errors import EosError
from airflow_eos.supervision import doctor, rights
from airflow_eos.supervision.asked import tried
from airflow_eos.supervision.doctor import Line
from airflow_eos.supervision.preflight import of_prefix

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, Pipeline
    from airflow_eos.kafka.client.connection import Wire
    from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.supervision.asked import Asked
    from airflow_eos.supervision.rights import Right


def of_kafka(
    asked: Asked, settings: KafkaSettings, store: CheckpointStore, pipeline: Pipeline | None
) -> list[Line]:
    """Ask a cluster: who it is, what time it is there, what these credentials may do."""
    from airflow_eos.kafka.client.connection import Wire

    try:
        wire = Wire(settings, timeout_s=asked.timeout_s)
    except EosError as error:
        return [doctor.failed("broker", error)]
    with wire:
        brokers = len(wire.cluster.brokers())
        lines = [Line("broker", "ok", f"cluster {wire.cluster_id}, {brokers} alive")]
        prefix = asked.prefix or _prefix_of(pipeline)
        lines.append(doctor.owner(pipeline, prefix=asked.prefix, cluster_id=wire.cluster_id))
        lines += tried("broker's clock", lambda: _cluster_clock(wire))
        lines += tried("transactions", lambda: _transaction_log(wire))
        lines += tried("timeouts", lambda: _budget(asked, wire))
        if asked.inputs and settings.security_protocol.endswith("SSL"):
            lines += tried("Spark's Kafka client", lambda: _for_java(settings))
        for name, needed in _topics(asked):
            lines += tried(f"topic {name}", partial(_topic, wire, name, needed))
        if prefix is not None:
            lines += tried(f"prefix {prefix}", lambda: _prefix(asked, settings, prefix, store))
        lines += _rights(asked, wire, prefix)
    return lines


def _topics(asked: Asked) -> list[tuple[str, Right]]:
    return [*((name, "Write") for name in asked.topics), *((name, "Read") for name in asked.inputs)]


def _rights(asked: Asked, wire: Wire, prefix: str | None) -> list[Line]:
    """Of transactional ids and groups; topics tell theirs themselves."""
    from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
    from airflow_eos.kafka.transactions.group_offsets import transactional_id

    lines: list[Line] = []
    # One that no task has; the right is that of the prefix.
    with_ids = prefix is not None and asked.guarantee in {None, "exactly_once"}
    ids = [f"{prefix}-doctor"] if with_ids else []
    if asked.inputs:
        name = f"{rights.SPARKS_GROUPS}-doctor"
        found = tried(name, lambda: _group(GroupCoordinator(wire, name), asked.timeout_s))
        lines += map(rights.sparks_group, found)
    if asked.group is not None:
        ids.append(transactional_id(asked.group))
        group = GroupCoordinator(wire, asked.group)
        lines += tried(f"group {asked.group}", lambda: _group(group, asked.timeout_s))
    for each in ids:
        lines += tried(f"id {each}", partial(_may_end, wire, each, asked.timeout_s))
    return lines


def _group(group: GroupCoordinator, timeout_s: float) -> Line:
    return rights.group(group.group, group.rights(deadline_s=timeout_s))


def _may_end(wire: Wire, name: str, timeout_s: float) -> Line:
    from airflow_eos.kafka.transactions.coordinator import require_right_to_end

    require_right_to_end(wire, name, deadline_s=timeout_s)
    return Line(f"id {name}", "ok", "its transactions may be taken and ended")


def _cluster_clock(wire: Wire) -> Line:
    from airflow_eos.kafka.client.offsets import cluster_clock_ms

    before_ms = time.time_ns() // 1_000_000
    told_ms = cluster_clock_ms(wire)
    after_ms = time.time_ns() // 1_000_000
    if told_ms is None:
        return Line("broker's clock", "ok", "not told: it takes Describe on Cluster, and KRaft")
    return doctor.clocks("broker's clock", told_ms - min(max(before_ms, told_ms), after_ms))


def _transaction_log(wire: Wire) -> Line:
    from airflow_eos.sinks.kafka.durability import require_transaction_log

    require_transaction_log(wire)
    return Line("transactions", "ok", "nothing is known that would keep the cluster from them")


def _budget(asked: Asked, wire: Wire) -> Line:
    from airflow_eos.sinks.kafka.preflight import longest_timeout

    return doctor.budget(
        timeout=asked.transaction_timeout,
        trigger=asked.trigger_interval,
        batch=asked.batch_within,
        recovery=asked.recover_within,
        broker_max=longest_timeout(wire),
    )


def _for_java(settings: KafkaSettings) -> Line:
    """Whether Spark's Kafka source, which is Java's client, can do with these settings."""
    from airflow_eos.kafka.client.settings import require_java_reads
    from airflow_eos.local.java import java_version

    require_java_reads(settings.librdkafka(), java_version())
    settings.spark_options()
    return Line("Spark's Kafka client", "ok", "its key is in a form that Java reads")


def _topic(wire: Wire, name: str, needed: Right) -> Line:
    partitions = len(wire.cluster.leaders(name))
    described = wire.cluster.describe_topic(name, rights=True)
    return rights.topic(name, partitions, described.authorized_operations, needed)


def _prefix(asked: Asked, settings: KafkaSettings, prefix: str, store: CheckpointStore) -> Line:
    with closing(of_prefix(settings, prefix, timeout_s=asked.timeout_s)) as participant:
        return doctor.start_on(f"prefix {prefix}", *admitted(store, participant))


def _prefix_of(pipeline: Pipeline | None) -> str | None:
    members = pipeline.participants if pipeline is not None else ()
    return next(
        (each.address["transactional_id_prefix"] for each in members if each.kind == "kafka"), None
    )

"""The doctor's probes: each asks one system, and none keeps another from being asked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, read_pipeline, read_state
from airflow_eos.checkpoint.exclusive import race_create
from airflow_eos.checkpoint.paths import EOS
from airflow_eos.errors import EosError, LocalEnvironmentError
from airflow_eos.supervision import doctor
from airflow_eos.supervision.doctor import Line

if TYPE_CHECKING:
    from airflow_eos.checkpoint import Pipeline
    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.kafka.client.wire import Wire


@dataclass(frozen=True, slots=True)
class Asked:
    """What the doctor is to look at; times as :class:`~airflow_eos.sinks.KafkaSink` names them.

    ``rounds`` of the store's race; ``settings`` of the cluster, None where there is no Kafka.
    """

    checkpoint: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    settings: KafkaSettings | None = None
    reach: Mapping[str, Any] | None = field(default=None, repr=False)
    topics: Sequence[str] = ()
    prefix: str | None = None
    transaction_timeout: timedelta = timedelta(minutes=15)
    trigger_interval: timedelta = timedelta(seconds=1)
    batch_within: timedelta = timedelta(minutes=1)
    recover_within: timedelta = timedelta(minutes=5)
    rounds: int = 40
    timeout_s: float = 30.0


def examine(asked: Asked) -> list[Line]:
    """Look at everything; what is wrong is a line and no error.

    Raises:
        ConfigurationError, StoreError: the location or its options cannot be opened at all.
    """
    store = CheckpointStore.open(asked.checkpoint, storage_options=asked.storage_options)
    lines = [_java(), _spark()]
    pipeline: Pipeline | None = None
    began = time.monotonic()
    try:
        pipeline = read_pipeline(store)
    except EosError as error:
        lines.append(doctor.failed("store", error))
    else:
        reached_ms = (time.monotonic() - began) * 1000
        lines.append(Line("store", "ok", f"{store.location} answered in {reached_ms:.0f} ms"))
        lines += _of_store(store, asked.rounds)
    if asked.settings is None:
        lines.append(doctor.owner(pipeline, prefix=asked.prefix, cluster_id=None))
    else:
        lines += _of_kafka(asked, asked.settings, store.location, pipeline)
    if pipeline is not None and (asked.settings is not None or asked.reach is not None):
        lines += _tried("participants", lambda: _participants(asked))
    return lines


def _of_store(store: CheckpointStore, rounds: int) -> list[Line]:
    lines: list[Line] = []
    with store.left_as_it_was():
        lines += _tried("create-if-absent", lambda: doctor.raced(race_create(store, rounds=rounds)))
        lines += _tried("store's clock", lambda: _clock(store))
    lines.append(doctor.sparks_own_logs(store.location))
    lines += _tried("checkpoint", lambda: doctor.progress(read_state(store)))
    lines += _tried("driver", lambda: _driver(store))
    return lines


def _clock(store: CheckpointStore) -> Line:
    """By the time that the store gives an object which was written just now."""
    path = f"{EOS}/.probe-{uuid.uuid4().hex}"
    before_ms = time.time_ns() // 1_000_000
    store.put(path, b"what time is it")
    after_ms = time.time_ns() // 1_000_000
    try:
        written = store.head(path)
    finally:
        store.delete([path])
    if written is None:
        return Line("store's clock", "fail", "a new object is not there", "it reads its own writes")
    off_ms = min(max(before_ms - 1000, written.modified_at_ms), after_ms)  # S3 says whole seconds
    return doctor.clocks("store's clock", written.modified_at_ms - off_ms)


def _driver(store: CheckpointStore) -> Line:
    now_ms = time.time_ns() // 1_000_000
    return doctor.driver(read_heartbeat(store), read_state(store), now_ms)


def _of_kafka(
    asked: Asked, settings: KafkaSettings, location: str, pipeline: Pipeline | None
) -> list[Line]:
    from airflow_eos.kafka.client.wire import Wire

    try:
        wire = Wire(settings, timeout_s=asked.timeout_s)
    except EosError as error:
        return [doctor.failed("broker", error)]
    with wire:
        brokers = len(wire.cluster.brokers())
        lines = [Line("broker", "ok", f"cluster {wire.cluster_id}, {brokers} alive")]
        prefix = asked.prefix or _prefix_of(pipeline)
        lines.append(doctor.owner(pipeline, prefix=asked.prefix, cluster_id=wire.cluster_id))
        lines += _tried("timeouts", lambda: _budget(asked, wire))
        for name in asked.topics:
            lines += _tried(f"topic {name}", lambda name=name: _topic(wire, name))  # type: ignore[misc]
        if prefix is not None:
            lines += _tried(f"prefix {prefix}", lambda: _prefix(settings, prefix, location))
    return lines


def _budget(asked: Asked, wire: Wire) -> Line:
    from airflow_eos.sinks.kafka.preflight import MAX_TIMEOUT

    longest_ms = int(wire.cluster.broker_config([MAX_TIMEOUT])[MAX_TIMEOUT])
    return doctor.budget(
        timeout=asked.transaction_timeout,
        trigger=asked.trigger_interval,
        batch=asked.batch_within,
        recovery=asked.recover_within,
        broker_max=timedelta(milliseconds=longest_ms),
    )


def _topic(wire: Wire, name: str) -> Line:
    partitions = len(wire.cluster.leaders(name))
    described = wire.cluster.describe_topic(name, rights=True)
    return doctor.topic(name, partitions, described.authorized_operations)


def _prefix(settings: KafkaSettings, prefix: str, location: str) -> Line:
    from airflow_eos.kafka.transactions.ownership import PrefixLedger

    with closing(PrefixLedger(settings, prefix=prefix)) as ledger:
        return doctor.prefix_owner(ledger.read(), prefix, location)


def _prefix_of(pipeline: Pipeline | None) -> str | None:
    members = pipeline.participants if pipeline is not None else ()
    return next((each.address["prefix"] for each in members if each.kind == "kafka"), None)


def _participants(asked: Asked) -> Line:
    from airflow_eos.recovery import plan_recovery

    made = plan_recovery(
        asked.checkpoint,
        asked.settings,
        reach=asked.reach,
        storage_options=asked.storage_options,
        timeout_s=asked.timeout_s,
    )
    found = f"all answer; {len(made.listed)} left open, {len(made.steps)} steps to recover"
    if made.needs_person:
        return Line("participants", "fail", found, "nothing to decide by hand", "airflow-eos plan")
    return Line("participants", "ok", found)


def _java() -> Line:
    from airflow_eos.local.java import MINIMUM_JAVA, java_version

    return doctor.java(java_version(), MINIMUM_JAVA)


def _spark() -> Line:
    from airflow_eos.local.java import pyspark_version
    from airflow_eos.local.lockfile import locked_versions

    try:
        version = pyspark_version()
    except LocalEnvironmentError:
        version = None
    return doctor.spark(version, locked_versions("spark"))


def _tried(what: str, probe: Callable[[], Line]) -> list[Line]:
    try:
        return [probe()]
    except EosError as error:
        return [doctor.failed(what, error)]

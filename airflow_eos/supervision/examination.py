"""The doctor's probes: each asks one system, and none keeps another from being asked."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat, read_pipeline, read_state
from airflow_eos.checkpoint.backend import EOS
from airflow_eos.checkpoint.store import race_create
from airflow_eos.errors import EosError, LocalEnvironmentError
from airflow_eos.supervision import doctor
from airflow_eos.supervision.asked import Asked, tried
from airflow_eos.supervision.doctor import Line
from airflow_eos.supervision.kafka_examination import of_kafka

if TYPE_CHECKING:
    from airflow_eos.checkpoint import Pipeline
    from airflow_eos.sinks.port import Guarantee


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
        chosen = asked.guarantee or (None if pipeline is None else "exactly_once")
        lines += _of_store(store, asked.rounds, chosen)
    if asked.settings is None:
        lines.append(doctor.owner(pipeline, prefix=asked.prefix, cluster_id=None))
    else:
        lines += of_kafka(asked, asked.settings, store, pipeline)
    if pipeline is not None and (asked.settings is not None or asked.reach is not None):
        lines += tried("participants", lambda: _participants(asked))
    return lines


def _of_store(store: CheckpointStore, rounds: int, guarantee: Guarantee | None) -> list[Line]:
    lines: list[Line] = []
    with store.left_as_it_was():
        lines += tried("create-if-absent", lambda: doctor.raced(race_create(store, rounds=rounds)))
        lines += tried("store's clock", lambda: _clock(store))
    lines.append(doctor.sparks_own_logs(store.location, guarantee))
    lines += tried("checkpoint", lambda: doctor.progress(read_state(store)))
    lines += tried("driver", lambda: _driver(store))
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
    from airflow_eos.recovery.driver_liveness import signs_of_life

    signs = signs_of_life(store) or ()
    return doctor.driver(read_heartbeat(store), signs)


def _participants(asked: Asked) -> Line:
    from airflow_eos.recovery import plan_recovery

    made = plan_recovery(
        asked.checkpoint,
        asked.settings,
        reach=asked.reach,
        storage_options=asked.storage_options,
        timeout_s=asked.timeout_s,
    )
    if made.refusal is not None:
        return Line("participants", "fail", f"a start is refused: {made.refusal}")
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

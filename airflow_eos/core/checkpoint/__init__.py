"""A Spark checkpoint as data: read without Spark, and with the decision log beside Spark's own.

- :mod:`.store`: one checkpoint folder on a disk or an object store, with create-if-absent
- :mod:`.decisions`: the decision log, on which exactly-once delivery rests
- :mod:`.terms`, :mod:`.offsets`: the newest driver, and the ranges that it may rely on
- :mod:`.rulings`: what a person said where no program may decide
- :mod:`.spark_log`, :mod:`.progress`: Spark's own files, and the query's progress by them
- :mod:`.mending`: repair of Spark's files after a power cut
- :mod:`.pipeline`: the checkpoint's owner
- :mod:`.heartbeat`, :mod:`.drain`: what a driver says, and who asks it to end
- :mod:`.liveness`: whether a driver lives, by its heartbeat, its progress and its process
- :mod:`.recovery_notes`, :mod:`.watchdog_record`: who replaces a driver, and who watches
- :mod:`.snapshot`: all of these at one time, and the facts that decide whether a start is let in
"""

from __future__ import annotations

from airflow_eos.core.checkpoint.backend import StoredObject
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.drain import (
    DrainRequest,
    clear_drain,
    drain_newest,
    drain_requested,
    request_drain,
    standing_request,
)
from airflow_eos.core.checkpoint.heartbeat import (
    Heartbeat,
    Phase,
    StartedBy,
    drain_of,
    read_heartbeat,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.offsets import OffsetLog
from airflow_eos.core.checkpoint.pipeline import PipelineIdentity, claim, read_pipeline
from airflow_eos.core.checkpoint.progress import CheckpointState, SourceProgress, read_state
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import Tenure, Term, newest_term, take_term
from airflow_eos.core.protocol.decision import Decision, Verdict

__all__ = [
    "CheckpointState",
    "CheckpointStore",
    "Decision",
    "DecisionLog",
    "DrainRequest",
    "Heartbeat",
    "OffsetLog",
    "Phase",
    "PipelineIdentity",
    "SourceProgress",
    "StartedBy",
    "StoredObject",
    "Tenure",
    "Term",
    "Verdict",
    "claim",
    "clear_drain",
    "drain_newest",
    "drain_of",
    "drain_requested",
    "newest_term",
    "read_heartbeat",
    "read_pipeline",
    "read_state",
    "request_drain",
    "standing_request",
    "take_term",
    "write_heartbeat",
]

"""What a kind of sink that you write is made of; ``docs/write-a-sink.md`` tells how.

A participant's module imports this where neither Spark nor Airflow is installed.
"""

from __future__ import annotations

from airflow_eos.core.checkpoint import CheckpointStore, Decision
from airflow_eos.core.checkpoint.pipeline import OwnershipFile
from airflow_eos.core.delivery.options import AppFacts, SinkOptions
from airflow_eos.core.delivery.port import Sink, TaskWriter
from airflow_eos.core.delivery.task import own_columns
from airflow_eos.core.protocol.decision import OpenWork, Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member, Owner, Ownership, Participant
from airflow_eos.core.protocol.promise import OperatorRuling, Promise

__all__ = [
    "AppFacts",
    "CheckpointStore",
    "Decision",
    "Member",
    "OpenWork",
    "OperatorRuling",
    "Outcome",
    "Owner",
    "Ownership",
    "OwnershipFile",
    "Participant",
    "PreparedWork",
    "Promise",
    "Sink",
    "SinkOptions",
    "TaskWriter",
    "WorkIdentity",
    "own_columns",
]

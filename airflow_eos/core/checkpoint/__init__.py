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

from airflow_eos.core.checkpoint.backend import StoredObject as StoredObject
from airflow_eos.core.checkpoint.decisions import DecisionLog as DecisionLog
from airflow_eos.core.checkpoint.drain import DrainRequest as DrainRequest
from airflow_eos.core.checkpoint.drain import clear_drain as clear_drain
from airflow_eos.core.checkpoint.drain import drain_newest as drain_newest
from airflow_eos.core.checkpoint.drain import drain_requested as drain_requested
from airflow_eos.core.checkpoint.drain import request_drain as request_drain
from airflow_eos.core.checkpoint.drain import standing_request as standing_request
from airflow_eos.core.checkpoint.heartbeat import Heartbeat as Heartbeat
from airflow_eos.core.checkpoint.heartbeat import Phase as Phase
from airflow_eos.core.checkpoint.heartbeat import StartedBy as StartedBy
from airflow_eos.core.checkpoint.heartbeat import drain_of as drain_of
from airflow_eos.core.checkpoint.heartbeat import read_heartbeat as read_heartbeat
from airflow_eos.core.checkpoint.heartbeat import write_heartbeat as write_heartbeat
from airflow_eos.core.checkpoint.offsets import OffsetLog as OffsetLog
from airflow_eos.core.checkpoint.pipeline import PipelineIdentity as PipelineIdentity
from airflow_eos.core.checkpoint.pipeline import claim as claim
from airflow_eos.core.checkpoint.pipeline import read_pipeline as read_pipeline
from airflow_eos.core.checkpoint.progress import CheckpointState as CheckpointState
from airflow_eos.core.checkpoint.progress import SourceProgress as SourceProgress
from airflow_eos.core.checkpoint.progress import read_state as read_state
from airflow_eos.core.checkpoint.store import CheckpointStore as CheckpointStore
from airflow_eos.core.checkpoint.terms import Tenure as Tenure
from airflow_eos.core.checkpoint.terms import Term as Term
from airflow_eos.core.checkpoint.terms import newest_term as newest_term
from airflow_eos.core.checkpoint.terms import take_term as take_term
from airflow_eos.core.protocol.decision import Decision as Decision
from airflow_eos.core.protocol.decision import Verdict as Verdict

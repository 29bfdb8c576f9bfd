"""A driver and a recovery as real processes: Spark's micro-batch loop around the product's batch.

Everything that the protocol consists of is the product's: recovery at the start, the batch, the
tasks, the participant, the decisions. Played are Spark's logs, its workers and its frames.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, PipelineIdentity, claim
from airflow_eos.core.checkpoint.rulings import read_acceptance
from airflow_eos.core.delivery import replay as difference
from airflow_eos.core.delivery.batch import Authority, ExactlyOnceBatch
from airflow_eos.core.delivery.outputs import InPlanSink
from airflow_eos.core.delivery.replay import ReplayChecks, promise_in_flight
from airflow_eos.core.delivery.takeover import take_over
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.participant import Participant
from airflow_eos.errors import DecisionNeededError, EosError
from airflow_eos.recovery import execute_recovery, read_rulings
from tests.chaos import controls
from tests.chaos.frame import Frame, undelivered
from tests.chaos.journal import Journal, keep_what_is_pruned, now_ms
from tests.chaos.outputs import connected
from tests.chaos.settings import ARROW, DriverSettings
from tests.chaos.sources import source_of
from tests.chaos.spark_loop import MicroBatches, PlannedBatch
from tests.chaos.workers import WorkerPool

_PR_SET_PDEATHSIG = 1
FINISHED, ENDED_BY_ERROR, CRASHED, ASKED = 0, 3, 4, 5


def drive(settings: DriverSettings) -> None:
    """Run as the target of a process."""
    _process(settings, _drive)


def recover(settings: DriverSettings) -> None:
    """Run as the target of a process: what ``airflow-eos recover --force`` does."""
    _process(settings, _recover)


def _process(settings: DriverSettings, body: Callable[[DriverSettings, Journal], None]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # the harness ends the group: driver and workers
    die_with_parent()
    folder = Path(settings.folder)
    log = os.open(folder / f"{settings.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    if settings.failpoints:
        os.environ["EOS_FAILPOINTS"] = settings.failpoints
        os.environ["EOS_FAILPOINTS_DIR"] = settings.failpoints_dir
    controls.break_rule(settings.control)
    difference.undelivered = undelivered  # type: ignore[assignment]
    journal = Journal(settings.journal, settings.name)
    code = ENDED_BY_ERROR
    try:
        body(settings, journal)
        code = FINISHED
    except DecisionNeededError as error:
        journal.note("asked", text=str(error))
        code = ASKED
    except BaseException as error:  # noqa: BLE001 - told; what no fault explains, with its trace
        code = _ended(settings, journal, error)
    sys.stderr.flush()
    os._exit(code)


def _ended(settings: DriverSettings, journal: Journal, error: BaseException) -> int:
    if isinstance(error, Exception) and settings.explains(error):
        journal.note("ended", by=f"{type(error).__name__}: {error}")
        return ENDED_BY_ERROR
    kind = "an EosError that no fault explains" if isinstance(error, EosError) else "a bug"
    journal.note("crash", text=f"{kind}: {''.join(traceback.format_exception(error))}")
    return CRASHED


def die_with_parent() -> None:
    """SIGKILL us, stopped or not, when the fork server goes, and that goes with the harness."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _recover(settings: DriverSettings, journal: Journal) -> None:
    kafka = {"bootstrap.servers": settings.bootstrap}
    report = execute_recovery(
        settings.checkpoint,
        kafka,
        reach=settings.reach,
        storage_options=settings.storage_options,
        force=True,
    )
    journal.note("recovered", steps=len(report.results))


def _drive(settings: DriverSettings, journal: Journal) -> None:
    folder = Path(settings.folder)
    pool = WorkerPool(settings.journal, task_attempts=settings.task_attempts)
    store = settings.store()
    keep_what_is_pruned(store, folder / "kept")
    sink, participant = connected(settings)
    _claim(settings, store, participant)
    decisions = DecisionLog(store)
    journal.note("recovering")
    tenure, offsets = take_over(store, decisions, participant, driver=settings.name)
    journal.note("taken-over")
    source = source_of(settings)
    batches = MicroBatches(
        Path(settings.checkpoint), source, journal, retained=settings.retained, gap_s=settings.gap_s
    )

    def on_phase(batch: int, phase: str) -> None:
        if phase == "waiting":
            decisions.prune(batch - settings.retained)

    deliver: Any = ExactlyOnceBatch(
        sink if promise_in_flight(store) else InPlanSink(sink),
        participant,
        decisions,
        Authority(tenure, offsets, participant, evaluated_at=batches.evaluated_at),
        rulings=partial(read_rulings, store),
        accepted=partial(read_acceptance, store),
        reading=ReplayChecks(tuple) if settings.source == ARROW else ReplayChecks(),
        driver=settings.name,
        on_phase=on_phase,
    )
    settings.admitted.touch()
    journal.note("admitted")
    _batches(settings, batches, partial(source.frame, pool), deliver)


def _batches(
    settings: DriverSettings,
    batches: MicroBatches,
    frame: Callable[[PlannedBatch], Frame],
    deliver: Any,
) -> None:
    """Run Spark's loop: plan, run, commit; the batch in flight first."""
    stop = Path(settings.folder) / "stop"
    batch = batches.resume()
    while True:
        while batch is None:
            stopping = stop.exists()
            batch = batches.plan()
            if batch is None and stopping:
                return
            if batch is None:
                time.sleep(0.02)
        failpoint("planned")
        deliver(deliver.streamed(frame(batch)), batch.number)
        failpoint("returned")
        batches.commit(batch)
        batch = None
        failpoint("between")


def _claim(settings: DriverSettings, store: CheckpointStore, participant: Participant) -> None:
    claim(
        store,
        PipelineIdentity(
            id=uuid.uuid4().hex,
            participants=participant.members,
            created_at_ms=now_ms(),
            created_by=settings.name,
        ),
    )

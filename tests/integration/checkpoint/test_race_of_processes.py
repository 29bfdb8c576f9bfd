"""Eight processes want to decide the same attempt: exactly one does, and all agree which."""

from __future__ import annotations

import multiprocessing
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier

WRITERS = 8
BATCHES = 50


def decide(folder: Path, name: str, gate: Barrier, told: SimpleQueue[tuple[int, str]]) -> None:
    log = DecisionLog(CheckpointStore.open(folder))
    for batch_id in range(BATCHES):
        mine = Decision(
            batch_id=batch_id,
            attempt=1,
            verdict=Verdict.COMMIT,
            offsets="v1",
            decided_by=name,
            decided_at_ms=1_700_000_000_000,
            nonce=uuid.uuid4().hex,
        )
        gate.wait(timeout=300)
        if log.record(mine):
            told.put((batch_id, name))
    told.put((-1, name))


def test_of_eight_processes_exactly_one_decides_each_attempt(tmp_path):
    # Forked after use, as Airflow and Spark fork: obstore's own local store hangs in the child.
    assert CheckpointStore.open(tmp_path).create("eos/used-before-the-fork", b"1")
    fork = multiprocessing.get_context("fork")
    gate, told = fork.Barrier(WRITERS), fork.SimpleQueue()
    writers = [
        fork.Process(target=decide, args=(tmp_path, f"writer-{number}", gate, told), daemon=True)
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    winners: list[tuple[int, str]] = []
    finished = 0
    while finished < WRITERS:
        batch_id, name = told.get()
        if batch_id < 0:
            finished += 1
        else:
            winners.append((batch_id, name))
    for writer in writers:
        writer.join(timeout=120)
        assert writer.exitcode == 0
    assert sorted(batch_id for batch_id, _ in winners) == list(range(BATCHES))
    log = DecisionLog(CheckpointStore.open(tmp_path))
    for batch_id, name in winners:
        assert [decision.decided_by for decision in log.of_batch(batch_id)] == [name]
    assert not list(tmp_path.rglob(".*")), "a temporary file was left"

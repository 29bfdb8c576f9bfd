"""A writer killed in the middle of a create leaves a whole decision or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from airflow_eos.checkpoint import CheckpointStore, DecisionLog

WRITER = """
import sys, uuid
from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
log = DecisionLog(CheckpointStore.open(sys.argv[1]))
for batch_id in range(int(sys.argv[2]), 1_000_000):
    log.record(Decision(batch_id=batch_id, attempt=1, verdict=Verdict.ABORT, reason="x" * 20_000,
                        decided_by="writer", decided_at_ms=1, nonce=uuid.uuid4().hex))
    print(batch_id, flush=True)
"""


def test_a_killed_writer_leaves_whole_decisions_only(tmp_path):
    log = DecisionLog(CheckpointStore.open(tmp_path))
    recorded = -1
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(recorded + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) - recorded >= 40:
                    os.kill(writer.pid, signal.SIGKILL)
                    break
            # What was still in the pipe was recorded before the kill.
            recorded = max([int(line), *(int(late) for late in writer.stdout if late.strip())])
    assert recorded >= 199
    for batch_id in range(recorded + 1):
        assert [decision.reason for decision in log.of_batch(batch_id)] == ["x" * 20_000]
    assert len(log.of_batch(recorded + 1)) <= 1, "written whole, and killed before it could tell"

"""Spark's own repartition of the state: exact after a drain, and refused where it skips a batch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from airflow_eos.cli import upgrade as module
from airflow_eos.errors import ContinuityError, RecoveryError
from tests.integration.hazards.spark_job import Job
from tests.integration.policy.test_state_store import configured, count

pytestmark = pytest.mark.long


def test_a_skipped_promise_is_refused_and_a_drained_one_is_repartitioned(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with configured(job):
        job.feed(100)
        count(job)
        job.feed(100)
        with monkeypatch.context() as dying:
            dying.setenv("EOS_FAILPOINTS", "decided=raise")
            with pytest.raises(RuntimeError, match="decided"):
                count(job)
        with pytest.raises(RecoveryError, match="does not repartition"):
            module._repartition(job.spark, job.checkpoint, 5)
        job.spark._streamingCheckpointManager.repartition(job.checkpoint, 5, False)
        with pytest.raises(ContinuityError, match="batch 3 would begin at") as refused:
            count(job)
        [remedy] = refused.value.remedies
        for path in re.findall(r"(?:offsets|commits)/\d+", remedy.change):
            shutil.move(
                Path(job.checkpoint) / path, Path(job.checkpoint).with_name(path.replace("/", "."))
            )
        count(job)
        job.assert_counts()
        module._repartition(job.spark, job.checkpoint, 5)
        job.feed(100)
        count(job)
    job.assert_counts()
    assert list(Path(job.checkpoint).glob("state/0/4/*")), "the state has five partitions"

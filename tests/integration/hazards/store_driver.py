"""A driver on real files, with the small fakes of the unit tests for broker and tasks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog, Verdict
from airflow_eos.delivery.batch import ExactlyOnceBatch
from tests.support.authority import OFFSETS, authority_of
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink

ROWS = (["a", "b"], ["c"])


class Driver:
    """A driver on a checkpoint that a test may damage."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.broker = FakeBroker()
        self.log = DecisionLog(CheckpointStore.open(checkpoint))
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "offsets" / "0").write_text(OFFSETS)

    @property
    def folder(self) -> Path:
        return self.checkpoint / "eos" / "decisions" / "0"

    def run(self) -> None:
        self.batch()(FakeFrame(*ROWS), 0)  # type: ignore[arg-type]

    def batch(self) -> ExactlyOnceBatch:
        """Another start of the app."""
        return ExactlyOnceBatch(
            FakeSink(self.broker),
            FakeParticipant(self.broker),
            self.log,
            authority_of(CheckpointStore.open(self.checkpoint), self.log),
            rulings=lambda _unknown: {},
            accepted=lambda _batch, _promise: None,
            driver=f"driver {time.time_ns()}",
            on_phase=lambda _batch, _phase: None,
        )

    def verdicts(self) -> list[Verdict]:
        return [d.verdict for d in self.log.of_batch(0)]


def decided_and_died(driver: Driver) -> None:
    """Batch 0 is promised (decision 2, after the seal) and not settled."""
    dying = driver.batch()
    dying._settle = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        dying(FakeFrame(*ROWS), 0)  # type: ignore[arg-type]
    assert driver.verdicts() == [Verdict.ABORT, Verdict.COMMIT]

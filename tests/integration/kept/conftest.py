"""What the tests of each target begin with: a checkpoint, and the participant that owns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.kinds.upsert.participant import UpsertParticipant
from tests.support.pipelines import owner_at


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "checkpoint")


@pytest.fixture
def upsert(
    again: Callable[[CheckpointStore], UpsertParticipant], store: CheckpointStore
) -> Iterator[UpsertParticipant]:
    """That of the driver; ``again`` of the module makes one more, as another process has it."""
    participant = again(store)
    participant.claim(owner_at(store.location))
    yield participant
    participant.close()

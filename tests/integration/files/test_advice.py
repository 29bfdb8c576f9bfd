"""What an error says to do is done to the letter, and the pipeline goes on with all it had."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import OwnershipError
from airflow_eos.sinks import FileSink
from tests.integration.files.staged import Stage, outcomes


def start(stage: Stage) -> Any:
    """As a driver does before its first batch."""
    participant, owner = stage.participant, owner_of(stage.store)
    participant.claim(owner)
    for name in participant.ownership(owner):
        name.require(owner, newest_planned=0, decisions={})
    return participant


@pytest.mark.parametrize("publish", ["listing", "manifest"])
def test_a_checkpoint_that_was_moved_takes_its_name_along(tmp_path: Path, publish: Any) -> None:
    """Work of its promise lies in the folder of which the advice speaks."""
    sink = FileSink(str(tmp_path / "out"), "json", ["day"], publish=publish, name="orders")
    stage = Stage(sink, tmp_path / "checkpoint")
    stage.sink = sink.bound(stage.store)
    start(stage)
    works = stage.promised("ab", "cd")
    shutil.move(stage.checkpoint, tmp_path / "moved")
    moved = Stage(stage.sink.bound(Stage(sink, tmp_path / "moved").store), tmp_path / "moved")
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint .* is a copy") as refused:
        start(moved)

    advice = re.search(r"Remove (\S+), and nothing else there", str(refused.value))
    assert advice is not None, refused.value
    Path(advice[1]).unlink()

    participant = start(moved)
    assert outcomes(participant.commit(works)) == {Outcome.COMMITTED}
    assert moved.seen() == Counter("abcd")

"""A folder that was given to another checkpoint: what the former one settled is not its own."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_eos.checkpoint.backend import PIPELINE
from airflow_eos.errors import OwnershipError
from airflow_eos.kinds.files.manifest import LOG
from airflow_eos.protocol.decision import Outcome
from airflow_eos.sinks import FileSink
from tests.integration.files.staged import Stage, entries, outcomes
from tests.integration.files.test_advice import start


def staged(tmp_path: Path, checkpoint: str, publish: Any) -> Stage:
    sink = FileSink(str(tmp_path / "out"), "json", ["day"], publish=publish, name="orders")
    stage = Stage(sink, tmp_path / checkpoint)
    stage.sink = sink.bound(stage.store)
    return stage


def taken_over(stage: Stage) -> Any:
    """Do what the refusal says."""
    with pytest.raises(OwnershipError) as refused:
        start(stage)
    advice = re.search(r"Remove (\S+) and the folder (\S+),", str(refused.value))
    assert advice is not None, refused.value
    Path(advice[1]).unlink()
    shutil.rmtree(advice[2], ignore_errors=True)
    return start(stage)


@pytest.mark.parametrize("publish", ["listing", "manifest"])
def test_a_new_checkpoint_takes_no_batch_of_the_former_one_for_its_own(tmp_path, publish):
    """Both have a batch 0: the rows of the second were said to be there, and were in no log."""
    former, new = staged(tmp_path, "former", publish), staged(tmp_path, "new", publish)
    participant = start(former)
    for batch, row in enumerate("abc"):
        participant.commit(former.promised(row, batch=batch))
    participant = taken_over(new)
    for batch, row in enumerate("xy"):
        works = new.promised(row, batch=batch)
        assert outcomes(participant.outcome(works)) == {Outcome.OPEN}
        assert outcomes(participant.commit(works)) == {Outcome.COMMITTED}
    assert new.seen() == Counter("abcxy")


@pytest.mark.parametrize("publish", ["listing", "manifest"])
def test_a_new_checkpoint_is_not_below_the_floor_of_the_former_one(tmp_path, publish):
    former, new = staged(tmp_path, "former", publish), staged(tmp_path, "new", publish)
    participant = start(former)
    for batch in range(20, 23):
        participant.commit(former.promised("a", batch=batch))
    participant = taken_over(new)
    assert outcomes(participant.commit(new.promised("x", batch=0))) == {Outcome.COMMITTED}
    assert new.seen() == Counter("aaax")


def test_a_driver_of_the_former_checkpoint_that_wakes_adds_nothing_again(tmp_path):
    """Its witness is repeated for as long as the log lives, beside those of the new one."""
    former, new = staged(tmp_path, "former", "manifest"), staged(tmp_path, "new", "manifest")
    asleep = start(former)
    works = former.promised("a")
    former.participant.commit(works)
    participant = taken_over(new)
    for batch in range(25):
        participant.commit(new.promised("x", batch=batch))
    assert outcomes(asleep.commit(works)) == {Outcome.COMMITTED}
    assert new.seen() == Counter({"a": 1, "x": 25})


def test_what_a_log_without_ids_says_is_of_the_pipeline_that_was_there(tmp_path):
    """The release before wrote none: the driver that starts after it settles nothing twice."""
    stage = staged(tmp_path, "former", "manifest")
    participant = start(stage)
    works = stage.promised("a")
    participant.commit(works)
    log = Path(stage.sink.folder) / LOG
    newest = log / entries(stage.sink.place())[-1]
    newest.write_text(re.sub(r"(0-1-committed)-[0-9a-f]+", r"\1", newest.read_text()))
    assert outcomes(stage.participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter("a")

    later = staged(tmp_path, "later", "manifest")
    made = msgspec.json.decode((later.checkpoint / PIPELINE).read_bytes())
    made["created_at_ms"] = 2**42
    (later.checkpoint / PIPELINE).write_bytes(msgspec.json.encode(made))
    participant = taken_over(later)
    assert outcomes(participant.commit(later.promised("x"))) == {Outcome.COMMITTED}
    assert later.seen() == Counter("ax")

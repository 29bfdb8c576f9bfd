"""Objects of ours that a disk or a copy gives empty or full of NULs: what each of them costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_eos.checkpoint import (
    Tenure,
    clear_drain,
    drain_newest,
    newest_term,
    standing_request,
    take_term,
)
from airflow_eos.checkpoint.progress import read_state_size
from airflow_eos.checkpoint.snapshot import read_snapshot
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.checkpoint.topics import refuse_remade
from airflow_eos.errors import CheckpointFormatError, StoreError


@pytest.fixture(params=[b"", b"\0" * 300, b'{"format_ver'], ids=["empty", "NULs", "cut off"])
def damaged(request) -> bytes:
    return bytes(request.param)


def test_whether_a_driver_runs_is_not_known_and_nothing_else_is_hidden(store, damaged):
    store.put("eos/driver.json", damaged)
    found = read_snapshot(store)
    assert found.heartbeat is None
    assert "whether a driver runs is not known" in found.unheard


def test_a_request_to_drain_that_nobody_can_read_stops_nobody_and_is_asked_again(store, damaged):
    store.put("eos/drain.json", damaged)
    assert standing_request(store) is None
    asked = drain_newest(store, requested_by="me", reason="again")
    assert standing_request(store) == asked
    store.put("eos/drain.json", damaged)
    clear_drain(store, term=1, submission=None)
    assert store.get("eos/drain.json") is None


def test_a_damaged_term_stands_by_its_name(store, damaged):
    before = take_term(store, taken_by="before")
    store.put(f"eos/drivers/{before.term.number}.json", damaged)
    assert newest_term(store) == before.term.number
    ours = take_term(store, taken_by="ours")
    assert isinstance(ours, Tenure)
    assert ours.is_newest()


def test_topics_that_are_not_known_any_more_are_said_with_what_it_costs(store, damaged):
    store.put("eos/topics.json", damaged)
    with pytest.raises(CheckpointFormatError, match="is not known") as refused:
        refuse_remade(store, {"in": "an id"})
    [remedy] = refused.value.remedies
    assert "deleted and made again" in remedy.costs
    store.delete(["eos/topics.json"])  # as it says
    refuse_remade(store, {"in": "an id"})


def test_how_large_the_state_is_is_told_by_the_next_batch(store, damaged):
    store.put("eos/state.json", damaged)
    assert read_state_size(store) is None


@pytest.mark.parametrize("path", ["eos/pipeline.json", "eos/decisions/0/1.json"])
def test_what_only_a_copy_can_tell_is_refused_with_the_ways_on(store, damaged, path):
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"in":{"0":1}}')
    store.put(path, damaged)
    with pytest.raises(CheckpointFormatError, match=path) as refused:
        read_snapshot(store)
    assert len(refused.value.remedies) == 2


@pytest.mark.parametrize("is_folder", [True, False], ids=["a folder", "a file above it"])
@pytest.mark.parametrize(
    "path",
    [
        "eos/pipeline.json",
        "eos/driver.json",
        "eos/topics.json",
        "eos/decisions/0/1.json",
        "eos/drivers/1.json",
        "offsets/0",
        "commits/0",
    ],
)
@pytest.mark.parametrize(
    "asked",
    [
        lambda store, path: store.get(path),
        lambda store, path: store.head(path),
        lambda store, path: store.create(path, b"ours"),
        lambda store, path: store.put(path, b"ours"),
        lambda store, path: store.list(path.rpartition("/")[0]),
    ],
    ids=["read", "looked at", "created", "written", "listed"],
)
def test_what_stands_in_the_place_of_a_file_or_folder_is_no_absence(
    tmp_path: Path, path: str, is_folder: bool, asked: Callable[[CheckpointStore, str], object]
):
    store, at = CheckpointStore.open(tmp_path / "q"), tmp_path / "q" / path
    in_the_way = at if is_folder else at.parent
    if is_folder:
        at.mkdir(parents=True)
    else:
        at.parent.parent.mkdir(parents=True, exist_ok=True)
        at.parent.write_bytes(b"")
    with pytest.raises(StoreError, match="is not known, and nothing was concluded") as refused:
        asked(store, path)
    [remedy] = refused.value.remedies
    assert "move what is in its place" in remedy.change
    in_the_way.rename(tmp_path / "elsewhere")
    asked(store, path)

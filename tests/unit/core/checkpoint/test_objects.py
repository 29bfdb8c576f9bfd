"""The small JSON objects, damaged ones too: ownership, heartbeat, drain request, terms."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import obstore.store
import pytest

from airflow_eos.core.checkpoint import (
    DecisionLog,
    Tenure,
    claim,
    clear_drain,
    drain_newest,
    newest_term,
    read_heartbeat,
    read_pipeline,
    request_drain,
    standing_request,
    take_term,
    write_heartbeat,
)
from airflow_eos.core.checkpoint.backend import DRAINS, drain_path, term_path
from airflow_eos.core.checkpoint.heartbeat import beat_interval
from airflow_eos.core.checkpoint.progress import read_state_size
from airflow_eos.core.checkpoint.snapshot import read_snapshot
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.terms import still_in_flight
from airflow_eos.core.checkpoint.topics import refuse_remade
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.core.protocol.decision import Stored, added, decode
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import CheckpointFormatError, OwnershipError, StoreError, SupersededError
from tests.support.beats import heartbeat
from tests.support.pipelines import kafka_member, kafka_pipeline

OURS = kafka_pipeline("orders-etl", "cluster-a")
BEAT = heartbeat(batch_id=None, beat_at_ms=1_700_000_000_000, started_at_ms=1_600_000_000_000)


def test_nobody_owns_a_new_checkpoint_then_the_first_claim_does(store):
    assert read_pipeline(store) is None
    assert claim(store, OURS) == OURS
    assert read_pipeline(store) == OURS


def test_a_claim_again_gives_the_first_owner(store):
    claim(store, OURS)
    later = msgspec.structs.replace(OURS, created_at_ms=1_800_000_000_000, created_by="driver-2")
    assert claim(store, later) == OURS


@pytest.mark.parametrize(
    ("changed", "both"),
    [
        (kafka_member("other", "cluster-a"), ("'orders-etl'", "'other'")),
        (kafka_member("orders-etl", "cluster-b"), ("'cluster-a'", "'cluster-b'")),
        (Member("sink", "files", {"folder": "/out"}), ("kafka 'sink'", "files 'sink'")),
        (Member("totals", "kafka", OURS.participants[0].address), ("'sink'", "'totals'")),
    ],
)
def test_another_participant_is_refused_naming_both(store, changed, both):
    claim(store, OURS)
    with pytest.raises(OwnershipError) as refused:
        claim(store, msgspec.structs.replace(OURS, participants=(changed,)))
    assert all(name in str(refused.value) for name in both)
    assert read_pipeline(store) == OURS


def test_the_same_address_may_have_another_target(store):
    claim(store, OURS)
    moved = msgspec.structs.replace(OURS.participants[0], target="kafka:elsewhere")
    assert claim(store, msgspec.structs.replace(OURS, participants=(moved,))) == OURS


def test_a_heartbeat_replaces_the_last_one(store):
    assert read_heartbeat(store) is None
    write_heartbeat(store, BEAT)
    later = msgspec.structs.replace(BEAT, batch_id=4, phase="settling")
    write_heartbeat(store, later)
    assert read_heartbeat(store) == later


def test_a_drain_is_requested_once_and_cleared(store):
    assert standing_request(store) is None
    first = request_drain(store, requested_by="ops", reason="upgrade")
    assert request_drain(store, requested_by="somebody else", reason="why not") == first
    assert standing_request(store) == first
    clear_drain(store, term=1, submission=None)
    clear_drain(store, term=1, submission=None)
    assert standing_request(store) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b'{"format_version": 1, "trans', "truncated"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "without a format_version"),
        (b'{"format_version": true}', "without a format_version"),
        (b'{"format_version": "1"}', "without a format_version"),
        (b'{"format_version": 9}', "format version 9; this release reads up to 1"),
        (b'{"format_version": 1}', "of format version 1: "),
    ],
)
def test_a_damaged_or_foreign_object_is_refused_with_its_place(store, data, message):
    for path, read in (("eos/pipeline.json", read_pipeline), ("eos/driver.json", read_heartbeat)):
        store.put(path, data)
        with pytest.raises(CheckpointFormatError) as refused:
            read(store)
        assert path in str(refused.value)
        assert message in str(refused.value)
    store.put("eos/drain.json", data)
    assert standing_request(store) is None  # nobody is stopped by what nobody understands


@pytest.mark.parametrize(
    "changed",
    [{"created_at_ms": "1700000000000"}, {"created_at_ms": 1.5}, {"sink": None}, {"extra": 1}],
)
def test_a_field_of_a_wrong_type_or_name_is_refused(store, changed):
    store.put("eos/pipeline.json", msgspec.json.encode(msgspec.to_builtins(OURS) | changed))
    with pytest.raises(CheckpointFormatError, match="is not a Pipeline"):
        read_pipeline(store)


def test_an_unknown_phase_is_refused(store):
    beat = msgspec.to_builtins(BEAT) | {"phase": "napping"}
    store.put("eos/driver.json", msgspec.json.encode(beat))
    with pytest.raises(CheckpointFormatError, match="napping"):
        read_heartbeat(store)


class Grown(Stored, frozen=True, kw_only=True):
    """As the next format of an object will be: ``reason`` came with its format version 2."""

    format_version: int = 2
    rows: int
    reason: str


def test_an_object_of_the_format_before_reads_as_the_next_format_means_it():
    upgrades = {1: lambda fields: added(fields, reason="not said then")}
    first = b'{"format_version": 1, "rows": 7}'
    found = decode(first, Grown, "here", upgrades=upgrades)
    assert (found.format_version, found.rows, found.reason) == (1, 7, "not said then")
    foreign = b'{"format_version": 1, "rows": 7, "reason": "x"}'
    with pytest.raises(CheckpointFormatError, match="version 1: it has reason, which came later"):
        decode(foreign, Grown, "here", upgrades=upgrades)


@pytest.mark.parametrize("behind_days", [0, 30], ids=["same clocks", "a store that is behind"])
def test_how_old_a_request_to_a_start_is_the_stores_clock_says(tmp_path, behind_days):
    """A start may wait a week for its turn; a machine that is ahead would forget its request."""
    store, now_s = CheckpointStore.open(tmp_path), time.time() - behind_days * 86_400
    for submission, days in (("long-gone", 9), ("waits", 6), ("new", 0)):
        request_drain(store, requested_by="ada", reason="x", submission=submission)
        at_s = now_s - days * 86_400
        os.utime(tmp_path / drain_path(submission), (at_s, at_s))
    clear_drain(store, term=1, submission="other")
    assert {each.name for each in store.list(DRAINS)} == {"waits.json", "new.json"}


# --- Objects of ours that a disk or a copy gives empty or full of NULs: what each of them costs ---


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


# --- Which driver is the newest: whoever slept, however long, finds out before he shows anything --


def plan(store: CheckpointStore, *batches: int) -> None:
    for batch in batches:
        store.put(f"offsets/{batch}", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n1')


def test_terms_are_counted_from_one_and_the_older_ones_go(store):
    assert newest_term(store) == 0
    first, second = take_term(store, taken_by="a"), take_term(store, taken_by="b")
    assert (first.term.number, second.term.number, newest_term(store)) == (1, 2, 2)
    assert store.get(term_path(1)) is None


def test_the_newest_driver_may_deliver_the_newest_batch(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 6, 7)
    tenure.require(7)


def test_a_driver_is_superseded_as_soon_as_another_has_started(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    assert tenure.is_newest()
    take_term(store, taken_by="b")
    assert not tenure.is_newest()
    with pytest.raises(SupersededError, match="a driver with term 2 has started since"):
        tenure.require(7)


def test_a_driver_that_slept_over_its_batch_and_its_pruning_may_not_rely_on_its_decision(
    store, make_decision
):
    """Hole 1: 1,800 of 2,700 rows came twice. Spark's and our places of the batch are empty again,
    so both let it in."""
    sleeper = take_term(store, taken_by="a")
    take_term(store, taken_by="b")
    plan(store, 250)
    plan(store, 101)  # Spark's add answers True again after a purge
    assert DecisionLog(store).record(make_decision(101)) is True
    with pytest.raises(SupersededError):
        sleeper.require(101)


def test_the_newest_driver_does_not_rely_on_a_batch_that_is_not_the_newest(store):
    """The listing: nothing else helps against places that were purged."""
    tenure = take_term(store, taken_by="a")
    plan(store, 101, 250)
    with pytest.raises(SupersededError, match="the newest batch planned is 250"):
        tenure.require(101)


def test_nor_on_one_that_spark_has_committed(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    store.put("commits/7", b"v1\n{}")
    with pytest.raises(SupersededError, match="committed this batch meanwhile"):
        tenure.require(7)


def test_a_term_that_is_gone_is_superseded_although_no_newer_one_is_seen(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    store.delete([term_path(1)])
    with pytest.raises(SupersededError, match="is gone"):
        tenure.require(7)


def test_a_copy_put_back_in_place_gives_two_drivers_a_number_and_not_a_nonce(store):
    tenure = take_term(store, taken_by="a")
    plan(store, 7)
    store.delete([term_path(1)])
    assert take_term(store, taken_by="b").term.number == 1
    assert not tenure.is_newest()
    with pytest.raises(SupersededError, match="belongs to another driver now"):
        tenure.require(7)


def test_terms_are_pruned_in_ascending_order():
    """Or a driver could see its own term, and the newer one not any more."""
    deleted: list[str] = []

    class Watched(obstore.store.MemoryStore):
        def delete(self, paths):
            deleted.append(paths)
            return super().delete(paths)

    store = CheckpointStore(Watched(), "memory")
    for number in (3, 1, 12, 2):
        store.put(term_path(number), b"{}")
    take_term(store, taken_by="a")
    assert deleted == [term_path(number) for number in (1, 2, 3, 12)]


def test_a_place_that_was_pruned_is_not_the_newest_term(store, monkeypatch):
    """It slept between the look and the create, while others came and went."""
    create = store.create

    def after_others(path: str, data: bytes) -> bool:
        monkeypatch.setattr(store, "create", create)
        for name in ("b", "c"):
            take_term(store, taken_by=name)
        store.delete([term_path(1)])
        return bool(create(path, data))

    monkeypatch.setattr(store, "create", after_others)
    tenure = take_term(store, taken_by="a")
    assert isinstance(tenure, Tenure)
    assert tenure.term.number == newest_term(store) == 3


def test_a_foreign_file_among_the_terms_is_refused(store):
    store.put("eos/drivers/old.json", b"{}")
    with pytest.raises(CheckpointFormatError, match="is foreign"):
        take_term(store, taken_by="a")


@pytest.mark.parametrize("left", [b"", b"\0" * 30, b"v1"], ids=["empty", "NULs", "cut off"])
def test_a_completion_that_a_power_cut_has_damaged_completes_nothing(store, left):
    plan(store, 7)
    store.put("commits/7", left)
    assert still_in_flight(store, 7)
    store.put("commits/7", b"v9\n{}")  # a newer Spark's: whole
    assert not still_in_flight(store, 7)


# --- How often a driver beats follows what its store bills ----------------------------------------


@pytest.mark.parametrize(
    ("location", "seconds"),
    [
        ("/data/query", 2),
        ("file:///data/query", 2),
        ("hdfs://name:8020/query", 5),
        ("s3a://bucket/query", 10),
        ("gs://bucket/query", 10),
        ("abfss://box@account.dfs.core.windows.net/query", 10),
    ],
)
def test_an_object_store_hears_of_a_driver_less_often_than_a_disk(location, seconds):
    assert beat_interval(location) == timedelta(seconds=seconds)


def test_a_beat_says_how_often_it_comes_so_that_a_reader_knows_when_silence_is_death(tmp_path):
    store = CheckpointStore.open(tmp_path)
    writer = BeatLoop(store, application_id="app", trigger=timedelta(seconds=1))
    writer.start()
    writer.stop("stopped")
    assert read_heartbeat(store).interval_ms == 2_000
    store.location = "s3a://bucket/query"
    writer = BeatLoop(store, application_id="app", trigger=timedelta(seconds=1))
    writer.start()
    writer.stop("stopped")
    assert read_heartbeat(store).interval_ms == 10_000

"""The small JSON objects: ownership, heartbeat and drain request."""

from __future__ import annotations

import os
import time

import msgspec
import pytest

from airflow_eos.checkpoint import (
    CheckpointStore,
    claim,
    clear_drain,
    read_heartbeat,
    read_pipeline,
    request_drain,
    standing_request,
    write_heartbeat,
)
from airflow_eos.checkpoint.backend import DRAINS, drain_path
from airflow_eos.errors import CheckpointFormatError, OwnershipError
from airflow_eos.protocol.decision import Stored, added, decode
from airflow_eos.protocol.participant import Member
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
    for path, read in (
        ("eos/pipeline.json", read_pipeline),
        ("eos/driver.json", read_heartbeat),
    ):
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

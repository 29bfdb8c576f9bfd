"""A copy in which a delivered batch is in flight again, and what a rehearsal of it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog
from airflow_eos.core.checkpoint.offsets import require_same_sources
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.rehearsal import (
    REHEARSAL,
    CheckpointCopy,
    OutputComparison,
    RehearsalReport,
    RehearsalRequest,
    RowDifference,
    RowExample,
    compared,
    rehearsable,
)
from airflow_eos.core.checkpoint.rulings import accept
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.delivery.rehearsal import Rehearsal
from airflow_eos.core.delivery.spark_session import QuerySettings
from airflow_eos.errors import ConfigurationError, ContinuityError
from airflow_eos.ops.rehearsal import sentence
from tests.support.pipelines import commit_of


def planned(batch: int, watermark: int = 0) -> str:
    metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": 1000 + batch, "conf": {}}
    return f'v1\n{json.dumps(metadata)}\n{{"in":{{"0":{10 * (batch + 1)}}}}}'


def committed(watermark: int = 0) -> bytes:
    return f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'.encode()


def decide(store: CheckpointStore, batch: int, offsets: str | None = None) -> Decision:
    decision = commit_of(batch, offsets=offsets or planned(batch), term=1, nonce=f"{batch:032x}")
    assert DecisionLog(store).record(decision)
    return decision


@pytest.fixture
def delivered(store: CheckpointStore) -> CheckpointStore:
    return deliver(store)


def deliver(store: CheckpointStore) -> CheckpointStore:
    """Batches 0 to 4, the newest one in flight."""
    store.put("metadata", b'{"id":"0b9bd3b1-0d4f-4b3e-8f0b-5a7f0c1d2e3f"}')
    store.put("sources/0/0", b"\0v1\n" + b'{"in":{"0":0}}')
    for batch in range(5):
        store.put(f"offsets/{batch}", planned(batch).encode())
        store.put(f"state/0/0/{batch}.delta", f"delta {batch}".encode())
        decide(store, batch)
        if batch < 4:
            store.put(f"commits/{batch}", committed())
    store.put("state/0/_metadata/metadata", b"of the operator")
    return store


@pytest.fixture
def scratch() -> CheckpointStore:
    return CheckpointStore(MemoryStore(), "memory://scratch")


def test_the_newest_complete_batches_are_rehearsed_and_none_in_flight(delivered):
    assert rehearsable(delivered, 2).batches == (2, 3)
    assert rehearsable(delivered, 20).batches == (0, 1, 2, 3)


def test_nothing_delivered_is_refused(store):
    with pytest.raises(ConfigurationError, match="no complete batch"):
        rehearsable(store, 2)


def test_a_batch_that_nobody_promised_is_not_known_nor_those_before_it(delivered):
    delivered.delete(["eos/decisions/1/1.json"])
    found = rehearsable(delivered, 20)
    assert found.batches == (2, 3)
    assert found.unknown.keys() == {0, 1}
    assert "no decision" in found.unknown[1]


def test_a_batch_that_a_person_let_go_is_not_known(delivered):
    accept(delivered, 3, f"{3:032x}", missing={"sink": 4}, ruled_by="somebody")
    found = rehearsable(delivered, 2)
    assert found.batches == ()
    assert "a person" in found.unknown[3]


@pytest.mark.parametrize("lost", ["offsets/1", "commits/1"])
def test_a_batch_whose_beginning_is_gone_is_not_known(delivered, lost):
    delivered.delete([lost])
    found = rehearsable(delivered, 20)
    assert found.batches == (3,)
    assert "does not go back" in found.unknown[2]


def test_the_batch_is_in_flight_over_the_range_that_was_delivered(delivered, scratch):
    decided = planned(2).replace('"0":30', '"0":29')
    delivered.delete(["eos/decisions/2/1.json"])
    decide(delivered, 2, decided)  # Spark's own entry says 30: another driver has replaced it
    copy = CheckpointCopy(delivered, scratch)
    copy.begin(2)
    copy.plan(2)
    state = read_state(scratch)
    assert (state.in_flight, state.latest_commit) == (2, 1)
    assert [source.end for source in state.sources] == [{"in": {0: 29}}]
    assert [source.start for source in state.sources] == [{"in": {0: 20}}]
    assert scratch.get("sources/0/0") == delivered.get("sources/0/0")


def test_the_state_is_that_before_the_batch(delivered, scratch):
    CheckpointCopy(delivered, scratch).begin(2)
    there = {entry.name for entry in scratch.list("state/0/0")}
    assert there == {"0.delta", "1.delta", "2.delta"}
    assert scratch.get("state/0/_metadata/metadata") == b"of the operator"


def test_the_watermark_is_what_the_new_version_made_of_the_batches_before(delivered, scratch):
    copy = CheckpointCopy(delivered, scratch)
    copy.begin(2)
    copy.plan(2)
    assert scratch.get("offsets/2") == planned(2).encode()
    scratch.put("commits/2", committed(77))
    copy.plan(3)
    data = scratch.get("offsets/3")
    assert data is not None
    lines = data.decode().split("\n")
    assert json.loads(lines[1])["batchWatermarkMs"] == 77
    assert lines[2] == planned(3).split("\n")[2]


@pytest.mark.parametrize("batches", [1, 2, 3, 4])
def test_wherever_it_begins_its_sources_are_compared_and_nothing_is_missing(
    tmp_path: Path, batches: int
) -> None:
    original, scratch = (f"file://{tmp_path}/{name}" for name in ("checkpoint", "scratch"))
    deliver(CheckpointStore.open(original))
    told = RehearsalRequest(original, scratch, batches)
    settings = QuerySettings(original, None, {}, CheckpointPolicy(), "append", None)
    rehearsal = Rehearsal(told, cast("Any", None), settings)  # Spark has no part in this
    require_same_sources(rehearsal.store, [{"in"}])
    with pytest.raises(ContinuityError, match="reads other in the query"):
        require_same_sources(rehearsal.store, [{"other"}])


def test_nothing_of_ours_but_a_persons_word_on_the_input_is_copied(delivered, scratch):
    delivered.put("eos/rulings/input/in/0/3-4.json", b"skipped")
    copy = CheckpointCopy(delivered, scratch)
    copy.begin(3)
    assert scratch.get("eos/rulings/input/in/0/3-4.json") == b"skipped"
    assert not scratch.folders("eos/decisions")
    assert copy.copied_bytes > 0


def test_an_app_is_told_by_its_environment_and_garbage_delivers_nothing():
    told = RehearsalRequest("/c", "/s", 3, ("id",))
    assert RehearsalRequest.from_environment(told.environment()) == told
    assert RehearsalRequest.from_environment({}) is None
    with pytest.raises(ConfigurationError, match="cannot be read"):
        RehearsalRequest.from_environment({REHEARSAL: "yes"})


# --- What is not compared is not known; what differs is never called the same ---------------------


A, B = "0" * 31 + "a", "0" * 31 + "b"


def report(*found: OutputComparison, error: str = "") -> RehearsalReport:
    return RehearsalReport(checkpoint="c", compared=found, copied_bytes=0, seconds=1.0, error=error)


def of(verdict) -> OutputComparison:
    return OutputComparison(1, "sink", verdict)


def test_equal_fingerprints_of_as_many_rows_are_the_same_rows():
    assert compared(1, "sink", (3, A), (3, A), None).verdict == "same"


@pytest.mark.parametrize("found", [(3, B), (4, A)])
def test_other_fingerprints_differ_also_where_readers_cannot_be_asked(found):
    told = compared(1, "sink", (3, A), found, "the topic has lost it")
    assert (told.verdict, told.why) == ("differs", "the topic has lost it")
    assert compared(1, "sink", (3, A), found, None).verdict == "differs"


def test_content_stands_above_the_fingerprint_of_other_columns():
    assert compared(1, "sink", (3, A), (3, B), RowDifference()).verdict == "same"
    assert compared(1, "sink", (3, A), (3, B), RowDifference(changed=1)).verdict == "differs"


def test_equal_rows_but_for_what_the_system_fills_in_are_not_known_to_be_the_same():
    told = compared(1, "sink", (3, A), (3, B), RowDifference(untold=("timestamp",)))
    assert told.verdict == "not known"
    assert "timestamp" in told.why


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["same", "same"], 0),
        (["same", "differs", "not known"], 1),
        (["same", "not known"], 3),
        (["not known"], 3),
        ([], 3),
    ],
)
def test_the_exit_status_is_that_of_the_worst(verdicts, status):
    found = report(*map(of, verdicts))
    assert found.exit_status == status


def test_batches_without_a_row_compare_nothing_whatever_the_new_version_does():
    """As where the newest twenty close no window: another sum in it would be the same."""
    empty = OutputComparison(1, "sink", "same", 0, 0)
    assert report(empty, empty).exit_status == 3
    assert report(empty, OutputComparison(2, "sink", "same", 1, 1)).exit_status == 0
    assert "none of these batches has a row" in sentence(report(empty))


def test_a_version_that_fails_is_no_good_whatever_it_gave_before():
    found = report(of("same"), error="batch 2: ValueError")
    assert (found.exit_status, found.verdict) == (2, "failed")


def test_a_program_reads_the_verdict_first():
    shown = RowDifference(1, 0, 0, (RowExample("changed", "k", "value=1", "value=2"),))
    told = json.loads(report(OutputComparison(1, "sink", "differs", 3, 3, shown)).to_json())
    assert next(iter(told)) == "verdict"
    assert told["compared"][0]["difference"]["examples"][0]["rehearsed"] == "value=2"

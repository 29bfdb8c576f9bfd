"""What a power cut leaves of Spark's files: written again, put aside, or named as lost for good."""

from __future__ import annotations

import json
import uuid
import zlib
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, OffsetLog, claim, read_state
from airflow_eos.core.checkpoint.mending import (
    beside,
    damage,
    decided_offsets,
    lost_beginning,
    mend,
    newest_known,
)
from airflow_eos.core.checkpoint.snapshot import admitted, read_snapshot
from airflow_eos.core.checkpoint.spark_log import parse_commit, parse_offsets
from airflow_eos.core.protocol.decision import Decision, Outcome, Verdict
from airflow_eos.core.protocol.participant import Note, Owner, Ownership
from airflow_eos.errors import CheckpointError, CheckpointFormatError
from tests.support.pipelines import kafka_pipeline

WAYS = {
    "empty": lambda _: b"",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "NULs": lambda whole: b"\0" * len(whole),
    "foreign": lambda _: b"\x89PNG\r\n",
}


def entry(batch: int, watermark_ms: int = 0) -> str:
    head = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": batch, "conf": {}}
    return f"v1\n{json.dumps(head)}\n" + json.dumps({"in": {"0": 10 * (batch + 1)}})


def commit(watermark_ms: int = 0) -> bytes:
    return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'.encode()


@pytest.fixture
def decisions(store, make_decision) -> DecisionLog:
    """Batches 0 to 3 were decided, 0 to 2 are complete, 3 is in flight."""
    store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    store.put("sources/0/0", b'\0v1\n{"in":{"0":0}}')
    log = DecisionLog(store)
    for batch in range(4):
        store.put(f"offsets/{batch}", entry(batch, 100 * batch).encode())
        assert log.record(make_decision(batch, offsets=entry(batch, 100 * batch)))
        if batch < 3:
            store.put(f"commits/{batch}", commit(100 * (batch + 1)))
    return log


def is_an_id(metadata: bytes) -> bool:
    return str(uuid.UUID(json.loads(metadata)["id"])) in metadata.decode()


def repaired(store, decisions: DecisionLog) -> None:
    OffsetLog(store, decisions).repair()
    assert damage(store, decisions) == ()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", ["offsets/3", "offsets/2", "commits/2"])
def test_what_a_decision_or_a_plan_proves_is_written_again_byte_for_byte(
    store, decisions, path, way
):
    whole = store.get(path)
    store.put(path, WAYS[way](whole))
    state = read_state(store)
    assert (state.latest_offsets, state.latest_commit, state.in_flight) == (3, 2, 3)
    repaired(store, decisions)
    assert store.get(path) == whole


def test_an_entry_in_the_middle_that_is_missing_is_written_again(store, decisions):
    store.delete(["offsets/2", "commits/2"])
    repaired(store, decisions)
    assert store.get("offsets/2") == entry(2, 200).encode()
    assert store.get("commits/2") == commit(300)


def test_the_newest_entry_that_is_missing_is_written_again(store, decisions):
    """Who has removed the empty file, as an error used to advise, is not stuck."""
    store.delete(["offsets/3"])
    assert newest_known(store, decisions) == 3
    assert read_snapshot(store).state.in_flight == 3
    repaired(store, decisions)
    assert store.get("offsets/3") == entry(3, 300).encode()


def test_two_entries_that_are_missing_are_an_older_copy(store, decisions):
    store.delete(["offsets/3", "offsets/2", "commits/2"])
    assert newest_known(store, decisions) == 2  # one of them might have been lost
    store.delete(["commits/1"])
    assert newest_known(store, decisions) == 1
    with pytest.raises(CheckpointError, match="older than what was decided"):
        read_snapshot(store)


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_that_nobody_promised_is_put_aside_and_not_deleted(store, decisions, way):
    store.put("commits/3", commit())
    store.put("offsets/4", WAYS[way](entry(4).encode()))
    left = store.get("offsets/4")
    state = read_state(store)
    assert (state.in_flight, state.sources) == (4, ())
    repaired(store, decisions)
    assert store.get("offsets/4") is None
    [aside] = store.list("eos/aside/offsets")
    assert store.get(aside.path) == left


def test_where_the_newest_plan_is_put_aside_the_two_before_it_are_read(store, decisions):
    """Or Spark stops at its start: batch 1 doesn't exist."""
    store.put("offsets/4", b"")
    store.put("commits/3", commit(400))
    store.delete(["offsets/2"])
    assert [each.path for each in damage(store, decisions)] == ["offsets/4", "offsets/2"]
    repaired(store, decisions)
    assert store.get("offsets/2") == entry(2, 200).encode()


@pytest.mark.parametrize("way", WAYS)
def test_a_settled_batch_whose_completion_is_damaged_is_in_flight(store, decisions, way):
    store.put("commits/3", WAYS[way](commit()))
    assert read_state(store).in_flight == 3
    repaired(store, decisions)
    assert store.get("commits/3") is None


def test_a_power_cut_that_takes_every_file_of_sparks(store, decisions):
    for prefix in ("offsets", "commits", "sources/0"):
        for each in store.list(prefix):
            store.put(each.path, b"")
    store.put("metadata", b"")
    repaired(store, decisions)
    state = read_state(store)
    assert (state.latest_offsets, state.latest_commit, state.in_flight) == (3, 2, 3)
    assert is_an_id(store.get("metadata"))
    assert store.get("sources/0/0") is None


def test_the_id_of_the_query_is_not_lost(store, decisions):
    """Events are told by it: with another one they would begin anew."""
    whole = store.get("metadata")
    OffsetLog(store, decisions).make_durable(3)
    store.put("metadata", b"\0" * len(whole))
    repaired(store, decisions)
    assert (store.get("metadata") == whole) is store.is_on_a_disk  # no other store is synced


@pytest.mark.parametrize("left", [None, b""])
@pytest.mark.parametrize("copied", [True, False])
def test_no_log_is_left_without_the_id_of_its_query(store, decisions, left, copied):
    """Spark makes none where a log is (4.2: STREAMING_CHECKPOINT_MISSING_METADATA_FILE)."""
    whole = store.get("metadata")
    if copied:
        store.put("eos/metadata", whole)
    store.delete(["metadata"])
    if left is not None:
        store.put("metadata", left)
    repaired(store, decisions)
    found = store.get("metadata")
    assert found == whole if copied else is_an_id(found)
    store.delete(["metadata"])
    repaired(store, decisions)
    assert store.get("metadata") == found, "the same, whoever writes it"


def test_before_the_first_batch_is_planned_spark_makes_the_id(store):
    assert damage(store, DecisionLog(store)) == ()


def test_a_power_cut_between_a_plan_and_its_decision(store, decisions):
    """Nothing is known of the newest batch: the one before, which was settled, is run again."""
    store.put("commits/3", b"")
    store.put("offsets/4", b"")
    assert read_state(store).in_flight == 4  # what its tasks have left open is sealed first
    repaired(store, decisions)
    state = read_state(store)
    assert (state.latest_offsets, state.latest_commit, state.in_flight) == (3, 2, 3)


@pytest.mark.parametrize("newest", [0, 1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_power_cut_takes_the_name_of_a_commit_and_the_content_of_the_next_plan(
    store, make_decision, newest, way
):
    """Two folders, of which a disk writes the names when it likes: found by the model."""
    log = DecisionLog(store)
    for batch in range(newest + 1):
        store.put(f"offsets/{batch}", entry(batch).encode())
        assert log.record(make_decision(batch, offsets=entry(batch)))
        if batch < newest:
            store.put(f"commits/{batch}", commit())
    store.put(f"offsets/{newest + 1}", WAYS[way](entry(newest + 1).encode()))
    repaired(store, log)
    assert read_state(store).in_flight == newest


@pytest.mark.parametrize("way", WAYS)
def test_the_first_batch_whose_completion_is_damaged_is_in_flight(store, make_decision, way):
    """Found by the model: it was looked at from the second batch on."""
    store.put("offsets/0", entry(0).encode())
    store.put("commits/0", WAYS[way](commit()))
    log = DecisionLog(store)
    assert log.record(make_decision(0, offsets=entry(0)))
    assert read_state(store).in_flight == 0
    repaired(store, log)
    assert store.get("commits/0") is None


BEGAN = b'\0v1\n{"in":{"0":0}}'
LOST = {**WAYS, "of no source": lambda _: b"{}"}


@pytest.mark.parametrize("way", LOST)
@pytest.mark.parametrize("after", [None, 1], ids=["in flight", "the one after it is put aside"])
def test_where_the_first_batch_began_is_not_guessed(store, make_decision, way, after):
    log = DecisionLog(store)
    store.put("offsets/0", entry(0).encode())
    assert log.record(make_decision(0, offsets=entry(0)))
    store.put("sources/0/0", BEGAN)
    if after is not None:
        store.put(f"offsets/{after}", b"")
    assert lost_beginning(store, log, newest_known(store, log)) is None
    store.put("sources/0/0", LOST[way](BEGAN))
    lost = lost_beginning(store, log, newest_known(store, log))
    assert "where the first batch began is lost" in str(lost)
    assert "startingOffsets" in lost.remedies[0].costs
    if after is None:
        assert read_snapshot(store).state.in_flight == 0  # a look at what is open can do without


def test_the_gate_asks_where_the_first_batch_began(store):
    store.put("offsets/0", entry(0).encode())
    store.put("sources/0/0", b"{}")
    nobody: Any = None  # refused before any system is asked
    error = admitted(store, nobody)[0].error
    assert "where the first batch began" in str(error)


@pytest.mark.parametrize("way", LOST)
def test_where_a_complete_batch_began_is_put_aside(store, decisions, way):
    """Spark reads it no more, and would stumble over what it cannot read."""
    store.put("sources/0/0", LOST[way](BEGAN))
    assert lost_beginning(store, decisions, newest_known(store, decisions)) is None
    repaired(store, decisions)
    assert store.get("sources/0/0") is None


def test_where_a_source_of_another_kind_began_is_its_own_affair(store, make_decision):
    log = DecisionLog(store)
    text = entry(0).replace('{"in": {"0": 10}}', '{"logOffset": 0}')
    store.put("offsets/0", text.encode())
    assert log.record(make_decision(0, offsets=text))
    store.put("sources/0/0", b"whatever it likes")
    assert lost_beginning(store, log, newest_known(store, log)) is None
    store.put("sources/0/0", b"")
    assert lost_beginning(store, log, newest_known(store, log)) is not None


def test_where_the_first_batch_began_is_missing(tmp_path, make_decision):
    """On a disk its folder tells that it was there; who moves that away has been told the cost."""
    store = CheckpointStore.open(tmp_path)
    log = DecisionLog(store)
    store.put("offsets/0", entry(0).encode())
    assert log.record(make_decision(0, offsets=entry(0)))
    (tmp_path / "sources/0").mkdir(parents=True)
    [remedy] = lost_beginning(store, log, newest_known(store, log)).remedies
    assert remedy.change.startswith("move the folder sources/0 out of ")
    (tmp_path / "sources/0").rename(tmp_path / "away")
    assert lost_beginning(store, log, newest_known(store, log)) is None


def test_the_ids_of_state_are_not_made_up(store, decisions):
    ids = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["an id"]]}}'
    store.put("commits/1", ids)
    store.put("commits/2", b"")
    with pytest.raises(CheckpointFormatError, match="the ids of its state"):
        damage(store, decisions)


@pytest.mark.parametrize(
    ("file", "is_told"),
    [("1.delta", True), ("1.changelog", True), ("_metadata/schema", False), ("1_ab-c.zip", False)],
)
def test_the_files_of_state_tell_whether_a_commit_named_them(store, make_decision, file, is_told):
    """Where no commit is whole: the only one was lost. Found on real Spark (seed 311000051)."""
    log = DecisionLog(store)
    for batch in range(2):
        store.put(f"offsets/{batch}", entry(batch, 100 * batch).encode())
        assert log.record(make_decision(batch, offsets=entry(batch, 100 * batch)))
    store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    store.put("commits/0", b"")
    store.put(f"state/0/0/{file}", b"rows")
    if not is_told:
        with pytest.raises(CheckpointFormatError, match="the ids of its state"):
            damage(store, log)
        return
    repaired(store, log)
    assert store.get("commits/0") == commit(100)


def test_mending_twice_is_mending_once(store, decisions):
    store.put("offsets/3", b"")
    store.put("commits/3", commit())
    store.put("offsets/4", b"")
    found = damage(store, decisions)
    mend(store, found)
    mend(store, found)
    assert len(store.list("eos/aside/offsets")) == 1
    assert store.get("offsets/3") == entry(3, 300).encode()


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (["offsets/2", "eos/decisions/2/1.json"], "Where batch 2 ended is lost for good"),
        (["offsets/3", "commits/2"], "is older than what was decided"),
    ],
    ids=["lost for good", "an older copy"],
)
def test_the_gate_knows_what_a_start_would_stumble_over_later(store, decisions, gone, said):
    claim(store, kafka_pipeline())
    nobody: Any = SimpleNamespace(ownership=lambda _: (), require_settled=lambda *_: None)
    assert admitted(store, nobody)[0].error is None
    store.delete(gone)
    assert said in str(admitted(store, nobody)[0].error)


def sums_of(data: bytes) -> bytes:
    """As Hadoop's client writes them, one of each 512 bytes."""
    parts = [data[at : at + 512] for at in range(0, len(data), 512)]
    return b"crc\0\0\0\2\0" + b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)


def on_a_disk(tmp_path, make_decision) -> tuple[CheckpointStore, DecisionLog]:
    """Batch 0 is delivered and complete, 1 decided; each file of Spark's has its sum."""
    store = CheckpointStore.open(tmp_path)
    log = DecisionLog(store)
    store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    store.put("sources/0/0", BEGAN)
    store.put("commits/0", commit())
    for batch in range(2):
        store.put(f"offsets/{batch}", entry(batch).encode())
        assert log.record(make_decision(batch, offsets=entry(batch)))
    for path in SUMMED:
        store.put(beside(path), sums_of(store.get(path) or b""))
    return store, log


SUMMED = ("metadata", "offsets/0", "offsets/1", "commits/0", "sources/0/0")
SUMS = {
    "empty": lambda _: b"",
    "NULs": lambda whole: b"\0" * len(whole),
    "cut off": lambda whole: whole[:8],
    "foreign": lambda _: b"\x89PNG\r\n",
}


@pytest.mark.parametrize("way", SUMS)
def test_a_sum_alone_that_is_damaged_goes_and_its_file_stays(tmp_path, make_decision, way):
    """Of a file whose sum is cut off Hadoop reads nothing: Spark would never start again."""
    store, log = on_a_disk(tmp_path, make_decision)
    assert damage(store, log) == ()
    before = {path: store.get(path) for path in SUMMED}
    for path in SUMMED:
        store.put(beside(path), SUMS[way](store.get(beside(path))))
    assert read_state(store).in_flight == 1
    repaired(store, log)
    assert {path: store.get(path) for path in SUMMED} == before
    assert [path for path in SUMMED if store.get(beside(path)) is not None] == []


@pytest.mark.parametrize("path", ["metadata", "offsets/0", "offsets/1", "commits/0", "sources/0/0"])
def test_what_its_sum_contradicts_is_not_whole(tmp_path, make_decision, path):
    """As where one bit of a number has flipped: it reads well, and says something else."""
    store, log = on_a_disk(tmp_path, make_decision)
    whole = store.get(path) or b""
    store.put(beside(path), sums_of(whole + b"."))
    [found] = damage(store, log)
    assert (found.path, found.found) == (path, "is not what the sum beside it says")
    repaired(store, log)
    if path == "metadata":
        assert store.get(path) not in {None, whole}
        return
    assert store.get(path) == (None if path == "sources/0/0" else whole)


def test_a_plan_that_its_sum_contradicts_and_nobody_promised_is_put_aside(tmp_path, make_decision):
    store, log = on_a_disk(tmp_path, make_decision)
    store.put("commits/1", commit())
    store.put("offsets/2", entry(2).encode())
    store.put(beside("offsets/2"), sums_of(entry(1).encode()))
    repaired(store, log)
    assert store.get("offsets/2") is None


PLACES = ("planned", "sealed", "decided", "complete")
FILES = (
    *("offsets/0", "offsets/1", "offsets/2", "commits/0", "commits/1", "commits/2"),
    *("metadata", "sources/0/0", "eos/pipeline.json"),
    *("eos/decisions/1/1.json", "eos/decisions/2/1.json"),
)


class Remembers:
    """A system in which all is settled, and that has this batch noted as the newest."""

    members = ()

    def __init__(self, owner: Owner, newest: Decision) -> None:
        self._note = Note(
            pipeline=owner.pipeline,
            batch=newest.batch_id,
            attempt=newest.attempt,
            decision=newest.nonce,
        )
        self._owner = owner

    def open(self, **_: Any) -> tuple[()]:
        return ()

    def ownership(self, _asking: Owner) -> tuple[Ownership, ...]:
        return (Ownership("prefix 'etl'", owner=self._owner, notes=(self._note,)),)

    def outcome(self, works: Any) -> dict[Any, Outcome]:
        return {each.identity: Outcome.COMMITTED for each in works}

    def require_settled(self, *_: Any) -> None: ...


def at(place: str, make_decision: Any) -> tuple[CheckpointStore, Any]:
    """Batch 2 has come so far, and those before it are complete."""
    store = CheckpointStore(MemoryStore(), "memory://query")
    store.put("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    store.put("sources/0/0", b'\0v1\n{"in":{"0":0}}')
    owner = Owner.at(claim(store, kafka_pipeline()).id, store.location)
    log = DecisionLog(store)
    for batch in range(3):
        store.put(f"offsets/{batch}", entry(batch, 100 * batch).encode())
        if batch < 2 or place in ("decided", "complete"):
            newest = make_decision(batch, offsets=entry(batch, 100 * batch))
            assert log.record(newest)
        elif place == "sealed":
            sealed = {"verdict": Verdict.ABORT, "works": (), "offsets": None, "reason": "x"}
            assert log.record(make_decision(batch, **sealed))
        if batch < 2 or place == "complete":
            store.put(f"commits/{batch}", commit(100 * (batch + 1)))
    return store, Remembers(owner, newest)


def spark_begins(store: CheckpointStore) -> int:
    """The batch that it runs first; raises what it stumbles over (``populateStartOffsets``)."""
    planned, complete = (
        max((int(each.name) for each in store.list(log) if each.name.isdigit()), default=-1)
        for log in ("offsets", "commits")
    )
    for batch in {planned, planned - 1} - {-1, -2}:
        parse_offsets(store.get(f"offsets/{batch}") or b"", "offsets")
    assert complete in (planned, planned - 1)
    if complete >= 0:
        parse_commit(store.get(f"commits/{complete}") or b"", "commits")
    return complete + 1


@pytest.mark.parametrize("place", PLACES)
def test_whatever_two_files_are_lost_a_start_is_refused_with_a_way_on_or_goes_on_exactly(
    make_decision, place
):
    """What the gate lets in is mended at one go, and no batch that was promised is forgotten."""
    promised = 2 if place in ("decided", "complete") else 1
    let_in = 0
    for lost in combinations([(file, how) for file in FILES for how in (None, b"")], 2):
        store, system = at(place, make_decision)
        for file, left in lost:
            if store.get(file) is not None:
                store.delete([file]) if left is None else store.put(file, left)
        try:
            refused = admitted(store, system)[0].error
        except CheckpointError as error:
            refused = error
        if refused is not None:
            assert refused.remedies, lost
            continue
        let_in += 1
        log = DecisionLog(store)
        repaired(store, log)
        first = spark_begins(store)
        for batch in range(first, promised + 1):
            assert decided_offsets(log, batch) == entry(batch, 100 * batch), lost
        if first:
            begins = store.get(f"offsets/{first - 1}")
            assert begins == entry(first - 1, 100 * (first - 1)).encode(), lost
        admitted(store, system)[0].require()
    assert let_in > 50

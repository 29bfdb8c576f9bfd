"""The cut of a batch: who writes it, what it says where little is known, and how long it stays."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, claim
from airflow_eos.core.checkpoint.cuts import CutLog, CutWriter
from airflow_eos.core.protocol.cut import BatchEnd, Cut, later_than, stamp_of
from airflow_eos.core.protocol.decision import Decision, PreparedWork, Verdict
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.participant_group import ParticipantGroup
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import StoreError, SupersededError
from airflow_eos.kafka.participant import KafkaParticipant
from tests.support.pipelines import kafka_pipeline

ACCEPTED: Any = object()
OUR_ROWS = {"topic": "out", "partition": 0, "topic_id": "a"}


class Table:
    """A table whose version goes up with each look, as others write to it, too."""

    def __init__(self, name: str = "table", version: int = 1) -> None:
        self.members = (Member(name, "delta", {"table": name}),)
        self.version = version
        self.fails = False

    def position(self, end: BatchEnd) -> dict[str, Any]:
        if self.fails:
            raise StoreError("the table does not answer")
        self.version += 1
        end.require_in_flight()
        return {"version": self.version - 1}


def newest_values() -> Any:
    return SimpleNamespace(members=(Member("totals", "upsert", {"table": "t"}),))


def promised(batch: int, *works: PreparedWork) -> Promise:
    decision = Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        works=works,
        offsets="{}",
        decided_by="test",
        decided_at_ms=0,
        nonce=uuid.uuid4().hex,
    )
    return Promise(batch, (decision,))


def writer(
    store: CheckpointStore,
    *participants: Any,
    in_flight: Callable[[int], None] = lambda _batch: None,
    retained: int | None = None,
) -> CutWriter:
    return CutWriter(store, ParticipantGroup(participants), in_flight, retained)


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(MemoryStore(), "memory")


def cut_of(store: CheckpointStore, batch: int) -> Cut:
    found = CutLog(store).of_batch(batch)
    assert found is not None
    return found


def test_two_processes_write_one_cut_and_the_first_stands(store: CheckpointStore) -> None:
    writer(store, Table(version=7)).write(promised(0))
    writer(store, Table(version=9)).write(promised(0))
    assert cut_of(store, 0).positions["table"].at == {"version": 7}


def test_a_damaged_cut_is_written_anew_by_who_settles_its_batch(store: CheckpointStore) -> None:
    store.put("eos/cuts/0.json", b'{"format_version":1,"batch_i')
    writer(store, Table(version=7)).write(promised(0))
    assert cut_of(store, 0).positions["table"].at == {"version": 7}


def test_a_cut_that_was_copied_to_another_batch_is_refused(store: CheckpointStore) -> None:
    writer(store, Table()).write(promised(0))
    store.put("eos/cuts/1.json", store.get("eos/cuts/0.json") or b"")
    assert CutLog(store).whole(1) is None


def test_a_cut_that_another_pipeline_has_left_is_none(store: CheckpointStore) -> None:
    """As where a person gave the folder to a new one: neither read, nor gone on from."""
    writer(store, Table(version=7)).write(promised(0))
    claim(store, kafka_pipeline())
    assert CutLog(store).whole(0) is None
    writer(store, Table(version=9)).write(promised(0))
    assert cut_of(store, 0).positions["table"].at == {"version": 9}


def test_no_more_cuts_stay_than_batches_are_retained(store: CheckpointStore) -> None:
    """Also those that a driver with more of them has left."""
    first = writer(store, Table())
    for batch in range(4):
        first.write(promised(batch))
    then = writer(store, Table(), retained=2)
    for batch in range(4, 7):
        then.write(promised(batch))
    assert sorted(CutLog(store).listed()) == [4, 5, 6]


def test_who_slept_over_a_later_batch_writes_no_version_that_has_its_rows(
    store: CheckpointStore,
) -> None:
    def over(batch: int) -> None:
        raise SupersededError(f"batch {batch} is not the newest")

    with pytest.raises(SupersededError):
        writer(store, Table(), in_flight=over).write(promised(0))
    assert CutLog(store).of_batch(0) is None


def test_a_batch_that_lost_rows_is_said_in_each_later_cut(store: CheckpointStore) -> None:
    writing = writer(store, Table())
    writing.write(promised(0))
    writing.write(promised(1), ACCEPTED)
    writer(store, Table()).write(promised(2))
    assert [cut_of(store, batch).incomplete for batch in range(3)] == [None, 1, 1]


def test_an_output_that_keeps_its_newest_state_alone_has_no_place(store: CheckpointStore) -> None:
    writer(store, Table(), newest_values()).write(promised(0))
    found = cut_of(store, 0).positions["totals"]
    assert (found.at, found.kind) == (None, "upsert")
    assert "newest state" in found.why


def test_a_system_that_does_not_answer_holds_no_batch_up(store: CheckpointStore) -> None:
    """Its place is not known, and what came before is not claimed once it answers again."""
    table = Table()
    writing = writer(store, table)
    writing.write(promised(0))
    table.fails = True
    writing.write(promised(1))
    table.fails = False
    writing.write(promised(2))
    found = [cut_of(store, batch).positions["table"] for batch in range(3)]
    assert [each.at is None for each in found] == [False, True, False]
    assert [found[0].since, found[2].since] == [0, 2]
    assert "does not answer" in found[1].why


def test_a_store_that_refuses_the_cut_holds_no_batch_up(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: str, _data: bytes) -> bool:
        raise StoreError("no room")

    monkeypatch.setattr(store, "create", refuse)
    writer(store, Table()).write(promised(0))
    assert CutLog(store).listed() == {}


def test_a_stamp_leaves_out_later_batches_of_its_pipeline_alone() -> None:
    ours, later = stamp_of("a" * 32, 41), later_than(stamp_of("a" * 32, 41))
    assert stamp_of("a" * 32, 42) in later
    assert ours not in later
    others = [stamp_of(each * 32, batch) for each in "0123bcdef" for batch in (0, 42, 10**11)]
    assert not [stamp for stamp in others if stamp in later]
    assert min(others) < ours < max(others)
    assert stamp_of("f" * 32, 10**12 - 1) < 2**63, "it is a bigint"


def kafka() -> KafkaParticipant:
    wire: Any = None  # nothing is asked where all topics are known
    ledger: Any = SimpleNamespace(prefix="etl")
    return KafkaParticipant(wire, ledger, name="sink")


def transaction(*written: dict[str, Any]) -> PreparedWork:
    return PreparedWork(
        "kafka", "sink", "etl-eos-0-0-7-0", 1, "0" * 32, 0, 60_000, {"written": list(written)}
    )


def test_a_partition_without_rows_in_the_batch_stays_where_it_was() -> None:
    """However far another writer has gone on there; in the others it is behind our last row."""
    former = {"out": {"id": "a", "ends": {"0": 5, "1": 8}}}
    work = transaction(OUR_ROWS | {"first": 9, "last": 11})
    end = BatchEnd(3, "a" * 32, [work], former, lambda: None)
    assert kafka().position(end) == {"out": {"id": "a", "ends": {"0": 12, "1": 8}}}
    assert kafka().position(BatchEnd(4, "a" * 32, [], former, lambda: None)) == former


def test_a_topic_that_was_made_again_is_looked_at_and_not_added_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look counts only if the batch is still the newest after it."""
    asked: list[str] = []

    def positions(*_: Any, **__: Any) -> dict[Any, int]:
        asked.append("the log")
        return {("out", 0): 2, ("out", 1): 1}

    monkeypatch.setattr("airflow_eos.kafka.participant.partitions_of", lambda *_, **__: [])
    monkeypatch.setattr("airflow_eos.kafka.participant.positions", positions)
    former = {"out": {"id": "before", "ends": {"0": 500, "1": 800}}}
    work = transaction(OUR_ROWS | {"first": 0, "last": 1})
    end = BatchEnd(3, "a" * 32, [work], former, lambda: asked.append("whether it is the newest"))
    assert kafka().position(end) == {"out": {"id": "a", "ends": {"0": 2, "1": 1}}}
    assert asked == ["the log", "whether it is the newest"]

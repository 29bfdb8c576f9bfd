"""What is remembered of a pipeline stays small and never becomes less, whoever sleeps where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.pipeline import OwnershipFile
from airflow_eos.errors import OwnershipError, StoreError
from airflow_eos.kafka.transactions.ownership import ownership as in_kafka
from airflow_eos.protocol.decision import Decision, Verdict
from airflow_eos.protocol.participant import Note, Owner, superseded

US, OTHERS = Owner("a" * 32, "/ck"), Owner("b" * 32, "/other")


def note(batch: int, who: Owner = US, *, attempt: int = 1, nonce: str = "c") -> Note:
    return Note(batch, attempt, nonce * 32, who.pipeline)


def decision(batch: int, nonce: str = "c") -> Decision:
    return Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        offsets="v1\n{}\n{}",
        decided_by="driver",
        decided_at_ms=0,
        nonce=nonce * 32,
    )


Scheme = Callable[[dict[str, int], str, tuple[int, ...]], Iterator[None]]


def by_content(there: dict[str, int], _who: str, batches: tuple[int, ...]) -> Iterator[None]:
    """What is done: read; then for each batch note it, and remove what it supersedes."""
    known = {note(each) for each in there.values()}
    yield
    for batch in batches:
        there[str(batch)] = batch
        yield
        for each in superseded(known, note(batch)):
            there.pop(str(each.batch), None)
        known.add(note(batch))
        yield


def by_driver(there: dict[str, int], who: str, batches: tuple[int, ...]) -> Iterator[None]:
    """The try that was taken back: a driver has one note, which it replaces."""
    known = dict(there)
    yield
    for batch in batches:
        there[who] = batch
        yield
        for name in [name for name, each in known.items() if name != who and each < batch]:
            there.pop(name, None)
        yield


def orders(left: tuple[int, ...]) -> Iterator[list[int]]:
    """All in which processes that have so many steps each can make them."""
    if not any(left):
        yield []
    for at, steps in enumerate(left):
        if steps:
            for rest in orders((*left[:at], steps - 1, *left[at + 1 :])):
                yield [at, *rest]


def highest_is_kept(scheme: Scheme) -> bool:
    """A driver of two batches, a recovery and an older driver that sleep anywhere."""
    played = ((3, 7), (4,), (2,))
    for order in orders(tuple(1 + 2 * len(batches) for batches in played)):
        there = {"0": 0}
        steps = [scheme(there, f"process {at}", each) for at, each in enumerate(played)]
        highest = 0
        for at in order:
            next(steps[at])
            highest = max(highest, *there.values(), 0)
            if highest not in there.values():
                return False
    return True


def test_whoever_sleeps_between_its_read_and_its_removal_takes_no_higher_note_away():
    assert highest_is_kept(by_content)
    assert not highest_is_kept(by_driver), "the history that this is about is among them"


def test_notes_of_other_pipelines_and_of_the_same_batch_stay():
    known = [note(3), note(3, OTHERS), note(7, attempt=1), note(7, attempt=2), note(9)]
    assert superseded(known, note(7, attempt=2)) == [note(3)]


def test_a_recovery_that_slept_lets_no_older_copy_in(tmp_path: Path):
    """It read before the driver noted batch 7, and notes and removes after it."""
    store = CheckpointStore.open(tmp_path)
    driver, sleeper = OwnershipFile(store, "x"), OwnershipFile(store, "x")
    driver.claim(US)
    driver.ownership(US)
    driver.note(decision(3), US)
    sleeper.ownership(US)
    for batch in (4, 5, 6, 7):
        driver.note(decision(batch), US)
    sleeper.note(decision(4, "d"), US)
    [found] = OwnershipFile(store, "x").ownership(US)
    assert found.newest(US.pipeline) == note(7)
    with pytest.raises(OwnershipError, match="older copy"):
        found.require(US, newest_planned=4, decisions={4: [decision(4)]})
    OwnershipFile(store, "x").note(decision(8), US)


def test_a_start_reads_what_a_few_wrote_however_often_it_has_started(tmp_path: Path):
    """One listing, and nothing is opened but the claim."""
    store = CheckpointStore.open(tmp_path)
    OwnershipFile(store, "x").claim(US)
    for batch in range(300):
        started = OwnershipFile(store, "x")
        started.ownership(US)
        started.note(decision(batch), US)
    assert [entry.name for entry in store.list("notes")] == [f"299-1-{'c' * 32}-{US.pipeline}"]


def test_many_notes_that_nobody_could_remove_cost_a_listing(tmp_path: Path, monkeypatch):
    store = CheckpointStore.open(tmp_path)
    OwnershipFile(store, "x").claim(US)
    (tmp_path / "notes").mkdir()
    for batch in range(1000):
        (tmp_path / "notes" / f"{batch}-1-{'c' * 32}-{US.pipeline}").touch()
    opened: list[str] = []
    really = CheckpointStore.get

    def got(self: CheckpointStore, path: str) -> bytes | None:
        opened.append(path)
        return really(self, path)

    monkeypatch.setattr(CheckpointStore, "get", got)
    [found] = OwnershipFile(store, "x").ownership(US)
    assert opened == ["owner"]
    assert found.newest(US.pipeline) == note(999)


def test_where_nothing_may_be_removed_it_is_noted_all_the_same(tmp_path: Path, monkeypatch):
    store = CheckpointStore.open(tmp_path)

    def refused(*_given: object) -> None:
        raise StoreError("no right to delete")

    kept = OwnershipFile(store, "x")
    kept.note(decision(1), US)
    monkeypatch.setattr(CheckpointStore, "delete", refused)
    kept.note(decision(2), US)
    [found] = kept.ownership(US)
    assert found.newest(US.pipeline) == note(2)


def test_a_name_that_is_no_note_is_not_passed_over(tmp_path: Path):
    """It may be one of a release to come, of a newer batch."""
    store = CheckpointStore.open(tmp_path)
    store.create("notes/v2-9", b"?")
    [found] = OwnershipFile(store, "x").ownership(US)
    with pytest.raises(OwnershipError, match="v2-9"):
        found.require(US, newest_planned=None, decisions={})


def test_no_name_has_an_ending_that_readers_take_for_data(tmp_path: Path):
    kept = OwnershipFile(CheckpointStore.open(tmp_path), "x")
    kept.claim(US)
    kept.note(decision(1), US)
    assert not [path for path in tmp_path.rglob("*") if "." in path.name]


def test_the_topic_of_prefixes_keeps_a_note_or_a_few_of_a_pipeline():
    """As compaction leaves it: the newest record of each key, and no tombstones."""
    records: dict[bytes, bytes | None] = {}
    known: set[Note] = set()
    for batch in range(300):
        mine = note(batch)
        records[_key(mine)] = msgspec.json.encode(mine)
        for old in superseded(known, mine):
            records[_key(old)] = None
        known = set(in_kafka(records.items(), "etl").notes)
    left = {key: value for key, value in records.items() if value is not None}
    assert in_kafka(left.items(), "etl").newest(US.pipeline) == note(299)
    assert len(left) == 1


def _key(each: Note) -> bytes:
    from airflow_eos.kafka.transactions import ownership

    return msgspec.json.encode(ownership._note_key("etl", each))


def test_an_owner_that_no_parser_reads_is_said_to_be_unreadable(tmp_path):
    store = CheckpointStore.open(tmp_path)
    store.put("owner", b"[" * 100_000)
    with pytest.raises(StoreError, match=r"owner cannot be read"):
        OwnershipFile(store, "x").ownership(US)

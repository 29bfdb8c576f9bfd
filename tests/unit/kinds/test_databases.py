"""What a database remembers of a pipeline, when it may forget, since when it has not answered."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.pipeline import OwnershipFile
from airflow_eos.core.protocol.decision import Decision, Outcome, PreparedWork
from airflow_eos.core.protocol.participant import Note, Owner, superseded
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DeliveryError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kafka.transactions.ownership import ownership as in_kafka
from airflow_eos.kinds.sql import participant as answering
from airflow_eos.kinds.sql.keys import KeysOfName
from airflow_eos.kinds.sql.participant import (
    GENERATION,
    KEPT_BATCHES,
    LedgerState,
    LostError,
    NameRow,
    SqlParticipant,
    answered,
    floor_of,
)
from airflow_eos.kinds.upsert.mysql import MySqlTarget
from airflow_eos.kinds.upsert.redis import RedisTarget
from airflow_eos.kinds.upsert.target import RowSchema
from tests.support.pipelines import commit_of, owner_at

OWNER = owner_at("/a")


class Row:
    """The row of a name, as every process finds it; see :class:`OwnershipTable`."""

    def __init__(self) -> None:
        self.row = NameRow(OWNER, None, 0, None)
        self.waits: set[str] = set()
        self.called = "name 'orders'"

    def row_of_name(self) -> NameRow:
        return self.row

    def ask(self, _keys: Any) -> LedgerState:
        return LedgerState(self.row.floor, self.waits, set())

    def note(self, note: Note, owner: str) -> NameRow:
        assert owner == OWNER.text
        before = self.row
        if before.note is None or before.note < note:
            self.row = before._replace(note=note)
        return before

    def begin_generation(self, generation: int, counted: int) -> None:
        generation = max(generation, self.row.generation)
        self.row = self.row._replace(generation=generation, counted=counted)


class Sql(SqlParticipant):
    """One whose work is open until it is ended."""

    kind = "postgres"
    client_error = OSError

    def __init__(self, row: Row) -> None:
        self.book = lambda *_: row  # type: ignore[misc, assignment]
        super().__init__(None, KeysOfName("orders"), name="orders", instance_id="")
        self.row = row

    def check_detail(self, work: PreparedWork) -> None: ...

    def require_kept(self, table: str) -> None: ...

    transaction = insert = refusal = None  # type: ignore[assignment]

    def end(self, work: PreparedWork) -> None:
        self.row.waits.remove(work.key)

    def remove(self, key: str) -> bool:
        return key in self.row.waits


def prepared(row: Row, batch: int) -> PreparedWork:
    key = f"orders-0-0-{batch:032x}"
    row.waits.add(key)
    detail = {GENERATION: row.row.generation}
    return PreparedWork("postgres", "orders", key, 1, "0" * 32, 0, None, detail)


def deliver(row: Any, batch: int) -> PreparedWork:
    """One batch, by a process of its own."""
    work = prepared(row, batch)
    decision = commit_of(batch, work, decided_by="driver 1", nonce="0" * 32)
    Sql(row).note(decision, OWNER)
    return work


@pytest.fixture
def row() -> Row:
    return Row()


def test_a_key_of_the_same_name_in_another_schema_is_not_of_this_one() -> None:
    """PostgreSQL lists those of a whole database, and a batch ends what is open under its name."""
    postgres = pytest.importorskip("airflow_eos.kinds.postgres.participant")
    schemas = ("tests", "airflow_eos")
    tests, production = (postgres.PostgresTableNames("etl.orders", each) for each in schemas)
    key = production.new_key(3, 0)
    assert production.is_own(key)
    assert not tests.is_own(key)
    assert len({production.new_key(3, 0)[-32:] for _ in range(100)}) == 100
    with pytest.raises(CheckpointFormatError, match="is no key of"):
        tests.checked(key)


def test_the_floor_moves_where_a_run_has_one_batch(row: Row) -> None:
    began = {0: 0}
    for batch in range(3 * KEPT_BATCHES + 7):
        work = deliver(row, batch)
        assert work.detail[GENERATION] >= row.row.floor, "what is promised now is never below it"
        began.setdefault(row.row.generation, batch + 1)
        oldest = began[max(0, row.row.floor)]
        kept = batch + 1 - oldest
        assert kept >= KEPT_BATCHES - 1 or oldest == 0
        assert kept <= 2 * KEPT_BATCHES
    assert (row.row.generation, row.row.floor) == (3, 2)


def test_a_batch_that_waits_for_a_month_is_not_below_the_floor(row: Row) -> None:
    first = deliver(row, KEPT_BATCHES)
    deliver(row, KEPT_BATCHES)
    assert first.detail[GENERATION] >= row.row.floor


def test_a_sleeper_moves_nothing(row: Row) -> None:
    deliver(row, 5 * KEPT_BATCHES)
    before = row.row
    deliver(row, 3)
    assert row.row == before


def test_a_name_that_was_given_up_is_counted_anew(row: Row) -> None:
    deliver(row, 0)
    deliver(row, 5 * KEPT_BATCHES)
    row.row = row.row._replace(note=None)
    deliver(row, 0)
    assert (row.row.generation, row.row.counted) == (1, 0)


def test_commit_and_outcome_never_disagree_about_work_below_the_floor(row: Row) -> None:
    """One said OPEN, so a plan said COMMIT; the other UNKNOWN: advice went in a circle."""
    ours, below = Sql(row), prepared(row, 1)
    row.begin_generation(below.detail[GENERATION] + 2, 7)
    above = prepared(row, 2)
    assert ours.outcome([below, above]) == {
        below.identity: Outcome.UNKNOWN,
        above.identity: Outcome.OPEN,
    }
    assert ours.commit([below])[below.identity] is Outcome.UNKNOWN
    assert row.waits == {below.key, above.key}, "nothing was done"


def test_work_below_the_floor_is_refused_before_it_is_decided(row: Row) -> None:
    ours, below = Sql(row), prepared(row, 1)
    ours.require_decidable([below])
    row.begin_generation(floor_of(below.detail[GENERATION]) + 3, 7)
    with pytest.raises(DeliveryError, match=r"another driver goes on.*Nothing was decided"):
        ours.require_decidable([below])


def test_work_that_does_not_say_its_generation_is_refused(row: Row) -> None:
    strange = msgspec.structs.replace(prepared(row, 1), detail={})
    with pytest.raises(CheckpointFormatError, match="newer release"):
        Sql(row).outcome([strange])


# --- What is remembered of a pipeline stays small and never becomes less, whoever sleeps where ----


US, OTHERS = Owner("a" * 32, "/ck"), Owner("b" * 32, "/other")


def note(batch: int, who: Owner = US, *, attempt: int = 1, nonce: str = "c") -> Note:
    return Note(batch, attempt, nonce * 32, who.pipeline)


def decision(batch: int, nonce: str = "c") -> Decision:
    return commit_of(batch, nonce=nonce * 32)


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


# --- The time counts from when the server stopped answering, not from when the work began ---------


class Clock:
    """Of a server that answers after so many seconds each time; pauses take no time."""

    def __init__(self, *takes_s: float) -> None:
        self._takes: Iterator[float] = itertools.chain(takes_s, itertools.repeat(takes_s[-1]))
        self.now = 0.0
        self.calls = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def act(self, *, fails: int) -> str:
        self.now += next(self._takes)
        self.calls += 1
        if self.calls <= fails:
            raise LostError("The connection is gone.")
        return "done"


def test_a_long_act_that_a_deadlock_ended_is_done_again(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(40.0)
    monkeypatch.setattr(answering, "time", clock)
    assert answered(lambda: clock.act(fails=1), again=lambda: None, timeout_s=30) == "done"
    assert clock.calls == 2


def test_a_server_that_does_not_answer_for_the_time_is_given_up(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(40.0, 10.0)
    monkeypatch.setattr(answering, "time", clock)
    with pytest.raises(
        StoreError, match=r"Asked again for 30 s, without a reply. Nothing was guessed"
    ):
        answered(lambda: clock.act(fails=99), again=lambda: None, timeout_s=30)
    assert clock.now > 70


@pytest.mark.parametrize("url", ["redis://h:6379/orders", "redis://h/1x", "redis://:12/hush@h"])
def test_a_database_of_redis_that_is_no_number_is_not_database_0(url: str):
    """redis-py takes it for none, and another pipeline's rows of these keys may be in that one."""
    with pytest.raises(ConfigurationError, match="URL of Redis cannot be read") as refused:
        RedisTarget(url, "t:", timeout_s=1)
    assert "hush" not in str(refused.value)
    for fine in (
        "redis://h",
        "redis://h/",
        "rediss://h:1/12",
        "redis://h?db=3",
        "unix:///a/b?db=1",
    ):
        RedisTarget(fine, "t:", timeout_s=1).close()


@pytest.mark.parametrize(("width", "count"), [(2, 1_200), (2_100, 501)])
def test_no_command_for_redis_has_more_arguments_than_it_takes(width: int, count: int):
    """It refused 500 rows of 2,096 columns, which were decided by then, at every start."""
    columns = {f"c{number}": pa.nulls(count, pa.string()) for number in range(width)}
    rows = pa.table({"id": [str(row) for row in range(count)], **columns})
    redis = RedisTarget("redis://127.0.0.1:1/0", "t:", timeout_s=1)
    calls = [
        (keys[1:], len(keys) + len(arguments))
        for keys, arguments in redis._calls(rows, RowSchema(("id",)), "mine", "1")
    ]
    assert [key for keys, _ in calls for key in keys] == [b"t:%d" % row for row in range(count)]
    assert max(len(keys) for keys, _ in calls) <= 500
    assert max(size for _, size in calls) < 1 << 20


def test_an_advised_command_does_what_it_says_whatever_a_name_holds(monkeypatch):
    """Another team's prefix, too: whoever copies the command runs nothing of it."""
    theirs = "it's; reboot #:"
    redis = RedisTarget("redis://127.0.0.1:1/0", theirs, timeout_s=1)
    for command in (redis.give_up, *redis.go_on(7).split(" and ")):
        assert shlex.split(command)[2] == f"eos-upsert:{theirs}"
    monkeypatch.setattr(redis._client, "eval", lambda *_: theirs.encode())
    with pytest.raises(ConfigurationError) as refused:
        redis.ensure_instance_id()
    command = refused.value.remedies[1].change.partition("any more, ")[2]
    assert shlex.split(command) == ["redis-cli", "SREM", "eos-upsert:", theirs]
    mysql = MySqlTarget("mysql://u:p@h/db", "it's", timeout_s=1)
    assert mysql.give_up.endswith("WHERE target = 'it''s'")
    assert mysql.go_on(7).endswith("WHERE target = 'it''s'")

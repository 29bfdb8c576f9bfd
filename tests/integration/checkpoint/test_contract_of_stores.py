"""What the protocol rests on, asked of every store; raced by processes, killed in a write."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.checkpoint.store import check_create_if_absent, race_create, sentence_of
from airflow_eos.errors import StoreError
from tests.support.pipelines import commit_of
from tests.support.stores import Where, place

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier

RACERS = 8
ROUNDS = 20
PROCESSES = 3
PROCESS_ROUNDS = 20
LARGE = 60_000  # bytes: more than one packet of whoever sends it


HEAVY = ("hdfs", "azurite")


@pytest.fixture(
    scope="module",
    params=[
        "local",
        "s3proxy",
        "moto",
        *(pytest.param(kind, marks=pytest.mark.cluster) for kind in HEAVY),
    ],
)
def where(request, tmp_path_factory) -> Iterator[Where]:
    with place(request.param, tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def store(where: Where, name: str) -> CheckpointStore:
    return where.opened(name)


def content(writer: int) -> bytes:
    return f"{writer}".encode() * LARGE


@contextmanager
def reading(look: Callable[[], bytes | None]) -> Iterator[set[bytes | None]]:
    """What a reader beside it saw at any moment, whole."""
    seen: set[bytes | None] = set()
    failures: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        try:
            while not ended.is_set():
                seen.add(look())
            seen.add(look())
        except Exception as error:  # noqa: BLE001 - told by the test, not by its thread
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        ended.set()
        reader.join()
    assert not failures, failures


@pytest.mark.long
def test_of_threads_that_create_at_once_one_wins_and_every_reader_sees_him_whole(
    where: Where, name: str
) -> None:
    """Each with a client of its own, as drivers on other machines."""
    racers = [where.opened(name) for _ in range(RACERS)]
    reader = where.opened(name)
    with ThreadPoolExecutor(RACERS) as pool:
        for batch in range(ROUNDS):
            path = f"eos/decisions/{batch}/1.json"
            with reading(partial(reader.get, path)) as seen:
                won = list(
                    pool.map(lambda n, path=path: racers[n].create(path, content(n)), range(RACERS))
                )
            assert won.count(True) == 1, won
            assert content(won.index(True)) in seen
            assert seen <= {None, content(won.index(True))}


def race(where: Where, name: str, writer: int, gate: Barrier, told: SimpleQueue[object]) -> None:
    store = where.opened(name)
    for batch in range(PROCESS_ROUNDS):
        gate.wait(timeout=300)
        if store.create(f"eos/decisions/{batch}/1.json", content(writer)):
            told.put((batch, writer))
    told.put(None)


@pytest.mark.long
def test_of_processes_that_create_at_once_one_wins_each_place(where: Where, name: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    gate, told = spawn.Barrier(PROCESSES), spawn.SimpleQueue()
    writers = [
        spawn.Process(target=race, args=(where, name, number, gate, told), daemon=True)
        for number in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    winners: list[tuple[int, int]] = []
    ended = 0
    while ended < PROCESSES:
        if (entry := told.get()) is None:
            ended += 1
        else:
            winners.append(entry)
    for writer in writers:
        writer.join(timeout=120)
    store = where.opened(name)
    assert sorted(batch for batch, _ in winners) == list(range(PROCESS_ROUNDS))
    for batch, winner in winners:
        assert store.get(f"eos/decisions/{batch}/1.json") == content(winner)


@pytest.mark.long
def test_the_race_of_a_start_is_passed_and_leaves_nothing(store: CheckpointStore) -> None:
    store.check_create_if_absent()
    found = race_create(store, rounds=ROUNDS)
    assert found.is_exclusive, sentence_of(found)
    assert store.delete_folder("eos") is False


def test_what_was_created_is_in_the_next_listing_and_what_was_deleted_is_not(
    store: CheckpointStore,
) -> None:
    paths = [f"eos/decisions/7/{attempt}.json" for attempt in range(1, 6)]
    for number, path in enumerate(paths, start=1):
        assert store.create(path, b"x" * number)
        listed = {entry.path: entry.size for entry in store.list("eos/decisions/7")}
        assert listed == {path: size for size, path in enumerate(paths[:number], start=1)}
    assert list(store.folders("eos/decisions")) == ["7"]
    store.delete([*paths[1:], "eos/never-there"])
    assert [entry.name for entry in store.list("eos/decisions/7")] == ["1.json"]
    assert store.get(paths[1]) is None
    assert store.create(paths[1], b"again") is True
    assert store.delete_folder("eos/decisions/7") is True
    assert store.delete_folder("eos/decisions/7") is False
    assert list(store.folders("eos/decisions")) == []


def test_what_is_replaced_is_never_seen_half_and_never_missing(where: Where, name: str) -> None:
    writer, reader = where.opened(name), where.opened(name)
    path = "eos/driver.json"
    writer.put(path, content(0))
    with reading(lambda: reader.get(path)) as seen:
        for beat in range(1, 10):
            writer.put(path, content(beat))
    assert seen <= {content(beat) for beat in range(10)}, [len(each or b"") for each in seen]
    assert content(9) in seen
    assert [entry.name for entry in reader.list("eos")] == ["driver.json"]


def test_absent_is_absent_and_a_folder_is_no_object(store: CheckpointStore) -> None:
    """A bucket has no folders, only names that begin alike; a folder in a file's place is told."""
    assert (store.get("eos/driver.json"), store.head("eos/driver.json")) == (None, None)
    assert (store.list("offsets"), list(store.folders("offsets"))) == ([], [])
    store.put("offsets/.0.tmp", b"hidden")
    store.put("offsets/0", b"")
    if store.location.startswith(("/", "hdfs:")):
        for look in (store.get, store.head):
            with pytest.raises(StoreError, match="is a folder where a file belongs"):
                look("offsets")
    else:
        assert (store.get("offsets"), store.head("offsets")) == (None, None)
    assert store.get("offsets/0") == b""
    assert [entry.name for entry in store.list("offsets")] == ["0"]


@pytest.mark.cluster
def test_a_store_that_lets_several_win_is_refused_by_a_start(tmp_path) -> None:
    """The negative control: what it says it honours is not what it does."""
    with place("s3mock", tmp_path) as where:
        store = where.opened("query")
        assert store.create("eos/x", b"1")
        assert not store.create("eos/x", b"2"), "it would be refused without any race"
        found = race_create(store, rounds=ROUNDS)
        assert found.several, sentence_of(found)
        with pytest.raises(StoreError, match="If-None-Match"):
            check_create_if_absent(store, rounds=ROUNDS)


# --- Eight processes want to decide the same attempt: exactly one does, and all agree which -------


WRITERS = 8
BATCHES = 50


def decide(folder: Path, name: str, gate: Barrier, told: SimpleQueue[tuple[int, str]]) -> None:
    log = DecisionLog(CheckpointStore.open(folder))
    for batch_id in range(BATCHES):
        mine = commit_of(batch_id, decided_by=name, decided_at_ms=1_700_000_000_000)
        gate.wait(timeout=300)
        if log.record(mine):
            told.put((batch_id, name))
    told.put((-1, name))


@pytest.mark.long
def test_of_eight_processes_exactly_one_decides_each_attempt(tmp_path):
    # Forked after use, as Airflow and Spark fork: obstore's own local store hangs in the child.
    assert CheckpointStore.open(tmp_path).create("eos/used-before-the-fork", b"1")
    fork = multiprocessing.get_context("fork")
    gate, told = fork.Barrier(WRITERS), fork.SimpleQueue()
    writers = [
        fork.Process(target=decide, args=(tmp_path, f"writer-{number}", gate, told), daemon=True)
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    winners: list[tuple[int, str]] = []
    finished = 0
    while finished < WRITERS:
        batch_id, name = told.get()
        if batch_id < 0:
            finished += 1
        else:
            winners.append((batch_id, name))
    for writer in writers:
        writer.join(timeout=120)
        assert writer.exitcode == 0
    assert sorted(batch_id for batch_id, _ in winners) == list(range(BATCHES))
    log = DecisionLog(CheckpointStore.open(tmp_path))
    for batch_id, name in winners:
        assert [decision.decided_by for decision in log.of_batch(batch_id)] == [name]
    assert not list(tmp_path.rglob(".*")), "a temporary file was left"


# --- A writer killed in the middle of a create leaves a whole decision or none --------------------


WRITER = """
import sys, uuid
from airflow_eos.core.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
log = DecisionLog(CheckpointStore.open(sys.argv[1]))
for batch_id in range(int(sys.argv[2]), 1_000_000):
    log.record(Decision(batch_id=batch_id, attempt=1, verdict=Verdict.ABORT, reason="x" * 20_000,
                        decided_by="writer", decided_at_ms=1, nonce=uuid.uuid4().hex))
    print(batch_id, flush=True)
"""


@pytest.mark.long
def test_a_killed_writer_leaves_whole_decisions_only(tmp_path):
    log = DecisionLog(CheckpointStore.open(tmp_path))
    recorded = -1
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(recorded + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) - recorded >= 40:
                    os.kill(writer.pid, signal.SIGKILL)
                    break
            # What was still in the pipe was recorded before the kill.
            recorded = max([int(line), *(int(late) for late in writer.stdout if late.strip())])
    assert recorded >= 199
    for batch_id in range(recorded + 1):
        assert [decision.reason for decision in log.of_batch(batch_id)] == ["x" * 20_000]
    assert len(log.of_batch(recorded + 1)) <= 1, "written whole, and killed before it could tell"

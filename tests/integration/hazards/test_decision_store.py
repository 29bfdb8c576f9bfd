"""Decisions that cannot be stored or read: refused or reported with what to do, never guessed."""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, Verdict
from airflow_eos.core.checkpoint.locations import LocalFiles
from airflow_eos.core.delivery.batch import ExactlyOnceBatch
from airflow_eos.errors import CheckpointFormatError, EosError, StoreError
from tests.support.authority import OFFSETS, authority_of
from tests.support.stores import disk_of
from tests.unit.core.delivery.fakes import FakeBroker, FakeFrame, FakeParticipant, FakeSink

ROWS = (["a", "b"], ["c"])


class Driver:
    """A driver on a checkpoint that a test may damage."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.broker = FakeBroker()
        self.log = DecisionLog(CheckpointStore.open(checkpoint))
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "offsets" / "0").write_text(OFFSETS)

    @property
    def folder(self) -> Path:
        return self.checkpoint / "eos" / "decisions" / "0"

    def run(self) -> None:
        self.batch()(FakeFrame(*ROWS), 0)  # type: ignore[arg-type]

    def batch(self) -> ExactlyOnceBatch:
        """Another start of the app."""
        return ExactlyOnceBatch(
            FakeSink(self.broker),
            FakeParticipant(self.broker),
            self.log,
            authority_of(CheckpointStore.open(self.checkpoint), self.log),
            rulings=lambda _unknown: {},
            accepted=lambda _batch, _promise: None,
            driver=f"driver {time.time_ns()}",
            on_phase=lambda _batch, _phase: None,
        )

    def verdicts(self) -> list[Verdict]:
        return [d.verdict for d in self.log.of_batch(0)]


def decided_and_died(driver: Driver) -> None:
    """Batch 0 is promised (decision 2, after the seal) and not settled."""
    dying = driver.batch()
    dying._settle = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        dying(FakeFrame(*ROWS), 0)  # type: ignore[arg-type]
    assert driver.verdicts() == [Verdict.ABORT, Verdict.COMMIT]


# --- Trouble with the store: refused or reported, never guessed -----------------------------------


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "checkpoint")


@pytest.fixture
def break_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``break_store(error, decision=2, after=False)``: that decision cannot be written.

    ``after``: the error comes although the object was written.
    """
    put = LocalFiles.put

    def arm(error: OSError, *, decision: int, after: bool = False) -> None:
        def failing(self: LocalFiles, path: str, file: bytes, *, mode: Any) -> object:
            if path.endswith(f"/{decision}.json"):
                if after:
                    put(self, path, file, mode=mode)
                raise error
            return put(self, path, file, mode=mode)

        monkeypatch.setattr(LocalFiles, "put", failing)

    monkeypatch.setattr("airflow_eos.core.checkpoint.store._PAUSES_S", (0.0, 0.01))
    yield arm
    monkeypatch.undo()


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
NOT_PERMITTED = PermissionError(errno.EACCES, "Permission denied")
INPUT_OUTPUT = OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("error", [NO_SPACE, NOT_PERMITTED, INPUT_OUTPUT], ids=lambda e: e.strerror)
@pytest.mark.parametrize("after", [False, True], ids=["not written", "written all the same"])
def test_a_commit_whose_writing_failed_is_neither_settled_nor_aborted(
    driver: Driver, break_store: Callable[..., None], error: OSError, after: bool
) -> None:
    """Unknown means unknown: what may be decided stays open until somebody can read."""
    break_store(error, decision=2, after=after)
    if after:
        driver.run()  # read back, and found to be ours
        assert driver.broker.visible() == ["a", "b", "c"]
        return
    with pytest.raises(StoreError) as failed:
        driver.run()
    assert str(error.strerror) in str(failed.value)
    assert "run the same step again" in str(failed.value)
    assert driver.broker.visible() == []
    assert len(driver.broker.open()) == 2, "nothing that may be decided was aborted"


@pytest.mark.parametrize("error", [NO_SPACE, NOT_PERMITTED], ids=lambda e: e.strerror)
def test_once_the_store_is_back_the_next_start_delivers_everything_once(
    driver: Driver,
    break_store: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
) -> None:
    break_store(error, decision=2)
    with pytest.raises(StoreError):
        driver.run()
    monkeypatch.undo()
    driver.run()
    assert driver.broker.visible() == ["a", "b", "c"]
    assert driver.broker.open() == []


def test_a_seal_that_cannot_be_written_stops_before_the_first_transaction(
    driver: Driver, break_store: Callable[..., None]
) -> None:
    break_store(NO_SPACE, decision=1)
    with pytest.raises(StoreError):
        driver.run()
    assert driver.broker.state == {}


def test_a_decision_whose_answer_cannot_be_read_either_is_unknown(
    driver: Driver, break_store: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written, but the store then answers neither the write nor the question for it."""
    break_store(INPUT_OUTPUT, decision=2, after=True)
    get = LocalFiles.get

    def mute(self: LocalFiles, path: str) -> Any:
        if path.endswith("/2.json"):
            raise INPUT_OUTPUT
        return get(self, path)

    monkeypatch.setattr(LocalFiles, "get", mute)
    with pytest.raises(StoreError, match="not known whether it was written"):
        driver.run()
    assert driver.broker.visible() == []
    assert len(driver.broker.open()) == 2
    monkeypatch.undo()
    driver.run()
    assert driver.broker.visible() == ["a", "b", "c"]
    assert driver.verdicts() == [Verdict.ABORT, Verdict.COMMIT, Verdict.ABORT], (
        "the promise was found and kept"
    )


def test_a_slow_store_delays_and_changes_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalFiles.put
    seen_while_deciding: list[list[str]] = []

    def slow(self: LocalFiles, path: str, file: bytes, *, mode: Any) -> object:
        time.sleep(0.3)
        seen_while_deciding.append(driver.broker.visible())
        return put(self, path, file, mode=mode)

    monkeypatch.setattr(LocalFiles, "put", slow)
    driver.run()
    assert seen_while_deciding == [[], [], []], "the term, the seal, the decision"
    assert driver.broker.visible() == ["a", "b", "c"]


def test_a_slow_decision_loses_to_a_second_driver_and_shows_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver's decision is on its way for so long that a second one takes over."""
    on_its_way, taken_over = threading.Event(), threading.Event()
    put = LocalFiles.put
    slow_thread = threading.Thread(target=lambda: failures.append(outcome_of(driver.run)))
    failures: list[str] = []

    def slow(self: LocalFiles, path: str, file: bytes, *, mode: Any) -> object:
        if threading.current_thread() is slow_thread and path.endswith("/2.json"):
            on_its_way.set()
            assert taken_over.wait(30)
        return put(self, path, file, mode=mode)

    monkeypatch.setattr(LocalFiles, "put", slow)
    slow_thread.start()
    assert on_its_way.wait(30)
    driver.run()
    taken_over.set()
    slow_thread.join(120)
    assert failures == ["SupersededError"]
    assert driver.broker.visible() == ["a", "b", "c"]


def outcome_of(action: Callable[[], None]) -> str:
    try:
        action()
    except EosError as error:
        return type(error).__name__
    return "no error"


# --- Decisions truncated, garbled, deleted or unreadable: refused by name, nothing is ended -------


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbled": lambda data: data.replace(b"commit", b"comm\xfft"),
    "foreign": lambda _: b"hello",
    "another version": lambda data: re.sub(rb'"format_version":\d+', b'"format_version":9', data),
    "its works gone": lambda data: json.dumps(
        {k: v for k, v in json.loads(data).items() if k != "works"}
    ).encode(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_decision_is_refused_by_name_and_nothing_is_ended(
    driver: Driver, damage: Callable[[bytes], bytes]
) -> None:
    decided_and_died(driver)
    file = driver.folder / "2.json"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointFormatError, match=r"eos/decisions/0/2\.json"):
        driver.run()
    assert driver.broker.visible() == []
    assert len(driver.broker.open()) == 2, "the promised transactions are still there to commit"


def test_a_deleted_decision_before_another_is_noticed(driver: Driver) -> None:
    decided_and_died(driver)
    (driver.folder / "1.json").unlink()
    with pytest.raises(CheckpointFormatError, match=r"attempts \[2\].*without a gap"):
        driver.run()
    assert len(driver.broker.open()) == 2


@pytest.mark.parametrize("verb", ["list_with_delimiter", "get"])
def test_a_lost_right_to_read_the_decisions_is_not_read_as_none(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    decided_and_died(driver)

    def refused(_self: LocalFiles, _path: str) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalFiles, verb, refused)
    with pytest.raises(StoreError, match=r"Permission denied.*check that .* credentials"):
        driver.run()
    assert len(driver.broker.open()) == 2
    monkeypatch.undo()
    driver.run()
    assert driver.broker.visible() == ["a", "b", "c"]


# --- A checkpoint on a disk that is really full, where a small one may be mounted -----------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of("256k", tmp_path / "disk") as folder:
        yield folder


def test_a_disk_that_fills_up_while_a_batch_is_written(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_eos.core.checkpoint.store._PAUSES_S", (0.0, 0.01))
    driver = Driver(small_disk / "checkpoint")
    ballast = small_disk / "ballast"
    batch: Any = driver.batch()
    batch._sink.before_return = lambda: fill(ballast)
    with pytest.raises(StoreError, match=r"No space left on device.*run the same step again"):
        batch(FakeFrame(*ROWS), 0)
    assert driver.broker.visible() == []
    assert len(driver.broker.open()) == 2, "nothing that may be decided was aborted"
    assert sorted(file.name for file in driver.folder.iterdir()) == ["1.json"], "no half decision"

    with pytest.raises(StoreError, match="No space left on device"):
        driver.run()
    assert driver.broker.visible() == []

    ballast.unlink()
    driver.run()
    assert driver.broker.visible() == ["a", "b", "c"]
    assert driver.broker.open() == []


def fill(file: Path) -> None:
    with file.open("ab", buffering=0) as out, suppress(OSError):
        while True:
            out.write(bytes(512))

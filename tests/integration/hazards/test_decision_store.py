"""Trouble with the decision store: refused or reported with what to do, never guessed.

Broker and tasks are the small fakes of the unit tests; the store is real files.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.checkpoint import Verdict
from airflow_eos.checkpoint.locations import LocalFiles
from airflow_eos.errors import EosError, StoreError
from tests.integration.hazards.store_driver import Driver


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

    monkeypatch.setattr("airflow_eos.checkpoint.store._PAUSES_S", (0.0, 0.01))
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

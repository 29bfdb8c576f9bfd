"""Decisions truncated, garbled, deleted or unreadable: refused by name, nothing is ended."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.checkpoint.locations import LocalFiles
from airflow_eos.errors import CheckpointFormatError, StoreError
from tests.integration.hazards.store_driver import Driver, decided_and_died


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "checkpoint")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbled": lambda data: data.replace(b"commit", b"comm\xfft"),
    "foreign": lambda _: b"hello",
    "another version": lambda data: data.replace(b'"format_version":1', b'"format_version":9'),
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

"""A checkpoint on a disk that is really full, where a small one may be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.errors import StoreError
from tests.integration.hazards.store_driver import ROWS, Driver
from tests.unit.sinks.fakes import FakeFrame


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("not allowed to mount a disk; test_decision_store.py has the error injected")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_while_a_batch_is_written(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_eos.checkpoint.store._PAUSES_S", (0.0, 0.01))
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

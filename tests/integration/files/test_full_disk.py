"""A disk that is really full, where a small one may be mounted: said by name, nothing half."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.errors import StoreError
from airflow_eos.kinds.files.sink import LINE_COLUMN
from airflow_eos.protocol.decision import Outcome
from airflow_eos.sinks import FileSink


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("not allowed to mount a disk; the unit tests have the error injected")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("publish", ["listing", "manifest"])
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_disk_that_fills_up_while_a_task_writes(small_disk, tmp_path, form, publish):
    sink = FileSink(str(small_disk / "data"), form, ["day"], publish=publish)
    sink = sink.bound(CheckpointStore.open(tmp_path / "checkpoint"))
    participant = sink.connect(timedelta())
    random = np.random.default_rng(0)
    texts = pa.array([random.bytes(4096).hex() for _ in range(1000)])
    rows = pa.RecordBatch.from_arrays(
        [texts, pa.array(["a", "b"] * 500)], names=[LINE_COLUMN, "day"]
    )
    writer = sink.opened(0, 0)
    writer.write(rows)
    with pytest.raises(StoreError, match=r"The disk refused while writing files.*No space left"):
        writer.prepare("0" * 32)
    writer.abort()
    assert participant.open() == ()
    assert not list(small_disk.rglob(f"*.{form}"))

    writer = sink.opened(0, 1)
    writer.write(rows.slice(0, 20))
    work = writer.prepare("0" * 32)
    assert work is not None
    if publish == "listing":
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    else:
        assert [each.key for each in participant.open()] == [work.key]

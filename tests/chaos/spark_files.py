"""Spark's offset and commit log, written and read as Spark 4.2 does it, and no more kindly.

``integration/checkpoint/test_real_spark_logs.py`` holds this against Spark's own classes. What to
know of them:

- ``add`` looks, writes a hidden file, looks again and renames. Two drivers that both looked both
  win, and what stands is the later one's. On a local disk the gap is microseconds, on an object
  store a round trip: here it is ``gap_s``, and a driver can be stopped in it.
- A number that was purged can be added again.
- A log keeps its two latest own entries in memory: what it added it never reads back.
- The one that loses leaves its hidden file behind.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from pathlib import Path

from airflow_eos.failpoints import failpoint
from tests.chaos.spark_data import Offset, SparkError

NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_CACHED = 2
_ONE_BY_ONE = 3


class MetadataLog:
    """``HDFSMetadataLog``: one text for each batch number, in a folder."""

    def __init__(self, folder: Path, *, gap_s: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._gap_s = gap_s
        self._cache: dict[int, str] = {}
        self._purged_before = 0

    def add(self, batch: int, text: str) -> bool:
        """False where an entry stands; raises where one came between two looks."""
        target = self._folder / str(batch)
        if batch in self._cache or target.exists():
            return False
        failpoint(f"{self._folder.name}-looked")
        hidden = self._folder / f".{batch}.{uuid.uuid4()}.tmp"
        hidden.write_text(text)
        if target.exists():
            raise SparkError(f"MULTIPLE_STREAMING_QUERIES_CONCURRENTLY_USING_PATH {target}")
        failpoint(f"{self._folder.name}-renaming")
        time.sleep(self._gap_s)
        try:
            hidden.rename(target)
        except FileNotFoundError as error:  # another folder was put here meanwhile
            raise SparkError(f"RENAME_SRC_PATH_NOT_FOUND {hidden}") from error
        self._cache[batch] = text
        for oldest in list(self._cache)[:-_CACHED]:
            del self._cache[oldest]
        return True

    def get(self, batch: int) -> str | None:
        if batch in self._cache:
            return self._cache[batch]
        try:
            return (self._folder / str(batch)).read_text()
        except FileNotFoundError:
            return None

    def latest(self) -> int | None:
        """The greatest number, in the folder or in memory."""
        return max((*self.listed(), *self._cache), default=None)

    def listed(self) -> list[int]:
        """What lies in the folder; anything that is a number counts as a batch."""
        names = (entry.name for entry in self._folder.iterdir() if entry.is_file())
        return sorted(int(name) for name in names if NUMBER.fullmatch(name))

    def purge(self, before: int) -> None:
        """Remove the numbers below; up to three since the last time without listing."""
        some = range(self._purged_before, before)
        if len(some) > _ONE_BY_ONE:
            found = [*self.listed(), *self._cache]
            some = range(min(found, default=before), before)
        for batch in some:
            (self._folder / str(batch)).unlink(missing_ok=True)
            self._cache.pop(batch, None)
        self._purged_before = before


def offsets_text(end: Offset, timestamp_ms: int) -> str:
    """An ``offsets/N`` of a single source."""
    about = {"batchWatermarkMs": 0, "batchTimestampMs": timestamp_ms, "conf": {}}
    lines = ("v1", json.dumps(about), json.dumps(end))
    return "\n".join(lines)


def read_end(text: str) -> Offset:
    found: Offset = json.loads(text.splitlines()[2])
    return found


def read_timestamp_ms(text: str) -> int:
    return int(json.loads(text.splitlines()[1])["batchTimestampMs"])

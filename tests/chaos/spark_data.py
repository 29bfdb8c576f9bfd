"""The input of a history, and the state that a query keeps of it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

Row = tuple[bytes, bytes]  # key, value
Ends = dict[int, int]
Offset = dict[str, dict[str, int]]
"""As ``offsets/N`` has it: topic → partition → the next row; a source may note more beside them."""


class SparkError(Exception):
    """Spark ends the query: a conflict in its logs, or a job that failed."""


def ends_of(offset: Offset) -> Ends:
    """Of the only topic. ArrowKafkaSource notes beside it how ranges are split, by other names."""
    [by_partition] = (ends for topic, ends in offset.items() if not topic.startswith("/"))
    return {int(partition): next_row for partition, next_row in by_partition.items()}


class Input:
    """The input of a history: a file of JSON lines for each partition, only ever appended to."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._files = [folder / f"input-{partition}.jsonl" for partition in range(partitions)]

    def append(self, rows: list[tuple[int, str, str]]) -> list[tuple[int, int, str, str]]:
        """Write (partition, key, value); returns them with their offsets. For one writer."""
        ends = self.ends()
        placed = []
        for partition, key, value in rows:
            placed.append((partition, ends[partition], key, value))
            ends[partition] += 1
            with self._files[partition].open("a") as out:
                out.write(json.dumps([key, value]) + "\n")
        return placed

    def ends(self) -> Ends:
        return {p: len(self._lines(p)) for p in range(len(self._files))}

    def rows(self, partition: int, start: int, end: int) -> list[Row]:
        pairs = [json.loads(line) for line in self._lines(partition)[start:end]]
        return [(key.encode(), value.encode()) for key, value in pairs]

    def _lines(self, partition: int) -> list[bytes]:
        file = self._files[partition]
        data = file.read_bytes() if file.exists() else b""
        return data[: data.rfind(b"\n") + 1].splitlines()


class StateStore:
    """A running count for each key, one version a batch, as Spark's state store keeps them.

    The version of batch N - 1 is needed for batch N: a batch that nobody evaluated leaves a hole,
    and one that the same process evaluates twice is counted twice.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint / "state"
        self._loaded: tuple[int, dict[str, int]] | None = None

    def count(self, batch: int, rows: list[Row]) -> list[Row]:
        """The rows with their running counts; batch ``batch`` of the state exists afterwards."""
        counts = self._at(batch)
        counted = []
        for key, value in rows:
            name = key.decode()
            counts[name] = counts.get(name, 0) + 1
            counted.append((key, value + f"#{counts[name]}".encode()))
        hidden = self._folder / f".{batch}.{uuid.uuid4().hex}.tmp"
        hidden.write_text(json.dumps(counts))
        try:
            hidden.replace(self._folder / str(batch))
        except FileNotFoundError as error:  # another folder was put here meanwhile
            raise SparkError(f"{hidden} is gone") from error
        return counted

    def _at(self, batch: int) -> dict[str, int]:
        """What the batch starts from; a second evaluation goes on from the first, and spoils it."""
        if self._loaded is None or self._loaded[0] != batch:
            before = self._folder / str(batch - 1)
            if batch and not before.exists():
                raise AssertionError(
                    f"there is no state of batch {batch - 1}: it was not evaluated"
                )
            self._loaded = (batch, json.loads(before.read_text()) if batch else {})
        return self._loaded[1]

"""What a listing of a checkpoint's folders says: which batches and numbers are there."""

from __future__ import annotations

import re

from airflow_eos.core.checkpoint.backend import OFFSETS, is_batch
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.errors import CheckpointFormatError

_NUMBER = re.compile(r"([1-9][0-9]{0,17})\.json", re.ASCII)


def newest_planned(store: CheckpointStore) -> int | None:
    """Return the highest batch number of a listing of ``offsets/``; None where there is none."""
    return max(batches_in(store, OFFSETS), default=None)


def batches_in(store: CheckpointStore, log: str) -> set[int]:
    """Return the batches that have a file in this log of Spark's."""
    return {int(each.name) for each in store.list(log) if is_batch(each.name)}


def batch_folders(store: CheckpointStore, folder: str) -> list[int]:
    """Return the batches that have a folder in this one, in ascending order."""
    return sorted(int(name) for name in store.folders(folder) if is_batch(name))


def numbers_in(
    store: CheckpointStore, folder: str, called: str, form: re.Pattern[str] = _NUMBER
) -> list[int]:
    """List the numbers of all files there, ascending; CheckpointFormatError for another name."""
    numbers = []
    for entry in store.list(folder):
        match = form.fullmatch(entry.name)
        if match is None:
            raise CheckpointFormatError(
                f"{store.location}/{entry.path} is foreign: expected only <{called}>.json there. "
                "Find out what wrote it and move it away."
            )
        numbers.append(int(match[1]))
    return sorted(numbers)

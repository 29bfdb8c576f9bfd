"""Rows and marks in the checkpoint: what was prepared, how it ends, and that it has ended.

================================  ================================================================
``eos/kept/<name>/mark``          a random id, created if absent: which checkpoint this is
``…/rows/<key>``                  the rows of one task, an Arrow stream; removed once ended
``…/ends/<batch>/<key>``          how they end, COMMIT or ABORT: created if absent, before anything
                                  is done about it; so nothing can be aborted while it is applied
``…/done/<batch>/<key>``          all of it is applied: the witness, with the number that the target
                                  had counted to by then, where it counts
================================  ================================================================

Rows are whole before a decision can name them, and a mark stands before they are removed. So where
there are neither rows nor a mark, somebody has removed them, and nobody can tell what became of
them. That is also what protects marks that were pruned: without rows nothing can be applied.
"""

from __future__ import annotations

import enum
import re
import uuid
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.backend import DECISIONS, EOS
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.protocol.decision import Stored, added, check_name, decode, encode, is_key

if TYPE_CHECKING:
    from airflow_eos.checkpoint.backend import StoredObject
    from airflow_eos.checkpoint.store import CheckpointStore

_KEY = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]*)-[A-Za-z0-9._-]+", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


class End(enum.Enum):
    """How kept rows end; decided once, and for ever."""

    COMMIT = "commit"
    ABORT = "abort"


class Mark(Stored, frozen=True, kw_only=True):
    """How rows end. ``nonce`` is fresh: no two writers write equal bytes.

    ``number`` is what the target had counted to once they were applied; 0 where it does not count.
    """

    format_version: int = 2
    end: End
    nonce: str
    number: int = 0


class KeptRows:
    """The rows and marks of one participant in one checkpoint.

    Args:
        store: of the checkpoint.
        name: of the participant.
    """

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self.store = store
        self.folder = f"{EOS}/kept/{check_name(name)}"

    def mark(self) -> str | None:
        """The random id of the name in this checkpoint; None where there is none."""
        found = self.store.get(f"{self.folder}/mark")
        return None if found is None else found.decode("ascii", errors="replace")

    def marked(self) -> str:
        """The same, created where there is none yet.

        Raises:
            StoreError: it was written and is gone.
        """
        self.store.create(f"{self.folder}/mark", uuid.uuid4().hex.encode())
        mark = self.mark()
        if mark is None:
            raise StoreError(f"{self.place('mark')} was written and is gone: who deletes it?")
        return mark

    def keep(self, key: str, stream: bytes) -> None:
        """Make the rows durable under a key that was never used before.

        Raises:
            StoreError: it was.
        """
        if not self.store.create(self._rows(key), stream):
            raise StoreError(f"{self.place(self._rows(key))} is there already: a key came twice.")

    def read(self, key: str) -> bytes | None:
        """The rows; None where they are not there any more."""
        return self.store.get(self._rows(key))

    def has(self, key: str) -> bool:
        """Whether the rows are there."""
        return self.store.head(self._rows(key)) is not None

    def drop(self, key: str) -> bool:
        """Remove the rows; False where they were gone. Only behind a mark."""
        there = self.has(key)
        self.store.delete([self._rows(key)])
        return there

    def listed(self) -> list[StoredObject]:
        """All rows that are there, ended or not."""
        return [each for each in self.store.list(f"{self.folder}/rows") if _KEY.match(each.name)]

    def end(self, key: str, how: End) -> tuple[End, bool]:
        """Decide how the rows end: (what stands, whether it is by us)."""
        path = self._mark("ends", key)
        if self.store.create(path, encode(Mark(end=how, nonce=uuid.uuid4().hex))):
            return how, True
        found = self.ended(key)
        if found is None:
            raise StoreError(f"{self.place(path)} was written and is gone: who deletes it?")
        return found, False

    def ended(self, key: str) -> End | None:
        """How the rows end, where that is decided."""
        found = self._read(self._mark("ends", key))
        return None if found is None else found.end

    def finish(self, key: str, number: int = 0) -> None:
        """Write that all of it is applied; again, by whoever, it changes nothing."""
        mark = Mark(end=End.COMMIT, nonce=uuid.uuid4().hex, number=number)
        self.store.create(self._mark("done", key), encode(mark))

    def finished(self, key: str) -> bool:
        """Whether all of it is applied."""
        return self._read(self._mark("done", key)) is not None

    def newest_finished(self) -> list[str]:
        """The keys that are applied of the newest batch that has some."""
        batches = self._batches(f"{self.folder}/done")
        if not batches:
            return []
        listed = self.store.list(f"{self.folder}/done/{max(batches)}")
        return [each.name for each in listed if _KEY.fullmatch(each.name)]

    def number(self, key: str) -> int:
        """What the target had counted to when it was applied; 0 where there is no such mark."""
        found = self._read(self._mark("done", key))
        return 0 if found is None else found.number

    def prune(self) -> None:
        """Remove the marks of batches whose decisions are pruned, and what rows a crash left.

        Every batch has a decision: below the oldest one that stands, nobody asks any more.
        """
        kept = self._batches(DECISIONS)
        if not kept:
            return
        marked = self._batches(f"{self.folder}/ends") | self._batches(f"{self.folder}/done")
        old = {batch for batch in marked if batch < min(kept)}
        if not old:
            return
        for entry in self.listed():
            key = entry.name
            if batch_of(key) in old and (self.finished(key) or self.ended(key) is End.ABORT):
                self.drop(key)
        for batch in sorted(old):  # rows first: without them nothing is ever applied
            self.store.delete_folder(f"{self.folder}/ends/{batch}")
            self.store.delete_folder(f"{self.folder}/done/{batch}")

    def place(self, path: str) -> str:
        """Where that is, for people."""
        return f"{self.store.location}/{path}"

    def place_of(self, key: str) -> str:
        """Where the rows are, for people."""
        return self.place(self._rows(key))

    def _batches(self, folder: str) -> set[int]:
        return {int(name) for name in self.store.folders(folder) if _NUMBER.fullmatch(name)}

    def _read(self, path: str) -> Mark | None:
        data = self.store.get(path)
        if data is None:
            return None
        # Another process may have written it and not synced it yet, and we act on it.
        self.store.make_durable(path)
        upgrades = {1: lambda fields: added(fields, number=0)}
        return decode(data, Mark, self.place(path), upgrades=upgrades)

    def _rows(self, key: str) -> str:
        batch_of(key)
        return f"{self.folder}/rows/{key}"

    def _mark(self, what: str, key: str) -> str:
        return f"{self.folder}/{what}/{batch_of(key)}/{key}"


def new_key(batch: int, task: int, attempt: int) -> str:
    """A key that was never used: it begins with batch and task, and ends with a random id."""
    return f"{batch}-{task}-{attempt}-{uuid.uuid4().hex}"


def batch_of(key: str) -> int:
    """The batch that a key belongs to.

    Raises:
        ConfigurationError: it is no key of kept rows.
    """
    return _parts(key)[0]


def task_of(key: str) -> int:
    """The task that a key belongs to; errors as :func:`batch_of`."""
    return _parts(key)[1]


def _parts(key: str) -> tuple[int, int]:
    match = _KEY.fullmatch(key)
    if match is None or not is_key(key):
        raise ConfigurationError(
            f"{key!r} is no key of kept rows: expected <batch>-<task>-… of letters, digits and ._-"
        )
    return int(match[1]), int(match[2])

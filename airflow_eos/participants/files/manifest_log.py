"""Spark's own log of a folder of data, ``_spark_metadata``: whoever reads by it sees whole batches.

====================================  =========================================================
``<folder>/_spark_metadata/<n>``      what entry n adds; created if absent
``<folder>/_spark_metadata/<9>.compact``  each tenth: all that was added until then
====================================  =========================================================

The form is that of Spark's FileStreamSinkLog: ``v1``, then a line of JSON for each file. Numbers
are dense, and not those of batches: a batch may need two entries, or none. What was settled is
written into the same entries, as lines of *folders*, which no reader looks into:
``…/_eos/<name>/settled/<mark>/<batch>-<attempt>-committed-<pipeline>``. Each entry repeats the
newest of them, so that the newest entry tells all that is asked. The pipeline's random id is in it
since a folder can be given to a new checkpoint, whose batches begin at 0 again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from airflow_eos.errors import StoreError
from airflow_eos.participants.files.layout import kept_at
from airflow_eos.participants.files.manifest_view import Settled, View, kept_of

if TYPE_CHECKING:
    from airflow_eos.participants.files.layout import WorkFile
    from airflow_eos.participants.files.place import Place

LOG = "_spark_metadata"
_VERSION = b"v1"
_EVERY = 10
"""Spark's ``spark.sql.streaming.fileSink.log.compactInterval``, as every reader assumes it."""
_ENTRY = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")
_SETTLED = re.compile(
    r"/_eos/([^/]+)/settled/([^/]+)/"
    r"(?:opened|([0-9]+)-([0-9]+)-(committed|lost)(?:-([0-9a-f]+))?)"
)
_LOOKS = 5
_BLOCK = 128 * 1024 * 1024


class ManifestLog:
    """The log of one folder, written under one name.

    Args:
        place: of the data.
        name: of the participant.
        mark: the random id of the name in that folder.
    """

    def __init__(self, place: Place, name: str, mark: str) -> None:
        self._place = place
        self._name = name
        self._mark = mark

    def look(self) -> View:
        """Read the newest entry."""
        for _ in range(_LOOKS):
            number = self._newest()
            data = _VERSION if number < 0 else self._read(number)
            if data is not None:  # else it is compacted away by now
                return self._view(number, data)
        raise self._gone(number)

    def append(self, view: View, files: Sequence[WorkFile], settled: Settled | None = None) -> bool:
        """Add the entry after ``view``: files, and what is settled by it; False: another did.

        Only a look tells what stands there: an entry that was compacted away can be created again
        by whoever looked long ago, and nobody reads it.
        """
        number = view.number + 1
        told = kept_of([*view.settled, *([settled] if settled else [])])
        lines = [self._settled_line("opened", now_ms())]
        lines += [self._settled_line(str(each), each.at_ms) for each in told]
        if number % _EVERY == _EVERY - 1:
            added = self._added(number)
            if added is None:
                if self._newest() == view.number:
                    raise self._gone(number)
                return False
            lines += added
        lines += [self._file_line(file) for file in files]
        won = self._place.store.create(_path(number), b"\n".join([_VERSION, *lines]))
        if won and number % _EVERY == _EVERY - 1:
            self._remove_before(number - _EVERY)
        return won

    def names_any_of(self, keys: Sequence[str]) -> set[str]:
        """Those of ``keys`` whose files are in the log."""
        for _ in range(_LOOKS):
            number = self._newest()
            entries = [self._read(each) for each in _valid(number)]
            if None not in entries:
                whole = b"\n".join(entry for entry in entries if entry is not None)
                return {key for key in keys if key.encode() in whole}
        raise self._gone(number)

    def _added(self, before: int) -> list[bytes] | None:
        """The lines of all files; None where the entries are gone: others are further."""
        lines: list[bytes] = []
        for number in _valid(before - 1):
            entry = self._read(number)
            if entry is None:
                return None
            lines += [line for line in entry.splitlines()[1:] if b'"isDir":true' not in line]
        return lines

    def _read(self, number: int) -> bytes | None:
        found = self._place.store.get(_path(number))
        if found is not None and found.splitlines()[:1] != [_VERSION]:
            raise StoreError(
                f"{self._place.address}/{_path(number)} begins with {found[:20]!r}, expected "
                f"{_VERSION.decode()}: it is of another version of Spark, or damaged. Nothing was "
                "concluded from it."
            )
        if found is not None:
            self._place.store.make_durable(_path(number))
        return found

    def _gone(self, number: int) -> StoreError:
        return StoreError(
            f"{self._place.address}/{LOG} lacks entries before {number}, which readers need: "
            "restore them. Nothing was concluded from what is left."
        )

    def _newest(self) -> int:
        found = [_ENTRY.fullmatch(entry.name) for entry in self._place.store.list(LOG)]
        return max((int(each[1]) for each in found if each is not None), default=-1)

    def _view(self, number: int, data: bytes) -> View:
        names, settled = set(), []
        for line in data.splitlines()[1:]:
            if b'"isDir":true' not in line:
                break
            status = msgspec.json.decode(line)
            found = _SETTLED.search(unquote(status["path"]))
            if found is not None:
                names.add((found[1], found[2]))
                if found[3] and (found[1], found[2]) == (self._name, self._mark):
                    is_committed, at_ms = found[5] == "committed", status["modificationTime"]
                    settled.append(
                        Settled(int(found[3]), int(found[4]), is_committed, found[6] or "", at_ms)
                    )
        return View(number, frozenset(names), tuple(settled))

    def _settled_line(self, what: str, at_ms: int) -> bytes:
        path = f"{kept_at(self._name)}/settled/{self._mark}/{what}"
        return self._line(path, 0, at_ms, is_folder=True)

    def _file_line(self, file: WorkFile) -> bytes:
        return self._line(file.visible, file.size, now_ms(), is_folder=False)

    def _line(self, path: str, size: int, at_ms: int, *, is_folder: bool) -> bytes:
        status: dict[str, Any] = {
            "path": f"{self._place.url}/{quote(path, safe='/=')}",
            "size": size,
            "isDir": is_folder,
            "modificationTime": at_ms,
            "blockReplication": 1,
            "blockSize": _BLOCK,
            "action": "add",
        }
        return msgspec.json.encode(status)

    def _remove_before(self, number: int) -> None:
        """A reader that has listed them finds newer ones when it looks again, as Spark's do."""
        store = self._place.store
        found = {entry.path: _ENTRY.fullmatch(entry.name) for entry in store.list(LOG)}
        store.delete(path for path, each in found.items() if each and int(each[1]) < number)


def now_ms() -> int:
    """Since the epoch, by this machine's clock."""
    return time.time_ns() // 1_000_000


def _path(number: int) -> str:
    return f"{LOG}/{number}{'.compact' if number % _EVERY == _EVERY - 1 else ''}"


def _valid(newest: int) -> range:
    """The entries that tell all: from the last compacted one."""
    return range(max(0, (newest + 1) // _EVERY * _EVERY - 1), newest + 1)

"""Data files that become visible by whole batches (``publish="manifest"``), by Spark's own log.

============================================  =================================================
``<folder>/_spark_metadata/<n>``              the commit of one decision, and its witness
``<folder>/…/<key>.<end>``                    visible: Spark reads only files that its log names;
                                              others list files, which are decided ones, too
``_eos.<folder>/<name>/work/<key>/…``         prepared, as with ``publish="listing"``
``_eos.<folder>/<name>/mark``, ``owner``, ``notes/``  as with ``publish="listing"``
============================================  =================================================

A decision is settled as a whole, whichever of its work is asked for, by one entry that is created
if absent, once its files have their names: so no reader of the log ever sees a part of it. Where a
file is missing the entry says that the decision is lost, for good: a process that saw the file
before has lost the race. A decision older than the settled ones that the log still holds is
UNKNOWN, and nothing is done for it: that is the floor.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from airflow_eos.core.checkpoint.pipeline import pipeline_of
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity, require_own
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.files.folder import KIND, FolderInstance, OwnedFolder, files_of, require_form
from airflow_eos.kinds.files.names import kept_at
from airflow_eos.kinds.files.storage import visible_data
from airflow_eos.kinds.lake.participant import decisions_naming

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint.pipeline import PipelineIdentity
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Decision, PreparedWork
    from airflow_eos.kinds.files.folder import WorkFile
    from airflow_eos.kinds.files.storage import DataFolder

_KEPT = 8
"""The settled decisions of a pipeline that each entry repeats; one or two can be in flight."""


class ManifestOutcome(NamedTuple):
    """The final outcome of a decision, as the log holds it.

    Attributes:
        batch: of the decision.
        attempt: of the decision.
        is_committed: whether it is committed; else it is lost.
        pipeline: the pipeline's id; empty in the form before there were ids.
        at_ms: when it was first written, by the writer's clock.
    """

    batch: int
    attempt: int
    is_committed: bool
    pipeline: str
    at_ms: int

    def is_of(self, pipeline: PipelineIdentity) -> bool:
        """Whether the decision is of ``pipeline``; by its age where it has no id."""
        if self.pipeline:
            return self.pipeline == pipeline.id
        return self.at_ms >= pipeline.created_at_ms

    def __str__(self) -> str:
        what = f"{self.batch}-{self.attempt}-{'committed' if self.is_committed else 'lost'}"
        return f"{what}-{self.pipeline}" if self.pipeline else what


class ManifestSnapshot(NamedTuple):
    """The log as it was at one look.

    Attributes:
        number: the number of the newest entry; -1 where there is none.
        names: the names and marks of its writers.
        settled: the outcomes under our name and mark, of any pipeline.
    """

    number: int
    names: frozenset[tuple[str, str]]
    settled: tuple[ManifestOutcome, ...]

    def witnessed(self, batch: int, attempt: int, pipeline: PipelineIdentity) -> Outcome | None:
        """Return the outcome of a decision of ``pipeline``; None where none is written yet."""
        ours = [each for each in self.settled if each.is_of(pipeline)]
        for each in ours:
            if (each.batch, each.attempt) == (batch, attempt):
                return Outcome.COMMITTED if each.is_committed else Outcome.ABORTED
        newest = max(((each.batch, each.attempt) for each in ours), default=None)
        return Outcome.UNKNOWN if newest is not None and newest > (batch, attempt) else None


def kept_of(settled: Iterable[ManifestOutcome]) -> list[ManifestOutcome]:
    """Return the newest outcomes of each pipeline, also of one that gave the folder up."""
    of: dict[str, list[ManifestOutcome]] = defaultdict(list)
    for each in sorted(settled):
        of[each.pipeline].append(each)
    return [each for theirs in of.values() for each in theirs[-_KEPT:]]


# --- manifest log ---------------------------------------------------------------------------------
# Spark's own log of a folder of data, ``_spark_metadata``: its readers see whole batches.
#
# ====================================  =========================================================
# ``<folder>/_spark_metadata/<n>``      the files that entry n adds; created if absent
# ``<folder>/_spark_metadata/<9>.compact``  each tenth entry: all files added until then
# ====================================  =========================================================
#
# The form is that of Spark's FileStreamSinkLog: ``v1``, then a line of JSON for each file. Numbers
# are dense, and not those of batches: a batch may need two entries, or none. Outcomes of decisions
# are written into the same entries, as lines of *folders*, which no reader looks into:
# ``…/_eos/<name>/settled/<mark>/<batch>-<attempt>-committed-<pipeline>``. Each entry repeats the
# newest outcomes, so that the newest entry is enough. An entry ends with a line ``whole``: where a
# copy has cut one off, readers lack rows that no later entry has. The pipeline's random id is in
# the outcome since a folder can be given to a new checkpoint, whose batches begin at 0.


LOG = "_spark_metadata"
_VERSION = b"v1"
_OF_SPARK = re.compile(rb"v[0-9]{1,9}")
_EVERY = 10
"""Spark's ``spark.sql.streaming.fileSink.log.compactInterval``, which every reader assumes."""
_ENTRY = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")
_SETTLED = re.compile(
    r"/_eos/([^/]+)/settled/([^/]+)/"
    r"(?:opened|whole|([0-9]+)-([0-9]+)-(committed|lost)(?:-([0-9a-f]+))?)"
)
_WHOLE = "whole"
_LOOKS = 5
_BLOCK = 128 * 1024 * 1024


class ManifestLog:
    """Spark's log of one folder, written under one participant's name.

    Args:
        storage: the folder of data.
        name: the participant's name.
        instance_id: the random id of the name in that folder.
    """

    def __init__(self, storage: DataFolder, name: str, instance_id: str) -> None:
        self._storage = storage
        self._name = name
        self._instance_id = instance_id

    def look(self) -> ManifestSnapshot:
        """Read the newest entry of the log."""
        for _ in range(_LOOKS):
            number = self._newest()
            data = _VERSION if number < 0 else self._read(number, self._removed(number))
            if data is not None:  # else the entry is compacted away by now
                return self._view(number, data)
        raise self._gone(number)

    def append(
        self,
        view: ManifestSnapshot,
        files: Sequence[WorkFile],
        settled: ManifestOutcome | None = None,
    ) -> bool:
        """Add the entry after ``view``: files, and a decision's outcome; False: there is another.

        True is no proof, only a look is: a writer that looked long ago can create again an entry
        that was compacted away, which no reader reads.
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
        lines += [self._line(file.visible, file.size, now_ms(), is_folder=False) for file in files]
        lines.append(self._settled_line(_WHOLE, now_ms()))
        won = self._storage.store.create(_path(number), b"\n".join([_VERSION, *lines]))
        if won and number % _EVERY == _EVERY - 1:
            self._remove_before(number - _EVERY)
        return won

    def names_any_of(self, keys: Sequence[str]) -> set[str]:
        """Return those of ``keys`` whose files are in the log."""
        for _ in range(_LOOKS):
            number = self._newest()
            entries = [self._read(each) for each in _valid(number)]
            if None not in entries:
                whole = b"\n".join(entry for entry in entries if entry is not None)
                return {key for key in keys if key.encode() in whole}
        raise self._gone(number)

    def files(self) -> list[str]:
        """List the paths of all files in the log, relative to the folder."""
        for _ in range(_LOOKS):
            number = self._newest()
            lines = self._added(number + 1)
            if lines is not None:
                paths = (unquote(msgspec.json.decode(line)["path"]) for line in lines)
                return [path.removeprefix(f"{unquote(self._storage.url)}/") for path in paths]
        raise self._gone(number)

    def _added(self, before: int) -> list[bytes] | None:
        """Return the lines of all files; None where entries are gone, since others are further."""
        lines: list[bytes] = []
        for number in _valid(before - 1):
            entry = self._read(number)
            if entry is None:
                return None
            lines += [line for line in entry.splitlines()[1:] if b'"isDir":true' not in line]
        return lines

    def _read(self, number: int, *remedies: Remedy) -> bytes | None:
        found = self._storage.store.get(_path(number))
        if found is None:
            return None
        first = found.partition(b"\n")[0]
        if first != _VERSION and _OF_SPARK.fullmatch(first):
            raise StoreError(
                f"{self._storage.address}/{_path(number)} begins with {first!r}, expected "
                f"{_VERSION.decode()}: it is of another version of Spark. Nothing was concluded "
                "from it."
            )
        if first != _VERSION or not _is_whole(found):
            raise StoreError(
                f"{self._storage.address}/{_path(number)} is damaged or was cut off: readers lack "
                "rows that it named. Nothing was concluded from it.",
                Remedy(change="restore it from a copy of the folder", start=True),
                *remedies,
            )
        self._storage.store.make_durable(_path(number))
        return found

    def _removed(self, number: int) -> Remedy:
        """Return the remedy for a damaged newest entry: a batch in flight is settled again."""
        return Remedy(
            change=f"remove {self._storage.address}/{_path(number)}",
            start=True,
            costs="nothing while its batch is in flight; of one that is complete, readers of the "
            "log see no row any more",
        )

    def _gone(self, number: int) -> StoreError:
        return StoreError(
            f"{self._storage.address}/{LOG} lacks entries before {number}, which readers need: "
            "restore them. Nothing was concluded from what is left."
        )

    def _newest(self) -> int:
        found = [_ENTRY.fullmatch(entry.name) for entry in self._storage.store.list(LOG)]
        return max((int(each[1]) for each in found if each is not None), default=-1)

    def _view(self, number: int, data: bytes) -> ManifestSnapshot:
        names, settled = set(), []
        for line in data.splitlines()[1:]:
            if b'"isDir":true' not in line:
                break
            status = msgspec.json.decode(line)
            found = _SETTLED.search(unquote(status["path"]))
            if found is not None:
                names.add((found[1], found[2]))
                if found[3] and (found[1], found[2]) == (self._name, self._instance_id):
                    is_committed, at_ms = found[5] == "committed", status["modificationTime"]
                    settled.append(
                        ManifestOutcome(
                            int(found[3]), int(found[4]), is_committed, found[6] or "", at_ms
                        )
                    )
        return ManifestSnapshot(number, frozenset(names), tuple(settled))

    def _settled_line(self, what: str, at_ms: int) -> bytes:
        path = f"{kept_at(self._name)}/settled/{self._instance_id}/{what}"
        return self._line(path, 0, at_ms, is_folder=True)

    def _line(self, path: str, size: int, at_ms: int, *, is_folder: bool) -> bytes:
        status: dict[str, Any] = {
            "path": f"{self._storage.url}/{quote(path, safe='/=')}",
            "size": size,
            "isDir": is_folder,
            "modificationTime": at_ms,
            "blockReplication": 1,
            "blockSize": _BLOCK,
            "action": "add",
        }
        return msgspec.json.encode(status)

    def _remove_before(self, number: int) -> None:
        """Delete entries before ``number``; readers that listed them look again, as Spark does."""
        store = self._storage.store
        found = {entry.path: _ENTRY.fullmatch(entry.name) for entry in store.list(LOG)}
        store.delete(path for path, each in found.items() if each and int(each[1]) < number)


def _is_whole(entry: bytes) -> bool:
    """Whether an entry of ours has its last line; True for another writer's entry."""
    lines = entry.splitlines()[1:]
    ours = bool(lines) and _ends_in(lines[0], "opened")
    return not ours or _ends_in(lines[-1], _WHOLE)


def _ends_in(line: bytes, what: str) -> bool:
    """Whether ``line`` is a complete line of a folder with the name ``what``."""
    try:
        path = str(msgspec.json.decode(line)["path"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return False
    return path.rpartition("/")[2] == what and _SETTLED.search(unquote(path)) is not None


def now_ms() -> int:
    """Return this machine's time, ms since the epoch."""
    return time.time_ns() // 1_000_000


def _path(number: int) -> str:
    return f"{LOG}/{number}{'.compact' if number % _EVERY == _EVERY - 1 else ''}"


def _valid(newest: int) -> range:
    """Return the numbers of the entries that hold all files: from the last compacted one."""
    return range(max(0, (newest + 1) // _EVERY * _EVERY - 1), newest + 1)


# --- manifest -------------------------------------------------------------------------------------


PUBLISH = {"publish": "manifest"}
_PAUSES_S = (0.0, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""The pauses before each look of a commit; the later ones follow a lost race."""


class ManifestParticipant(OwnedFolder):
    """See :class:`airflow_eos.core.protocol.participant.Participant`.

    Args:
        storage: the folder that readers look at.
        name: the participant's name in decisions.
        instance_id: the random id of the name in this folder.
        store: the pipeline's checkpoint, whose decisions are settled.
    """

    def __init__(
        self, storage: DataFolder, *, name: str, instance_id: str, store: CheckpointStore
    ) -> None:
        super().__init__(storage, name=name, instance_id=instance_id, more=PUBLISH)
        self._store = store
        self._log = ManifestLog(storage, name, instance_id)

    def begin(self) -> None:
        """Create the log where there is none: without it, readers would list the folder.

        Raises:
            ConfigurationError: the log is of another writer, or data is there that it would hide.
        """
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._log.look()
            if (self._name, self._instance.instance_id) in view.names:
                return
            self._require_ours(view)
            require_form(self._storage, "manifest")
            self._log.append(view, ())
        raise self._refused("its first entry")

    def add(self, work: PreparedWork) -> None:
        """Make the files of undecided work visible at once (a query that is not exactly once)."""
        files = files_of(work)
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._log.look()
            self._publish(files)
            if self._log.append(view, files) and self._log.names_any_of([work.key]):
                self._storage.remove([file.prepared for file in files])
                return
        raise self._refused(f"work {work.key}")

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Settle the decisions that name ``works``; UNKNOWN where no recent decision names one."""
        self.check(works)
        named = self._decisions(works)
        once = {(each.batch_id, each.attempt): each for each in named.values()}
        settled = {
            batch_attempt: self._settle(once[batch_attempt]) for batch_attempt in sorted(once)
        }
        became = {
            identity: settled[decision.batch_id, decision.attempt]
            for identity, decision in named.items()
        }
        return {work.identity: became.get(work.identity, Outcome.UNKNOWN) for work in works}

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove prepared files; files that the log names stay."""
        require_own(works, KIND, self._name)
        prepared = {work: self._prepared(work.key) for work in works}
        keys = [work.key for work, paths in prepared.items() if paths]
        named = self._log.names_any_of(keys) if keys else set()
        return {
            work: self._storage.remove(paths) and work.key not in named
            for work, paths in prepared.items()
        }

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Write the loss of each decision that names one of ``works`` into the log, as a whole."""
        require_own(works, KIND, self._name)
        named = decisions_naming(self._store, works)
        became = {each: self._settle(by, given_up=True) for each, by in named.items()}
        return {work: became.get(work) is Outcome.ABORTED for work in works}

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask the log for outcomes; a missing file says nothing before a commit."""
        self.check(works)
        if not works:
            return {}
        self._instance.require()
        named, view = self._decisions(works), self._log.look()
        told: dict[WorkIdentity, Outcome] = {}
        for work in works:
            decision = named.get(work.identity)
            if decision is not None:
                said = view.witnessed(decision.batch_id, decision.attempt, self._pipeline)
                told[work.identity] = said or Outcome.OPEN
            else:
                is_open = bool(self._prepared(work.key))
                told[work.identity] = Outcome.OPEN if is_open else Outcome.UNKNOWN
        return told

    def _require_ours(self, view: ManifestSnapshot) -> None:
        if view.number >= 0 and self._name not in {name for name, _ in view.names}:
            writers = ", ".join(sorted(name for name, _ in view.names)) or "Spark's own sink"
            raise ConfigurationError(
                f"{self._storage.address}/{LOG} is written by {writers}: a log has one writer. "
                f"Give {self._name!r} a folder of its own."
            )
        if view.number < 0 and (found := visible_data(self._storage)):
            raise ConfigurationError(
                f"{self._storage.address} holds {found} already, which readers would not see any "
                "more once the folder has a log. Give an empty folder, or publish='listing'."
            )

    def _settle(self, decision: Decision, *, given_up: bool = False) -> Outcome:
        """Write the decision's entry; return its outcome by a look, never by the write's reply."""
        works = [work for work in decision.works if work.participant == self._name]
        files = [file for work in works for file in files_of(work)]
        self._instance.require()
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._log.look()
            outcome = view.witnessed(decision.batch_id, decision.attempt, self._pipeline)
            if outcome is not None:
                return self._ended(works, outcome)
            is_whole = not given_up and self._are_there(files) and self._publish(files)
            failpoint("looked")
            settled = ManifestOutcome(
                decision.batch_id, decision.attempt, is_whole, self._pipeline.id, now_ms()
            )
            self._log.append(view, files if is_whole else (), settled)
        raise self._refused(f"batch {decision.batch_id}")

    def _ended(self, works: Sequence[PreparedWork], outcome: Outcome) -> Outcome:
        failpoint("settled-some")
        files = [file for work in works for file in files_of(work)]
        if outcome is Outcome.ABORTED:
            self._storage.remove([file.visible for file in files])
        if outcome is not Outcome.UNKNOWN:
            self._storage.remove([file.prepared for file in files])
        return outcome

    @cached_property
    def _pipeline(self) -> PipelineIdentity:
        return pipeline_of(self._store)

    def _decisions(self, works: Sequence[PreparedWork]) -> dict[WorkIdentity, Decision]:
        return decisions_naming(self._store, [work.identity for work in works])

    def _are_there(self, files: Sequence[WorkFile]) -> bool:
        """Whether every file is prepared or visible, whole; if not, none is made visible."""
        prepared = self._storage.sizes([file.prepared for file in files])
        visible = self._storage.sizes([file.visible for file in files])
        found = list(zip(files, prepared, visible, strict=True))
        hidden = [file for file, _, size in found if size != file.size]
        return all(file.size in sizes for file, *sizes in found) and not self._altered(hidden)

    def _publish(self, files: Sequence[WorkFile]) -> bool:
        """Give each file its visible name; return whether all are there, whole and durable."""
        self._storage.publish([(file.prepared, file.visible) for file in files])
        sizes = self._storage.sizes([file.visible for file in files])
        self._storage.settle(
            file.visible for file, size in zip(files, sizes, strict=True) if size is not None
        )
        return sizes == [file.size for file in files]

    def _refused(self, what: str) -> StoreError:
        return StoreError(
            f"{self._storage.address}/{LOG} did not take {what} in {len(_PAUSES_S)} tries. Nothing "
            "was guessed, and what is promised stays promised: try again, or look who else writes "
            "there so often."
        )


def joined(storage: DataFolder, name: str, store: CheckpointStore) -> ManifestParticipant:
    """Return the participant of a sink that starts, in a place that was checked before.

    Raises:
        ConfigurationError: see :meth:`ManifestParticipant.begin`.
        StoreError: the place refuses.
    """
    instance_id = FolderInstance.made(storage, name).instance_id
    participant = ManifestParticipant(storage, name=name, instance_id=instance_id, store=store)
    participant.begin()
    return participant

"""What the offsets of a batch stand for, where they do not say it by themselves.

Spark's file source has a number for an offset, ``{"logOffset":5}``; the files that it stands for
are in ``sources/<i>/5``, which is no more exclusive than ``offsets/``: a driver that slept may
replace it. Spark takes the files in there for read, so some rows would come twice, and others
never. The rows of ``rate`` are computed from the moment in ``sources/<i>/0``. So a COMMIT decision
keeps a digest of these, and a start compares. Of Kafka, ``topics.json`` has the topics' ids.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Protocol
from urllib.parse import unquote

import msgspec

from airflow_eos.core.checkpoint.backend import DECISIONS, OFFSETS, SOURCES
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.layout import batch_folders
from airflow_eos.core.checkpoint.mending import decided_offsets
from airflow_eos.core.checkpoint.spark_log import parse_offsets
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Decision, SourceRead, Verdict
from airflow_eos.core.protocol.participant import ANEW
from airflow_eos.errors import CheckpointFormatError, ContinuityError, Remedy, SupersededError

_ENTRY = re.compile(r"([0-9]{1,18})(\.compact)?", re.ASCII)
_BEFORE_THE_FIRST = -1
_COMPUTED = "rate"


class _LogOffset(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    log_offset: int


class _File(msgspec.Struct, rename="camel"):
    path: str
    timestamp: int
    batch_id: int


def file_offset(raw: str | None) -> int | None:
    """Return the number that a file source has for an offset; None where it is another source's."""
    try:
        return msgspec.json.decode(raw or "", type=_LogOffset).log_offset
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class FileLog:
    """The log of one file source, ``sources/<i>``: which files each number stands for.

    Every few numbers Spark writes ``<n>.compact``, which has the entries of all numbers up to n,
    and removes older files some time later.
    """

    def __init__(self, store: CheckpointStore, source: str) -> None:
        self._store = store
        self._folder = f"{SOURCES}/{source}"
        self._parsed: dict[int, list[_File]] = {}

    @cached_property
    def _names(self) -> dict[int, str]:
        names = sorted(each.name for each in self._store.list(self._folder))
        found = map(_ENTRY.fullmatch, names)  # of 5 and 5.compact Spark takes the latter
        return {int(name[1]): name[0] for name in found if name is not None}

    @property
    def compacted(self) -> int:
        """The newest number that is in a compact file, or -1: Spark reads that file and later."""
        return max(self._compact, default=_BEFORE_THE_FIRST)

    @property
    def compacted_before(self) -> int:
        """The one before it, or -1 where Spark has removed that file, or there was none."""
        return max(self._compact - {self.compacted}, default=_BEFORE_THE_FIRST)

    @property
    def _compact(self) -> set[int]:
        return {number for number, name in self._names.items() if name.endswith(".compact")}

    def files(self, first: int, last: int) -> list[_File] | None:
        """Return the files of the numbers ``first`` to ``last``, included.

        None where the entry of a number is gone, or cannot be read.
        """
        found: list[_File] = []
        for number in range(first, last + 1):
            files = self._of(number)
            if not files:
                return None
            found += files
        return found

    def digest(self, first: int, last: int) -> str | None:
        """Return a digest of what :meth:`files` returns."""
        files = self.files(first, last)
        if files is None:
            return None
        lines = sorted(f"{each.batch_id} {each.timestamp} {each.path}\n" for each in files)
        return _digest("".join(lines).encode())

    def _of(self, number: int) -> list[_File]:
        at = max(number, self.compacted)  # as Spark reads it, whatever else still stands there
        if at not in self._names:
            return []
        if at not in self._parsed:
            self._parsed[at] = _files(self._store.get(f"{self._folder}/{self._names[at]}"))
        return [each for each in self._parsed[at] if each.batch_id == number]


def _files(data: bytes | None) -> list[_File]:
    """Parse a file of the log; nothing where it is gone, cut off or foreign."""
    first, *lines = (data or b"-").splitlines()
    if first.strip() != b"v1":
        return []
    try:
        return [msgspec.json.decode(line, type=_File) for line in lines if line.strip()]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


class RunningFiles(Protocol):
    """The batch that Spark evaluates."""

    def files(self) -> Collection[str]:
        """Return the files of all file sources of the batch."""
        ...


class BatchInput:
    """What each source of the running query reads, as its decisions promise it.

    Args:
        reads: what each source reads, by its options.
    """

    def __init__(
        self,
        store: CheckpointStore,
        decisions: DecisionLog,
        reads: Sequence[SourceRead],
        running: RunningFiles,
    ) -> None:
        self._store = store
        self._decisions = decisions
        self._reads = reads
        self._running = running

    def promised(self, batch_id: int, offsets: str) -> tuple[SourceRead, ...]:
        """Return what the batch reads, by source, with what its offsets stand for.

        Args:
            offsets: the ``offsets/N`` that Spark evaluates the batch with.

        Raises:
            SupersededError: ``sources/`` names other files than Spark evaluates.
        ContinuityError: Spark has compacted what another driver had replaced.
        """
        entry = parse_offsets(offsets.encode(), f"{OFFSETS}/{batch_id}")
        reads = self._reads
        if len(reads) != len(entry.ends):
            reads = [SourceRead("", {})] * len(entry.ends)
        kept = [
            msgspec.structs.replace(each, holds=_beginning(self._store, each, source))
            for each, source in zip(reads, entry.ends, strict=True)
        ]
        logs = {
            position: (source, FileLog(self._store, source), last)
            for position, (source, end) in enumerate(entry.ends.items())
            if (last := file_offset(end)) is not None
        }
        if not logs:
            return tuple(kept)
        named: set[str] = set()
        begun = _begun(self._store, self._decisions, batch_id) or {}
        for position, (source, log, last) in logs.items():
            first = begun.get(source, _BEFORE_THE_FIRST) + 1
            if log.compacted >= first:  # Spark has read the log again, and goes by what it found
                require_held(self._store, self._decisions)
            files, digest = log.files(first, last), log.digest(first, last)
            if files is None or digest is None:
                raise self._superseded(batch_id, f"{source}/{last} cannot be read")
            named |= {_plain(unquote(each.path)) for each in files}
            kept[position] = msgspec.structs.replace(kept[position], holds=digest)
        if named != {_plain(each) for each in self._running.files()}:
            raise self._superseded(batch_id, "other files stand there than Spark evaluates")
        return tuple(kept)

    def _superseded(self, batch_id: int, why: str) -> SupersededError:
        return SupersededError(
            f"Batch {batch_id}: {self._store.location}/{SOURCES}: {why}: another driver has "
            "replaced what this one has written. Nothing of ours was made visible. Make sure that "
            "no other driver runs this checkpoint, then start the query again."
        )


def _plain(path: str) -> str:
    """Return a path with one slash in front: Spark's log has three where its plan has one."""
    return re.sub(r"^([A-Za-z][\w+.-]*):/+", r"\1:/", path)


def _beginning(store: CheckpointStore, read: SourceRead, source: str) -> str:
    """Return a digest of ``sources/<i>/0``, from which a ``rate`` computes; empty of another."""
    data = store.get(f"{SOURCES}/{source}/0") if read.name == _COMPUTED else None
    return "" if data is None else _digest(data)


def _begun(store: CheckpointStore, decisions: DecisionLog, batch: int) -> dict[str, int] | None:
    """Return the number before the first of each file source that has begun.

    None where the batch before is not there any more, as a promise or in Spark's log.
    """
    if batch == 0:
        return {}
    path = f"{OFFSETS}/{batch - 1}"
    promised = decided_offsets(decisions, batch - 1)
    data = store.get(path) if promised is None else promised.encode()
    try:
        ends = parse_offsets(data or b"", f"{store.location}/{path}").ends
    except CheckpointFormatError:
        return None
    return {source: at for source, end in ends.items() if (at := file_offset(end)) is not None}


def _promises(store: CheckpointStore, decisions: DecisionLog) -> Iterator[tuple[int, Decision]]:
    """Yield the batches that were promised, the newest first, with what was."""
    for batch in reversed(batch_folders(store, DECISIONS)):
        decided = decisions.of_batch(batch)
        for promise in (each for each in decided if each.verdict is Verdict.COMMIT):
            yield batch, promise
            break


def require_held(store: CheckpointStore, decisions: DecisionLog) -> None:
    """Refuse to go on from offsets that stand for something else than was promised.

    Looked at are the newest promises: of a file source to its newest compact file. One that no
    promise rests on yet is held against all promises since the one before. What an older release
    has promised has no digest, and is taken at its word.

    Raises:
        ContinuityError: files, or the beginning of a source, are others; or are gone.
    """
    for found in _others(store, decisions):
        raise ContinuityError(
            f"{store.location}/{found}: rows would come twice, or not at all. Nothing was read.",
            Remedy(change="put it back, from a copy of the checkpoint", start=True),
            Remedy(
                change="move the input that readers have out of what the query reads, and begin on "
                "a new checkpoint location under another prefix",
                start=True,
                costs="the state of a stateful query",
            ),
        )


def _others(store: CheckpointStore, decisions: DecisionLog) -> Iterator[str]:
    """Yield each path, and batch, whose promise stood for something else."""
    logs: dict[str, FileLog] = {}
    back_to: dict[str, int] = {}
    for batch, promise in _promises(store, decisions):
        if not any(each.holds for each in promise.read):
            return
        entry = parse_offsets((promise.offsets or "").encode(), f"the decision of batch {batch}")
        begun = _begun(store, decisions, batch)
        is_read = False
        for (source, end), each in zip(entry.ends.items(), promise.read, strict=False):
            last = file_offset(end)
            if last is None and each.holds and _beginning(store, each, source) != each.holds:
                yield (
                    f"{SOURCES}/{source}/0 is not what batch {batch} was delivered with: the rows "
                    "of its source are computed from it"
                )
            if last is None or begun is None:
                continue
            log = logs.setdefault(source, FileLog(store, source))
            if log.digest(begun.get(source, _BEFORE_THE_FIRST) + 1, last) != each.holds:
                yield (
                    f"{SOURCES}/{source}/{last} does not name the files that batch {batch} was "
                    "delivered from: another driver has replaced it, or it was lost"
                )
            is_new = last < log.compacted
            until = back_to.setdefault(source, log.compacted_before if is_new else log.compacted)
            is_read = is_read or last >= until
        if not is_read:
            return


def require_computed_alike(store: CheckpointStore, reads: Sequence[SourceRead]) -> None:
    """Refuse a source that would compute other rows from the offsets that it goes on from.

    Raises:
        ContinuityError: options of a ``rate`` are others than the newest promise's.
    """
    promised = next((each for _, each in _promises(store, DecisionLog(store))), None)
    pairs = zip(() if promised is None else promised.read, reads, strict=False)
    for number, (before, after) in enumerate(pairs):
        if before.name == after.name == _COMPUTED and before.options != after.options:
            raise ContinuityError(
                f"Source {number} of {store.location}, a {_COMPUTED}, had {before.options} and has "
                f"{after.options}: its rows are computed from these and from offsets, so that rows "
                "would come twice, or not at all. Nothing was read.",
                Remedy(change="give the options that it had", start=True),
                ANEW,
            )


# --- comparison -----------------------------------------------------------------------------------
# What two versions of an app read, compared by what the promises of one and the other name.


Difference = tuple[bool, str]
"""Whether it is one for sure, and what differs."""

_ONLY_AT_FIRST = re.compile(r"starting(offsets|timestamp).*")


def input_differences(
    promised: Sequence[SourceRead], reads: Sequence[SourceRead]
) -> Iterator[Difference]:
    """Yield what a new version reads otherwise than what was promised.

    Not for sure is where a source would begin, which counts for an empty checkpoint and for what is
    new in it, and whether brokers of other names are of another cluster.
    """
    if not promised:
        yield False, "what the former version reads was not noted: an older release has decided"
        return
    if len(promised) != len(reads):
        yield True, f"it reads {len(reads)} sources, and the former version {len(promised)}"
        return
    for number, (before, after) in enumerate(zip(promised, reads, strict=True)):
        if before.name != after.name:
            yield True, f"source {number} is {after.name}, and was {before.name}"
            continue
        for name in dict.fromkeys((*before.options, *after.options)):
            was, now = before.options.get(name), after.options.get(name)
            if was != now:
                unsure = _ONLY_AT_FIRST.fullmatch(name) or name == SERVERS
                said = f"source {number} ({after.name}): {name} is {now or 'not given'}, and was "
                yield not unsure, said + (was or "not given")


SERVERS = "kafka.bootstrap.servers"
"""The option whose names may be others of the same cluster."""

"""The base of participants whose rows are kept in the checkpoint; each kind applies its own way.

Applying must be repeatable: a process that finds COMMIT and no *done* applies again, and two may
do so at once. A callable sees a repetition by its token, a table by the version of its rows.
"""

from __future__ import annotations

import enum
import itertools
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from airflow_eos.core.checkpoint.backend import DECISIONS, EOS
from airflow_eos.core.checkpoint.decisions import opened_rows
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import (
    OpenWork,
    Outcome,
    Stored,
    WorkIdentity,
    check_name,
    decode,
    encode,
    is_key,
    require_own,
)
from airflow_eos.core.protocol.participant_group import collect_all, in_turn
from airflow_eos.errors import ConfigurationError, Remedy, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.core.checkpoint.backend import StoredObject
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Decision, PreparedWork
    from airflow_eos.core.protocol.participant import Owner
    from airflow_eos.core.protocol.promise import OperatorRuling, Promise

_KEY = re.compile(r"(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]*)-[A-Za-z0-9._-]+", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


class SpilledRowsOutcome(enum.Enum):
    """How kept rows end; decided once and for all."""

    COMMIT = "commit"
    ABORT = "abort"


class OutcomeMarker(Stored, frozen=True, kw_only=True):
    """The stored end of kept rows. ``nonce`` is fresh: no two writers write equal bytes.

    ``number`` is the target's count once the rows were applied; 0 where it does not count.
    """

    end: SpilledRowsOutcome
    nonce: str
    number: int = 0


class SpilledRows:
    """The kept rows and their marks, of one participant in one checkpoint.

    Args:
        store: the store of the checkpoint.
        name: the participant's name.
    """

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self.store = store
        self.folder = f"{EOS}/kept/{check_name(name)}"

    def instance_id(self) -> str | None:
        """Return the random id of the name in this checkpoint; None where there is none."""
        found = self.store.get(f"{self.folder}/mark")
        return None if found is None else found.decode("ascii", errors="replace")

    def ensure_instance_id(self) -> str:
        """Return :meth:`instance_id`, and create it if needed (StoreError: written, and gone)."""
        self.store.create(f"{self.folder}/mark", uuid.uuid4().hex.encode())
        instance_id = self.instance_id()
        if instance_id is None:
            raise StoreError(f"{self.location_of('mark')} was written and is gone: who deletes it?")
        return instance_id

    def keep(self, key: str, stream: bytes) -> None:
        """Write the rows durably under a key that was never used before (StoreError: it was)."""
        if not self.store.create(self._rows(key), stream):
            raise StoreError(
                f"{self.location_of(self._rows(key))} is there already: a key came twice."
            )

    def read(self, key: str) -> bytes | None:
        """Read the rows of a key; None where they are gone."""
        return self.store.get(self._rows(key))

    def has(self, key: str) -> bool:
        """Whether the rows of a key are there."""
        return self.store.head(self._rows(key)) is not None

    def drop(self, key: str) -> bool:
        """Remove the rows of a key; False where they were gone. Allowed only after a mark."""
        there = self.has(key)
        self.store.delete([self._rows(key)])
        return there

    def listed(self) -> list[StoredObject]:
        """List the objects of all rows that are there, ended or not."""
        return [each for each in self.store.list(f"{self.folder}/rows") if _KEY.match(each.name)]

    def end(self, key: str, outcome: SpilledRowsOutcome) -> tuple[SpilledRowsOutcome, bool]:
        """Decide how rows end; return (the end that stands, whether this call has written it)."""
        path = self._marker_path("ends", key)
        if self.store.create(path, encode(OutcomeMarker(end=outcome, nonce=uuid.uuid4().hex))):
            return outcome, True
        found = self.ended(key)
        if found is None:
            raise StoreError(f"{self.location_of(path)} was written and is gone: who deletes it?")
        return found, False

    def ended(self, key: str) -> SpilledRowsOutcome | None:
        """Return how rows end; None where that is not decided."""
        found = self._read(self._marker_path("ends", key))
        return None if found is None else found.end

    def finish(self, key: str, number: int = 0) -> None:
        """Write the mark that all rows of a key are applied; repeating it changes nothing."""
        marker = OutcomeMarker(end=SpilledRowsOutcome.COMMIT, nonce=uuid.uuid4().hex, number=number)
        self.store.create(self._marker_path("done", key), encode(marker))

    def finished(self, key: str) -> bool:
        """Whether all rows of a key are applied."""
        return self._read(self._marker_path("done", key)) is not None

    def newest_finished(self) -> list[str]:
        """Return the applied keys of the newest batch that has any."""
        batches = self._batches(f"{self.folder}/done")
        if not batches:
            return []
        listed = self.store.list(f"{self.folder}/done/{max(batches)}")
        return [each.name for each in listed if _KEY.fullmatch(each.name)]

    def number(self, key: str) -> int:
        """Return the target's count when a key was applied; 0 where there is no such mark."""
        found = self._read(self._marker_path("done", key))
        return 0 if found is None else found.number

    def prune(self) -> None:
        """Remove the marks of batches whose decisions are pruned, and rows that a crash left.

        Every batch has a decision: below the oldest standing one, no process asks any more.
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
            if batch_of(key) in old and (
                self.finished(key) or self.ended(key) is SpilledRowsOutcome.ABORT
            ):
                self.drop(key)
        for batch in sorted(old):  # rows were removed first: without them nothing is ever applied
            self.store.delete_folder(f"{self.folder}/ends/{batch}")
            self.store.delete_folder(f"{self.folder}/done/{batch}")

    def location_of(self, path: str) -> str:
        """Return the location of a path in the checkpoint, for errors."""
        return f"{self.store.location}/{path}"

    def location_of_rows(self, key: str) -> str:
        """Return the location of the rows of a key, for errors."""
        return self.location_of(self._rows(key))

    def _batches(self, folder: str) -> set[int]:
        return {int(name) for name in self.store.folders(folder) if _NUMBER.fullmatch(name)}

    def _read(self, path: str) -> OutcomeMarker | None:
        data = self.store.get(path)
        if data is None:
            return None
        # Another process may have written the mark and not synced it yet, and we act on it.
        self.store.make_durable(path)
        return decode(data, OutcomeMarker, self.location_of(path))

    def _rows(self, key: str) -> str:
        batch_of(key)
        return f"{self.folder}/rows/{key}"

    def _marker_path(self, what: str, key: str) -> str:
        return f"{self.folder}/{what}/{batch_of(key)}/{key}"


def new_key(batch: int, task: int, task_attempt: int) -> str:
    """Make a key that was never used: it begins with batch and task, and ends in a random id."""
    return f"{batch}-{task}-{task_attempt}-{uuid.uuid4().hex}"


def batch_of(key: str) -> int:
    """Return the batch that a key belongs to (ConfigurationError: it is no key of kept rows)."""
    return _parts(key)[0]


def task_of(key: str) -> int:
    """Return the task that a key belongs to; raises as :func:`batch_of`."""
    return _parts(key)[1]


def _parts(key: str) -> tuple[int, int]:
    match = _KEY.fullmatch(key)
    if match is None or not is_key(key):
        raise ConfigurationError(
            f"{key!r} is no key of kept rows: expected <batch>-<task>-… of letters, digits and ._-"
        )
    return int(match[1]), int(match[2])


_REQUESTS = 8  # requests at once: an object store takes its time for each
_PRUNE_EVERY = 16  # decisions that are noted between two prunings

T = TypeVar("T")
R = TypeVar("R")


class SpillParticipant(ABC):
    """The base of participants with kept rows; subclasses apply the rows, and own the name.

    Args:
        kept: where the rows wait.
        name: the participant's name.
        instance_id: the random id of the name in this checkpoint, which no other checkpoint has.
    """

    kind: ClassVar[str]
    at_once = 1
    """The number of works that are applied before their marks are written."""

    def __init__(self, kept: SpilledRows, *, name: str, instance_id: str) -> None:
        self._kept = kept
        self._name = name
        self._instance_id = instance_id
        self._noted = 0

    @abstractmethod
    def apply(self, work: PreparedWork, rows: pa.Table) -> None:
        """Make all rows visible; some or all of them may have been applied before."""

    def applying(self) -> None:  # noqa: B027 - a callable has nothing to be asked
        """Prepare to apply works that are counted together; called before them."""

    def counted(self) -> int:
        """Return the target's count for the marks of works; called once these are applied."""
        return 0

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that is not this participant's, or has no key of kept rows."""
        require_own(works, self.kind, self._name)
        for work in works:
            batch_of(work.key)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Apply works in order; first write their marks of COMMIT, after which none is aborted."""
        self.check(works)
        ends = _together(lambda work: self._kept.end(work.key, SpilledRowsOutcome.COMMIT), works)
        became: dict[WorkIdentity, Outcome] = {}
        going = []
        for work, (end, by_us) in zip(works, ends, strict=True):
            if end is SpilledRowsOutcome.ABORT:
                became[work.identity] = Outcome.ABORTED
            elif not by_us and self._kept.finished(work.key):
                self._kept.drop(work.key)  # the process that applied it may have died before this
                became[work.identity] = Outcome.COMMITTED
            else:
                going.append(work)
        failpoint("kept-ending")
        applying = (
            partial(self._applied, going[at : at + self.at_once])
            for at in range(0, len(going), self.at_once)
        )
        return became | collect_all(applying)

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Write ABORT where a commit's mark would go, and remove rows; nothing if committed."""
        require_own(works, self.kind, self._name)
        return dict(zip(works, _together(self._aborted, works), strict=True))

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove the rows, also where a commit has begun: what it applies stays, or comes late."""
        require_own(works, self.kind, self._name)
        _together(lambda work: self._kept.end(work.key, SpilledRowsOutcome.ABORT), works)
        were_open = _together(
            lambda work: self._kept.drop(work.key) and not self._kept.finished(work.key), works
        )
        return dict(zip(works, were_open, strict=True))

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Return outcomes by the marks in the checkpoint."""
        self.check(works)
        found = _together(lambda work: self._outcome(work.key), works)
        return {work.identity: each for work, each in zip(works, found, strict=True)}

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List kept rows that have not ended."""
        self.require_checkpoint()
        known = {work.key for work in except_known}
        listed = [each for each in self._kept.listed() if each.name not in known]
        ended = _together(lambda each: self._ended(each.name), listed)
        found = [
            OpenWork(
                self.kind,
                self._name,
                each.name,
                each.modified_at_ms,
                None,
                (self._kept.location_of_rows(each.name),),
            )
            for each, is_over in zip(listed, ended, strict=True)
            if not is_over
        ]
        return tuple(sorted(found, key=lambda each: each.key))

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Check nothing: applied rows are not kept here any more."""
        del promise, said

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remove old marks now and then; see :meth:`SpilledRows.prune`."""
        del decision, owner
        if self._noted % _PRUNE_EVERY == 0:
            self._kept.prune()
        self._noted += 1

    def require_checkpoint(self) -> None:
        """Refuse a missing or another checkpoint: its missing rows say nothing.

        Raises:
            StoreError: the mark is missing or another one.
        """
        found = self._kept.instance_id()
        if not found or found != self._instance_id:
            raise StoreError(
                f"{self._kept.location_of(self._kept.folder)} is not of this pipeline: its mark is "
                f"{found or 'missing'}, expected {self._instance_id}. Is the disk mounted here? "
                "Nothing was concluded from rows that are not there."
            )

    def _applied(self, works: Sequence[PreparedWork]) -> dict[WorkIdentity, Outcome]:
        """Apply works; finish the applied ones, also where another one is refused."""
        became: dict[WorkIdentity, Outcome] = {}
        applied: list[PreparedWork] = []
        streams = _together(lambda work: self._kept.read(work.key), works)
        self.applying()

        def apply(work: PreparedWork, stream: bytes | None) -> None:
            if stream is None:  # applied by another process meanwhile, or lost
                became[work.identity] = self._outcome(work.key)
                return
            self.apply(work, self._whole(work, stream))
            failpoint("kept-applied")
            applied.append(work)
            became[work.identity] = Outcome.COMMITTED

        def finish() -> None:
            number = self.counted() if applied else 0
            _together(lambda work: self._kept.finish(work.key, number), applied)
            failpoint("settled-some")
            _together(lambda work: self._kept.drop(work.key), applied)

        in_turn([*map(partial, itertools.repeat(apply), works, streams), finish])
        return became

    def _whole(self, work: PreparedWork, stream: bytes) -> pa.Table:
        """Return the kept rows as a table; refuse other than the promised number (StoreError)."""
        where = self._kept.location_of_rows(work.key)
        give_up = f"airflow-eos accept CHECKPOINT --batch {batch_of(work.key)} --give-up-open"
        remedies = (
            Remedy(change=f"restore {where} from a copy of the checkpoint", start=True),
            Remedy(
                commands=(give_up,), start=True, costs=f"the {work.rows} rows that were kept there"
            ),
        )
        table = table_of(stream, where, *remedies)
        if table.num_rows != work.rows:
            raise StoreError(
                f"{where} holds {table.num_rows} rows, and {work.rows} were promised: it is "
                "another's. Nothing was guessed.",
                *remedies,
            )
        return table

    def _aborted(self, work: WorkIdentity) -> bool:
        end, by_us = self._kept.end(work.key, SpilledRowsOutcome.ABORT)
        if end is SpilledRowsOutcome.COMMIT:
            return False
        # Also where another process has written the mark: it may have died before it removed them.
        return self._kept.drop(work.key) and by_us

    def _newest_number(self) -> int:
        """Return the highest number in the marks; numbers never go down from batch to batch."""
        return max(_together(self._kept.number, self._kept.newest_finished()), default=0)

    def _ended(self, key: str) -> bool:
        return self._kept.finished(key) or self._kept.ended(key) is SpilledRowsOutcome.ABORT

    def _outcome(self, key: str) -> Outcome:
        # Asked twice: rows that were removed between two looks have a mark since before that.
        for _ in range(2):
            if self._kept.finished(key):
                return Outcome.COMMITTED
            if self._kept.ended(key) is SpilledRowsOutcome.ABORT:
                return Outcome.ABORTED
            if self._kept.has(key):
                return Outcome.OPEN
        self.require_checkpoint()
        return Outcome.UNKNOWN


def table_of(stream: bytes, where: str, *remedies: Remedy) -> pa.Table:
    """Read kept rows as a table.

    Raises:
        StoreError: the bytes are no Arrow stream, or not all of it.
    """
    import pyarrow as pa

    reader = opened_rows(stream, where, *remedies)
    try:
        return reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise StoreError(
            f"{where} holds {len(stream)} bytes that are not rows ({error}): truncated or foreign. "
            "Nothing was guessed.",
            *remedies,
        ) from error


def _together(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call ``do`` for each item, some at once; return results in order, or raise an error."""
    found = list(items)
    if len(found) < 2:
        return [do(each) for each in found]
    with ThreadPoolExecutor(min(_REQUESTS, len(found))) as pool:
        return list(pool.map(do, found))

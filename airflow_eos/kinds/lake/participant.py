"""A table of data files and a log as a participant: one commit to the log settles one decision.

=====================================  ========================================================
``<data>/<partition>/<key>.parquet``   prepared while the log does not name it, then rows
``eos/works/<participant>/<key>``      in the checkpoint: noted before the file, until it ended
slot ``<application>/<id>/…``          in the log, the witness of an output's attempt: twice the
                                       batch, and one more where its rows are there
=====================================  ========================================================

A decision is settled as a whole, whichever of its work is asked for: so one number is exact for
every part of it, and a table has no more slots than a batch has attempts, whatever its age.
Rows and number are one commit, made on the snapshot that lacked the number. Where a file is
missing, a commit without rows writes the other number, which is final: a writer that saw the file
before has lost the race. Numbers of a slot only grow, and nothing is done for a batch below the
number that stands: that is the floor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec

from airflow_eos.core.checkpoint.backend import DECISIONS, EOS, require_inside
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.pipeline import OwnedBeside, OwnershipFile, pipeline_of
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.decision import OpenWork, Outcome, WorkIdentity, is_key, require_own
from airflow_eos.core.protocol.participant import Member
from airflow_eos.core.protocol.participant_group import in_turn
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, Remedy, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_eos.core.protocol.cut import BatchEnd
    from airflow_eos.core.protocol.decision import Decision, PreparedWork
    from airflow_eos.core.protocol.participant import Owner
    from airflow_eos.core.protocol.promise import OperatorRuling, Promise
    from airflow_eos.kinds.lake.files import TableFiles


class LostRaceError(Exception):
    """A commit to the log was overtaken or refused, or got no answer: look at the log again."""


class Partition(NamedTuple):
    """A partition of a table: its folder with a slash at the end, and its values.

    Both are empty where the table has none. A value is a text that its kind reads, None for null.
    """

    folder: str = ""
    values: tuple[str | None, ...] = ()


WHOLE = Partition()
UPSERT = "upsert"
"""What a decision says of files whose rows wait to replace others: key, deletes, compression."""


@dataclass(frozen=True)
class DataFile:
    """A complete Parquet file.

    Attributes:
        path: within the table's folder.
        size: in bytes.
        rows: how many.
        modified_at_ms: since the epoch; 0 where nobody has looked at it yet.
        tail: the sum of its end, see ``tail_of``.
        partition: the partition of all its rows.
        table: what its task knew of the table, as its kind notes it.
    """

    path: str
    size: int
    rows: int
    modified_at_ms: int
    tail: int | None = None
    partition: Partition = WHOLE
    table: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """The file's own name, which no other file of any table has."""
        return name_of(self.path)


def name_of(path: str) -> str:
    """Return the last part of a path or a URI."""
    return path.rpartition("/")[2]


# --- files of work --------------------------------------------------------------------------------
# What the decision says of the files of one task: all that another process needs to commit them.


class _FileDetail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: str
    values: tuple[str | None, ...]
    bytes: int
    tail: int
    rows: int


class _FilesDetail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: Annotated[tuple[_FileDetail, ...], msgspec.Meta(min_length=1)]
    table: dict[str, Any]


def name_in(partition: Partition, key: str, number: int) -> str:
    """Return the path, below the table's data, of file ``number`` (from 0) of work ``key``."""
    return f"{partition.folder}{key}{f'-{number}' if number else ''}.parquet"


def detail_of(files: Iterable[DataFile], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the detail of prepared work with these files, in the order of their numbers."""
    told = [
        _FileDetail(
            folder=each.partition.folder,
            values=each.partition.values,
            bytes=each.size,
            tail=each.tail or 0,
            rows=each.rows,
        )
        for each in files
    ]
    found: dict[str, Any] = msgspec.to_builtins(_FilesDetail(files=tuple(told), table=dict(table)))
    return found


def files_of(work: PreparedWork, data: str) -> list[DataFile]:
    """Return the files that ``work`` says it has, below ``data``.

    Raises:
        CheckpointFormatError: it does not say it in a form of this release.
    """
    told, key = work.detail, checked(work.key)
    try:
        if "files" not in told:  # of a release that knew no partitions
            size, tail = told["bytes"], told.get("tail")
            if type(size) is not int:
                raise TypeError(size)  # noqa: TRY301
            return [DataFile(f"{data}{key}.parquet", size, work.rows, 0, tail)]
        detail = msgspec.convert(told, _FilesDetail)
        for each in detail.files:
            require_inside(each.folder + key)
    except (KeyError, TypeError, StoreError, msgspec.ValidationError) as error:
        raise CheckpointFormatError(
            f"Work {work.identity} does not say which files it has ({type(error).__name__}). Was "
            "the checkpoint written by a newer release? Then use that one."
        ) from error
    return [
        DataFile(
            f"{data}{name_in(partition, key, number)}",
            each.bytes,
            each.rows,
            0,
            each.tail,
            partition,
            detail.table,
        )
        for number, each in enumerate(detail.files)
        for partition in (Partition(each.folder, each.values),)
    ]


class TableSnapshot(Protocol):
    """The table as it was at one look; a snapshot never changes."""

    def witness(self, slot: str) -> int | None:
        """Return the number last written in this slot, in the same commit as its rows."""
        ...

    def names(self, files: Collection[str]) -> frozenset[str]:
        """Return those of the given files that this version of the table names."""
        ...

    def still_names(self, files: Collection[str]) -> frozenset[str]:
        """Return those of the files that this or any former, still readable version names."""
        ...

    def check(self, files: Sequence[DataFile]) -> None:
        """Refuse files whose columns do not fit the table's.

        Raises:
            ConfigurationError: the table was changed since they were promised; no file is removed.
            LostRaceError: one of them is gone.
        """
        ...

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> TableSnapshot | None:
        """Commit the files (or none) and the witness, in one step on top of this snapshot.

        Return the table as it answered that it is by now; None where it answers no such thing.

        Raises:
            LostRaceError: it is not known whether the commit was done.
        """
        ...

    def make_durable(self) -> None:
        """Sync all that this snapshot was read from, so that it survives a power cut."""
        ...

    @property
    def snapshot_address(self) -> dict[str, Any]:
        """What a reader of just this snapshot asks the table for; empty: there is no row."""
        ...


class LakeTable(Protocol):
    """One table that a pipeline delivers into."""

    @property
    def address(self) -> dict[str, str]:
        """The table's constant address: its place, and an id that no other table has."""
        ...

    @property
    def files(self) -> TableFiles:
        """The table's files; this package keeps some in ``_eos``, which cleaners spare."""
        ...

    @property
    def data(self) -> str:
        """What the path of a data file begins with: empty, or a folder and a slash."""
        ...

    def look(self) -> TableSnapshot:
        """Return a snapshot of the table as it is now.

        Raises:
            StoreError: the table is not there, is another one, or cannot be read.
            ConfigurationError: it has a feature that we cannot write, or that forgets witnesses.
        """
        ...


# --- nullability ----------------------------------------------------------------------------------
# Checks whether rows may hold a null where the table allows none, at any depth of a column's type.


T = TypeVar("T")
Within = Callable[[T], Sequence[tuple[bool, T]]]
"""A function that lists (whether it may be null, its type) of each part of a type."""


def is_looser(ours: T, theirs: T, within: Within[T]) -> bool:
    """Whether a part of type ``ours``, at any depth, may be null where ``theirs`` may not."""
    return any(
        (mine and not other) or is_looser(my_type, other_type, within)
        for (mine, my_type), (other, other_type) in zip(within(ours), within(theirs), strict=True)
    )


Columns = Mapping[str, tuple[bool, T]]
"""The columns of rows or a table, by name: (whether it may be null, its type)."""


def misfit(
    ours: Columns[T],
    theirs: Columns[T],
    *,
    plain: Callable[[T], object],
    within: Within[T],
    rule: str,
) -> str | None:
    """Return why rows of columns ``ours`` cannot be appended to the table; None where they can.

    A column that the table allows to be null may be missing.

    Args:
        ours: the columns of the rows.
        theirs: the columns of the table.
        plain: returns a type without what does not change its bytes.
        within: lists the parts of a type.
        rule: the table's words for a column that holds no null.
    """
    foreign = sorted(ours.keys() - theirs.keys())
    if foreign:
        return f"the table has no column {', '.join(foreign)}"
    for name, (nullable, kind) in theirs.items():
        may_be_null, our_kind = ours.get(name, (True, kind))
        if may_be_null and not nullable:
            return f"column {name} may be null or missing, and the table says {rule}"
        if plain(our_kind) != plain(kind):
            return f"column {name} is {plain(our_kind)}, and {plain(kind)} in the table"
        if is_looser(our_kind, kind, within):
            return f"column {name} may be null within, where the table says {rule}"
    return None


_NEWEST = 2
"""The number of newest batches to search: a batch is settled before the next one is decided."""


def decisions_naming(
    store: CheckpointStore, works: Collection[WorkIdentity]
) -> dict[WorkIdentity, Decision]:
    """Return the decision that names each of ``works``, out of the newest decided batches.

    Work that is missing in the result was never decided, or its batch was over long ago.
    """
    if not works:
        return {}
    wanted = set(works)
    found: dict[WorkIdentity, Decision] = {}
    batches = sorted((int(n) for n in store.folders(DECISIONS) if n.isdecimal()), reverse=True)
    for batch in batches[:_NEWEST]:
        if found.keys() == wanted:
            break
        for decision in DecisionLog(store).of_batch(batch):
            found |= {w.identity: decision for w in decision.works if w.identity in wanted}
    return found


# --- notes ----------------------------------------------------------------------------------------
# ``eos/works/<participant>/<key>``: a note of each data file, written before its first byte.
#
# A listing of the table's folder would not tell our files from another writer's, and costs more
# with every batch; this folder only has what is in flight.


WORKS = f"{EOS}/works"


class WorkNotes:
    """The notes of one participant about data files that have not ended.

    Args:
        store: the pipeline's checkpoint.
        participant: its name in decisions.
    """

    def __init__(self, store: CheckpointStore, participant: str) -> None:
        self._store = store
        self._folder = f"{WORKS}/{participant}"

    def write(self, key: str, files: Sequence[str]) -> None:
        """Write the note of ``key`` with the addresses of all its files; durable on return."""
        told = "\n".join(files).encode()
        if not self._store.create(self._path(key), told):  # it has fewer
            self._store.put(self._path(key), told)
            self._store.make_durable(self._path(key))

    def files(self, key: str) -> list[str]:
        """Return the addresses of the files of ``key``; none where it has no note."""
        return (self._store.get(self._path(key)) or b"").decode().splitlines()

    def has(self, key: str) -> bool:
        """Whether the work of ``key`` was noted and has not ended."""
        return self._store.head(self._path(key)) is not None

    def listed(self) -> list[tuple[str, int]]:
        """List the work that has not ended: key, and when it was begun (ms since the epoch)."""
        return [
            (entry.name, entry.modified_at_ms)
            for entry in self._store.list(self._folder)
            if is_key(entry.name)
        ]

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the notes of ended work; a note that is gone already is no error."""
        self._store.delete(map(self._path, keys))

    def _path(self, key: str) -> str:
        return f"{self._folder}/{checked(key)}"


def checked(key: str) -> str:
    """Return ``key`` if it may be a file's name (ConfigurationError)."""
    if not is_key(key):
        raise ConfigurationError(f"{key!r} is no key of a file: expected letters, digits and ._-")
    return key


# --- participant ----------------------------------------------------------------------------------


APPLICATION = "application"
_IDLE = 100
"""The batches without a row for a table after which its version is asked for anew, for cuts."""
_PAUSES_S = (0.0, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""The pauses before each look of a commit; the later ones follow a lost race."""


class LakeParticipant(OwnedBeside):
    """See :class:`airflow_eos.core.protocol.participant.Participant`.

    Args:
        table: the table that the rows go to.
        name: the participant's name in decisions.
        application: the name of this output in the table's log.
        store: the pipeline's checkpoint.
    """

    kind: ClassVar[str]
    spared_ms: ClassVar[int]
    """How long the table's cleaner spares a file that the log does not name, in ms."""

    def __init__(
        self, table: LakeTable, *, name: str, application: str, store: CheckpointStore
    ) -> None:
        self._table = table
        self._name = name
        self._application = application
        self._store = store
        self._notes = WorkNotes(store, name)
        self._files = table.files
        self._looked: tuple[TableSnapshot, Sequence[DataFile] | None] | None = None
        """The look before the decision, on which its commit is tried first, and what fits it."""
        self._settled_at: tuple[int, dict[str, Any]] | None = None
        """The batch that was settled last, and the table's place when its log told so."""
        self._beside = OwnershipFile(
            self._owned(), f"application {application!r} in {table.files.address}"
        )

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision beside the data, by the keys that the last look at the table gave."""
        if self._files is not self._table.files:
            self._files = self._table.files
            self._beside.reach(self._owned())
        super().note(decision, owner)

    def _owned(self) -> CheckpointStore:
        return self._files.store_in(f"_eos/{self._application}")

    @property
    def members(self) -> tuple[Member, ...]:
        """The participant, by the table's own id and the output's name in the table's log."""
        address = self._table.address | {APPLICATION: self._application}
        target = f"{self.kind}:{self._table.files.address}"
        return (Member(self._name, self.kind, address, target),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that is not a file of this participant, in a form of this release."""
        self._require_own(works)
        for work in works:
            files_of(work, self._table.data)

    def require_decidable(self, works: Sequence[PreparedWork]) -> None:
        """Refuse, before the decision, files that the table, as it is by now, would not take.

        A missing file is no reason: its batch is settled as lost, and written again.
        """
        self.check(works)
        if works:
            with contextlib.suppress(LostRaceError):
                view, files = self._table.look(), self._whole(works)
                if not self._takes(view, files):
                    raise StoreError(
                        f"The table {self._table.files.address} was changed since this query "
                        "started: it does not know the partitions, or the new columns, by which "
                        "the batch was written. Nothing is promised of it.",
                        Remedy(start=True),
                    )
                view.check(files)
                self._looked = view, files

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Settle the decisions that name ``works``; UNKNOWN where no recent decision names one."""
        self.check(works)
        if not works:
            return {}
        named = decisions_naming(self._store, [work.identity for work in works])
        became: dict[WorkIdentity, Outcome] = {}

        def settle(decision: Decision) -> None:
            outcome = self._settle(decision)
            theirs = [
                each for each, by in named.items() if _attempt_of(by) == _attempt_of(decision)
            ]
            became.update(dict.fromkeys(theirs, outcome))

        in_turn(partial(settle, each) for each in _once(named))
        return {work.identity: became.get(work.identity, Outcome.UNKNOWN) for work in works}

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove file and note of each work; files that any version of the table names stay.

        The table is asked which it names, since a deleted note can come back with a power cut.
        """
        self._require_own(works)
        if not works:
            return {}
        files = {work: self._noted(work.key) for work in works}
        every = [file for each in files.values() for file in each]
        view = self._table.look()
        rows = view.still_names(every)
        committed = {
            work
            for work, by in decisions_naming(self._store, works).items()
            if self._witnessed(view, by) is Outcome.COMMITTED
        }
        found = dict(zip(every, self._table.files.find(every), strict=True))
        ended = {}
        for work, theirs in files.items():
            is_there = any(found[file] is not None for file in theirs)
            ended_well = work in committed or not rows.isdisjoint(theirs)
            was_open = not ended_well and (self._notes.has(work.key) or is_there)
            if was_open:
                self._table.files.remove(theirs)
            self._notes.forget([work.key])
            ended[work] = was_open
        return ended

    def _noted(self, key: str) -> list[str]:
        """Return the files of work that no decision need name, by its note."""
        first = f"{self._table.data}{checked(key)}.parquet"
        address = f"{self._table.files.address}/"
        told = [
            file.removeprefix(address)
            for file in self._notes.files(key)
            if file.startswith(address) and name_of(file).startswith(key)
        ]
        for file in told:
            require_inside(file)
        return told or [first]

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Commit the loss of each decision that names one of ``works``, as a whole."""
        self._require_own(works)
        named = decisions_naming(self._store, works)
        became = {_attempt_of(each): self._settle(each, given_up=True) for each in _once(named)}
        return {
            work: work in named and became[_attempt_of(named[work])] is Outcome.ABORTED
            for work in works
        }

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask the table's log for outcomes; a missing file says nothing before a commit."""
        self.check(works)
        if not works:
            return {}
        named = decisions_naming(self._store, [work.identity for work in works])
        view = self._table.look()
        told: dict[WorkIdentity, Outcome] = {}
        for work in works:
            decision = named.get(work.identity)
            if decision is not None:
                told[work.identity] = self._witnessed(view, decision) or Outcome.OPEN
            else:
                has_note = self._notes.has(work.key)
                told[work.identity] = Outcome.OPEN if has_note else Outcome.UNKNOWN
        if Outcome.COMMITTED in told.values():
            view.make_durable()
        return told

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List the notes of this participant, and never the table.

        Work that a killed commit made visible is among them until its note goes: a commit removes
        the note, and so does an abort, which takes nothing from the table.
        """
        known = {work.key for work in except_known}
        found = [
            OpenWork(
                self.kind,
                self._name,
                key,
                at,
                self.spared_ms,
                tuple(f"{self._table.files.address}/{file}" for file in self._noted(key)),
            )
            for key, at in self._notes.listed()
            if key not in known
        ]
        return tuple(sorted(found, key=lambda each: each.key))

    def position(self, end: BatchEnd) -> dict[str, Any]:
        """See :class:`Seekable`: the version that told the outcome, or the one of now.

        Without rows of ours the former place stays right, until others compact the table and let
        its version expire: so it is looked at once a run, and now and then.
        """
        told = -_IDLE if self._settled_at is None else self._settled_at[0]
        if not end.works and end.former is not None and end.batch_id - told < _IDLE:
            return dict(end.former)
        if self._settled_at is None or self._settled_at[0] != end.batch_id:
            self._settled_at = (end.batch_id, self._table.look().snapshot_address)
        end.require_in_flight()
        snapshot_address = self._settled_at[1]
        return self._table.address | snapshot_address if snapshot_address else {}

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Check nothing: a table may be restored to an older version on purpose."""

    def _require_own(self, works: Collection[PreparedWork | WorkIdentity]) -> None:
        require_own(works, self.kind, self._name)

    def _settle(self, decision: Decision, *, given_up: bool = False) -> Outcome:
        """Commit all work of the decision, or its loss; return the outcome that the witness tells.

        ``given_up`` commits the loss although all files may be there. Only the table as it is
        tells the outcome, be it in the reply to our commit, and no error does.
        """
        works = [work for work in decision.works if work.participant == self._name]
        reason = ""
        looked, self._looked = self._looked, None
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view, fitting = looked or (self._table.look(), None)
            looked = None
            outcome = self._witnessed(view, decision)
            if outcome is not None:
                self._settled_at = (decision.batch_id, view.snapshot_address)
                return self._ended(view, works, outcome)
            files = [] if given_up else self._whole(works)
            files = files if self._takes(view, files) else []
            failpoint("looked")
            batch = 2 * decision.batch_id
            try:
                if files != fitting:
                    view.check(files)
                there = view.append(files, self._slot(decision), batch + 1 if files else batch)
                looked = None if there is None else (there, None)
            except LostRaceError as error:
                reason = f": {error}"
        raise StoreError(
            f"The table {self._table.files.address} did not take the commit of batch "
            f"{decision.batch_id} in {len(_PAUSES_S)} tries{reason}. Nothing was guessed, and "
            "what is promised stays promised: try again, or look who else writes so often."
        )

    def _takes(self, view: TableSnapshot, files: Sequence[DataFile]) -> bool:
        """Whether the table can take such files at all; if not, they are as lost as missing ones.

        A column that does not fit is another matter, which people can mend: see ``check``.
        """
        del view, files
        return True

    def _witnessed(self, view: TableSnapshot, decision: Decision) -> Outcome | None:
        """Return the outcome of the decision that the witness tells; None where it tells none."""
        number = view.witness(self._slot(decision))
        if number is None or number // 2 < decision.batch_id:
            return None
        if number // 2 > decision.batch_id:
            return Outcome.UNKNOWN
        return Outcome.COMMITTED if number % 2 else Outcome.ABORTED

    def _ended(
        self, view: TableSnapshot, works: Sequence[PreparedWork], outcome: Outcome
    ) -> Outcome:
        """Remove notes and lost files of ended work, once its outcome is durable."""
        view.make_durable()
        failpoint("settled-some")
        if outcome is Outcome.COMMITTED:
            self._require_there(works)
            waited = [each.path for each in self._promised(works) if UPSERT in each.table]
            self._table.files.remove(waited)
        elif outcome is Outcome.ABORTED:
            self._table.files.remove(self._paths(works))
        if outcome is not Outcome.UNKNOWN:
            self._notes.forget(work.key for work in works)
        return outcome

    def _require_there(self, works: Sequence[PreparedWork]) -> None:
        """Raise where a cleaner removed a file while it was being committed (StoreError)."""
        if not any(self._notes.has(work.key) for work in works):
            return  # settled before: its files may be compacted and cleaned by now
        files = self._paths(works)
        gone = [
            file
            for file, found in zip(files, self._table.files.find(files), strict=True)
            if found is None
        ]
        if gone and self._table.look().names(gone):
            raise StoreError(
                f"{self._table.files.address} names {len(gone)} files that are not there, first "
                f"{name_of(gone[0])}: they were removed while they were being committed. Does "
                "somebody clean the table with a retention shorter than the default? Remove them "
                "from its log, and write their rows again by hand."
            )

    def _slot(self, decision: Decision) -> str:
        return f"{self._application}/{self._pipeline}/{self._name}/{decision.attempt}"

    @cached_property
    def _pipeline(self) -> str:
        return pipeline_of(self._store).id

    def _promised(self, works: Sequence[PreparedWork]) -> list[DataFile]:
        return [file for work in works for file in files_of(work, self._table.data)]

    def _paths(self, works: Sequence[PreparedWork]) -> list[str]:
        return [file.path for file in self._promised(works)]

    def _whole(self, works: Sequence[PreparedWork]) -> list[DataFile]:
        """Return the files of ``works``; none where one is missing, or not as it was promised."""
        promised = self._promised(works)
        states = self._table.files.find([file.path for file in promised])
        files = []
        for file, found in zip(promised, states, strict=True):
            if found is None or (found.size, found.tail) != (file.size, file.tail):
                return []
            files.append(replace(file, modified_at_ms=found.modified_at_ms))
        return files


def _attempt_of(decision: Decision) -> tuple[int, int]:
    return decision.batch_id, decision.attempt


def _once(named: Mapping[WorkIdentity, Decision]) -> list[Decision]:
    """Return each decision once, in the order in which they were made."""
    return sorted({_attempt_of(each): each for each in named.values()}.values(), key=_attempt_of)


def require_package(sink: str, package: str) -> None:
    """Refuse a missing Python package of a table format (ConfigurationError)."""
    if find_spec(package) is None:
        raise ConfigurationError(
            f"The {sink} sink needs the package {package} on the driver and wherever recovery "
            f"runs: pip install 'airflow-provider-eos[{sink}]'."
        )

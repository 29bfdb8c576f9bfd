"""A table of data files and a log as a participant: one commit of the log is one decision.

=====================================  ========================================================
``<data>/<key>.parquet``               prepared while the log does not name it, then rows
``eos/works/<participant>/<key>``      in the checkpoint: noted before the file, until it ended
slot ``<application>/<id>/<attempt>``  in the log, the witness: twice the batch, and one more
                                       where its rows are there
=====================================  ========================================================

A decision is settled as a whole, whichever of its work is asked for: so one number is exact for
every part of it, and a table has no more slots than a batch has attempts, whatever its age.
Rows and number are one commit, made on the snapshot in which the number was not. Where a
file is missing, a commit without rows writes the other number: it is final, since whoever saw the
file before that has lost the race. Numbers of a slot only grow, and below the one that stands
nothing is done: that is the floor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.name_owner import KeptBeside
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.participants.lake.decided import decisions_naming
from airflow_eos.participants.lake.files import PreparedFiles, is_there
from airflow_eos.participants.lake.notes import WorkNotes
from airflow_eos.participants.lake.settling import Settling
from airflow_eos.protocol.decision import OpenWork, Outcome, WorkIdentity, require_own
from airflow_eos.protocol.group import in_turn
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from airflow_eos.participants.lake.table import LakeTable
    from airflow_eos.protocol.decision import Decision, PreparedWork
    from airflow_eos.protocol.participant import Owner, Ownership
    from airflow_eos.protocol.promise import Promise, Said

APPLICATION = "application"


class LakeParticipant:
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        table: where the rows go.
        kind: its kind.
        name: the participant's name in decisions.
        application: under which the table remembers us.
        store: the pipeline's checkpoint.
        spared_ms: how long the table's cleaner spares a file that no log names.
    """

    def __init__(
        self,
        table: LakeTable,
        *,
        kind: str,
        name: str,
        application: str,
        store: CheckpointStore,
        spared_ms: int,
    ) -> None:
        self._table = table
        self._kind = kind
        self._name = name
        self._application = application
        self._store = store
        self._spared_ms = spared_ms
        self._notes = WorkNotes(store, name)
        self._files = PreparedFiles(table)
        self._settling = Settling(table, store, self._notes, name=name, application=application)
        self._kept = KeptBeside(
            CheckpointStore.open(table.folder / "_eos" / application),
            f"application {application!r} in {table.folder}",
        )

    @property
    def members(self) -> tuple[Member, ...]:
        """The table, by its own id, and the name under which it remembers us."""
        address = self._table.address | {APPLICATION: self._application}
        target = f"{self._kind}:{self._table.folder}"
        return (Member(self._name, self._kind, address, target),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each is a file of ours."""
        self._require_own(works)
        for work in works:
            if not isinstance(work.detail.get("bytes"), int):
                raise CheckpointFormatError(
                    f"Work {work.identity} does not say how many bytes its file has. Was the "
                    "checkpoint written by a newer release? Then use that one."
                )

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Settle the decisions that name ``works``; UNKNOWN where none is in flight that does."""
        self.check(works)
        if not works:
            return {}
        named = decisions_naming(self._store, [work.identity for work in works])
        became: dict[WorkIdentity, Outcome] = {}

        def settle(decision: Decision) -> None:
            outcome = self._settling.settle(decision)
            theirs = [each for each, by in named.items() if _place(by) == _place(decision)]
            became.update(dict.fromkeys(theirs, outcome))

        in_turn(partial(settle, each) for each in _once(named))
        return {work.identity: became.get(work.identity, Outcome.UNKNOWN) for work in works}

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove file and note of each; what the table names, or did in a version, stays.

        It is asked what it names: a deleted note can come back with a power cut.
        """
        self._require_own(works)
        if not works:
            return {}
        with self._files.disk("removing prepared files"):
            files = {work: self._files.of(work.key) for work in works}
            rows = self._table.look().still_names(files.values())
            ended = {}
            for work, file in files.items():
                was_open = file not in rows and (self._notes.has(work.key) or is_there(file))
                if was_open:
                    file.unlink(missing_ok=True)
                self._notes.forget([work.key])
                ended[work] = was_open
            return ended

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Commit the loss of the decisions that name them, each as a whole."""
        self._require_own(works)
        named = decisions_naming(self._store, works)
        became = {_place(each): self._settling.settle(each, given_up=True) for each in _once(named)}
        return {
            work: work in named and became[_place(named[work])] is Outcome.ABORTED for work in works
        }

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask the log of the table; a file that is missing concludes nothing before a commit."""
        self.check(works)
        if not works:
            return {}
        named = decisions_naming(self._store, [work.identity for work in works])
        view = self._table.look()
        told: dict[WorkIdentity, Outcome] = {}
        for work in works:
            decision = named.get(work.identity)
            if decision is not None:
                told[work.identity] = self._settling.told(view, decision) or Outcome.OPEN
            else:
                has_note = self._notes.has(work.key)
                told[work.identity] = Outcome.OPEN if has_note else Outcome.UNKNOWN
        if Outcome.COMMITTED in told.values():
            view.make_durable()
        return told

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List the notes; never the table.

        Work that a killed commit made visible is among them until its note goes: a commit, or an
        abort, which takes nothing from the table, forgets it.
        """
        known = {work.key for work in besides}
        found = [
            OpenWork(self._kind, self._name, key, at, self._spared_ms, (str(self._files.of(key)),))
            for key, at in self._notes.listed()
            if key not in known
        ]
        return tuple(sorted(found, key=lambda each: each.key))

    def claim(self, owner: Owner) -> None:
        """Own the application's name in this table."""
        self._kept.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Ask what is kept beside the data."""
        return self._kept.ownership(asking)

    def require_settled(self, promise: Promise, said: Said) -> None:
        """Nothing is asked: a table may be restored to an older version on purpose."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remember it beside the data."""
        self._kept.note(decision, owner)

    def close(self) -> None:
        """Nothing is held."""

    def _require_own(self, works: Collection[PreparedWork | WorkIdentity]) -> None:
        require_own(works, self._kind, self._name)


def _place(decision: Decision) -> tuple[int, int]:
    return decision.batch_id, decision.attempt


def _once(named: Mapping[WorkIdentity, Decision]) -> list[Decision]:
    """Each decision once, in the order in which they were made."""
    return sorted({_place(each): each for each in named.values()}.values(), key=_place)


def checkpoint_of(member: Member, store: CheckpointStore | None) -> CheckpointStore:
    """Return ``store``, without which such a participant cannot be reached.

    Raises:
        ConfigurationError: there is none.
    """
    if store is None:
        raise ConfigurationError(
            f"{member} keeps notes of its files in the pipeline's checkpoint: give the checkpoint."
        )
    return store

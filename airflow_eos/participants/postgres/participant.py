"""PostgreSQL as a participant: a task's rows are one transaction, and its witness is one of them.

Two forms, which may both be in flight: ``prepared`` (``PREPARE TRANSACTION``, whose gid is the
key) and ``staged`` (rows in a table of the work's own, moved by one transaction). A witness that is
not there means ABORTED only on the server that the work was prepared on, or one that took over from
it; see :meth:`PostgresParticipant.outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.participants.postgres.session import Session, checked_dsn
from airflow_eos.participants.postgres.standing import Ledger, standing
from airflow_eos.participants.postgres.tables import Tables, make_tables, name_of
from airflow_eos.participants.postgres.works import (
    STAGED,
    absent,
    check_detail,
    commit_prepared,
    commit_staged,
    drop_staged,
    listed,
    rollback_prepared,
    waiting,
    witnessed,
)
from airflow_eos.protocol.participant import Member
from airflow_eos.protocol.work import OpenWork, Outcome, PreparedWork, WorkIdentity, require_own

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.participants.postgres.session import Connection
    from airflow_eos.protocol.decision import Decision

KIND = "postgres"
_COMMITS_AT_MOST = 5


class PostgresParticipant:
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        session: to the database; closed with this.
        tables: of the name under which all of it goes.
        name: the participant's name in decisions.
        mark: the random id of the name in this database, which another one does not have.
        target: the table, for people.
    """

    def __init__(
        self, session: Session, tables: Tables, *, name: str, mark: str, target: str = ""
    ) -> None:
        self._session = session
        self._tables = tables
        self._name = name
        self._mark = mark
        self._target = target
        self._ledger = Ledger(session, tables, mark, name)

    @property
    def members(self) -> tuple[Member, ...]:
        """By the mark in the database, which hosts and upgrades do not change."""
        address = {"name": self._tables.name, "schema": self._tables.schema, "mark": self._mark}
        target = f"postgres:{self._session.place} {self._target}".strip()
        return (Member(self._name, KIND, address, target),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each is a key of ours, in a form that this release knows."""
        require_own(works, KIND, self._name)
        for work in works:
            self._tables.checked(work.key)
            check_detail(work)

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """End each; what a lost reply leaves unsaid is asked of the witness."""
        self.check(works)
        owed = self._above_floor(works)
        kept = {work.identity for work in owed}
        for _ in range(_COMMITS_AT_MOST):
            for work in owed:
                self._session.run("committing", self._committing(work))
                failpoint("settled-some")
            became = self.outcome(works)
            owed = [work for work in owed if became[work.identity] is Outcome.OPEN]
            if not owed:
                # Open below the floor: nobody can know any more whether it should be.
                return {
                    each: outcome
                    if each in kept or outcome is not Outcome.OPEN
                    else Outcome.UNKNOWN
                    for each, outcome in became.items()
                }
        raise StoreError(
            f"{owed[0].identity} still waits in {self._session.place} after {_COMMITS_AT_MOST} "
            "commits. Nothing was guessed: look at pg_prepared_xacts there, then try again."
        )

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Roll each back by its key, which nobody else has ever used."""
        require_own(works, KIND, self._name)
        return {
            work: self._session.run("rolling back", self._aborting(self._tables.checked(work.key)))
            for work in works
        }

    abandon = abort  # its rows and its witness are one transaction

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask what waits, then the witness; neither is ABORTED where both would be here.

        A server that took over with a later timeline has what it has: rows that are not there were
        lost, for good. One with an earlier timeline was left behind, and concludes nothing.

        Raises:
            StoreError: the server does not answer, is another one, or was left behind.
        """
        self.check(works)
        if not works:
            return {}
        keys = [work.key for work in works]

        def ask(connection: Connection) -> tuple[int, set[str], set[str]]:
            row = standing(connection, self._tables, self._mark)
            open_ = waiting(connection, self._tables, keys)
            return row.floor_ms, open_, witnessed(connection, self._tables, keys)

        floor_ms, open_, there = self._session.run("asking for outcomes", ask)
        return {
            work.identity: Outcome.OPEN
            if work.key in open_
            else Outcome.COMMITTED
            if work.key in there
            else absent(work, floor_ms, self._session.history, self._session.place)
            for work in works
        }

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List what waits under the name, in this database."""

        def ask(connection: Connection) -> list[tuple[Any, ...]]:
            standing(connection, self._tables, self._mark)
            return listed(connection, self._tables)

        known = {work.key for work in besides}
        return tuple(
            OpenWork(KIND, self._name, key, at_ms, None, (target,) if target else ())
            for key, at_ms, target in sorted(self._session.run("listing what waits", ask))
            if self._tables.is_own(key) and key not in known
        )

    def claim(self, location: str) -> None:
        """Own the name in this database: the first one to write it does."""
        self._ledger.claim(location)

    def require_owner(
        self,
        location: str,
        *,
        newest_planned: int | None,
        decisions_of: Callable[[int], Sequence[Decision]],
    ) -> None:
        """Ask the database, also whether it still has what was delivered last."""
        self._ledger.require_owner(
            location, newest_planned=newest_planned, decisions_of=decisions_of
        )

    def note(self, decision: Decision) -> None:
        """Written, and durable, when this returns."""
        self._ledger.note(decision)

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def _above_floor(self, works: Sequence[PreparedWork]) -> list[PreparedWork]:
        row = self._session.run(
            "asking for the floor", lambda c: standing(c, self._tables, self._mark)
        )
        return [work for work in works if work.opened_at_ms >= row.floor_ms]

    def _committing(self, work: PreparedWork) -> Callable[[Connection], bool]:
        if work.detail["form"] == STAGED:
            return lambda connection: commit_staged(connection, self._tables, work)
        return lambda connection: commit_prepared(connection, work.key)

    def _aborting(self, key: str) -> Callable[[Connection], bool]:
        return lambda connection: (
            rollback_prepared(connection, key) or drop_staged(connection, self._tables, key)
        )


def made(
    dsn: str,
    *,
    gid_prefix: str,
    name: str,
    schema: str,
    target: str = "",
    timeout_s: float = 30.0,
) -> PostgresParticipant:
    """The participant of a sink that starts: its tables are made if they are not there yet.

    Raises:
        ConfigurationError: the connection or a right is wrong.
        StoreError: the database does not answer.
    """
    session = Session(checked_dsn(dsn), timeout_s=timeout_s)
    try:
        tables = Tables(schema, name_of(gid_prefix, name))
        mark = make_tables(session, tables)
    except BaseException:
        session.close()
        raise
    return PostgresParticipant(session, tables, name=name, mark=mark, target=target)


def connect(
    member: Member,
    how: object,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float = 30.0,
) -> PostgresParticipant:
    """Reach the database of ``member`` by ``how``: a connection string, or a dict of keywords.

    Raises:
        ConfigurationError: nothing says how, or the address is not one of PostgreSQL.
        StoreError: the database does not answer, or is another one.
    """
    del store
    address = member.address
    if not address.keys() >= {"name", "schema", "mark"}:
        raise ConfigurationError(f"{member}: eos/pipeline.json is not of postgres.")
    if not how:
        raise ConfigurationError(
            f"{member}: give how to reach its database, by its name or its kind, such as "
            "reach={'postgres': 'host=… dbname=… user=…'}; the checkpoint holds no passwords."
        )
    session = Session(checked_dsn(how), timeout_s=timeout_s)
    tables = Tables(address["schema"], address["name"])
    try:
        session.run("looking for the pipeline", lambda c: standing(c, tables, address["mark"]))
    except BaseException:
        session.close()
        raise
    return PostgresParticipant(session, tables, name=member.name, mark=address["mark"])

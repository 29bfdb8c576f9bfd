"""PostgreSQL as a participant: a task's rows are one transaction, and its witness is one of them.

Two forms, which may both be in flight: ``prepared`` (``PREPARE TRANSACTION``, whose gid is the
key) and ``staged`` (rows in a table of the work's own, moved by one transaction). A witness that is
not there means ABORTED only on the server that the work was prepared on, or one that took over from
it; see :meth:`PostgresParticipant.absent`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.closing import closed_on_error
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.postgres.ledger import (
    STAGED,
    PostgresOwnershipTable,
    PostgresTableNames,
    absent,
    check_detail,
    commit_prepared,
    commit_staged,
    drop_staged,
    make_tables,
    rollback_prepared,
)
from airflow_eos.kinds.postgres.session import PostgresConnection, checked_dsn
from airflow_eos.kinds.sql.ledger import name_of
from airflow_eos.kinds.sql.participant import SqlParticipant
from airflow_eos.protocol.decision import Outcome, PreparedWork
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

KIND = "postgres"


class PostgresParticipant(SqlParticipant):
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        session: to the database; closed with this.
        tables: of the name under which all of it goes.
        name: the participant's name in decisions.
        mark: the random id of the name in this database, which another one does not have.
        target: the table, for people.
    """

    _session: PostgresConnection
    kind = KIND
    where_it_waits = "pg_prepared_xacts"

    def __init__(
        self,
        session: PostgresConnection,
        tables: PostgresTableNames,
        *,
        name: str,
        mark: str,
        target: str = "",
    ) -> None:
        super().__init__(
            session, PostgresOwnershipTable(session, tables, mark), keys=tables, name=name
        )
        self._tables = tables
        self._mark = mark
        self._target = target

    @property
    def members(self) -> tuple[Member, ...]:
        """By the mark in the database, which hosts and upgrades do not change."""
        address = {"name": self._tables.name, "schema": self._tables.schema, "mark": self._mark}
        target = f"postgres:{self._session.place} {self._target}".strip()
        return (Member(self._name, KIND, address, target),)

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        check_detail(work)

    def end(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.end`."""
        if work.detail["form"] == STAGED:
            self._session.run("committing", lambda c: commit_staged(c, self._tables, work))
        else:
            self._session.run("committing", lambda c: commit_prepared(c, work.key))

    def remove(self, key: str) -> bool:
        """See :meth:`SqlParticipant.remove`."""
        return self._session.run(
            "rolling back",
            lambda c: rollback_prepared(c, key) or drop_staged(c, self._tables, key),
        )

    def absent(self, work: PreparedWork) -> Outcome:
        """ABORTED where both would be here.

        A server that took over with a later timeline has what it has: rows that are not there were
        lost, for good. One with an earlier timeline was left behind, and concludes nothing.
        """
        return absent(work, self._session.history, self._session.place)


def made(
    dsn: str,
    *,
    gid_prefix: str,
    name: str,
    schema: str,
    target: str = "",
    timeout_s: float = 30.0,
    lock_timeout_s: float = 30.0,
) -> PostgresParticipant:
    """The participant of a sink that starts: its tables are made if they are not there yet.

    Raises:
        ConfigurationError: the connection or a right is wrong.
        StoreError: the database does not answer.
    """
    opened = PostgresConnection(
        checked_dsn(dsn), timeout_s=timeout_s, lock_timeout_s=lock_timeout_s
    )
    with closed_on_error(opened) as session:
        tables = PostgresTableNames(schema, name_of(gid_prefix, name))
        mark = make_tables(session, tables)
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
    session = PostgresConnection(checked_dsn(how), timeout_s=timeout_s)
    tables = PostgresTableNames(address["schema"], address["name"])
    participant = PostgresParticipant(session, tables, name=member.name, mark=address["mark"])
    return participant.reached()

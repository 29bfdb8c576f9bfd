"""MySQL or MariaDB as a participant: a task's rows wait in a table, one transaction moves them.

A witness that is not there means ABORTED on the database that the work was staged in. A replica
that took over and lagged has lost work, or witnesses: what it does not have was lost, for good, and
that the last delivered batch is there is looked for at each start. A server that was left behind
must be read-only, as those who fail over make it: nothing here can tell it from the primary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.closing import closed_on_error
from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.kinds.mysql.ledger import (
    STAGED,
    MySqlOwnershipTable,
    MySqlTableNames,
    commit_staged,
    drop_staged,
    make_tables,
)
from airflow_eos.kinds.mysql.session import MySqlConnection
from airflow_eos.kinds.sql.ledger import name_of
from airflow_eos.kinds.sql.participant import SqlParticipant
from airflow_eos.kinds.upsert.reach import as_text
from airflow_eos.protocol.decision import Outcome, PreparedWork
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore

KIND = "mysql"
FORM = "staged"


class MySqlParticipant(SqlParticipant):
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        session: to the database; closed with this.
        tables: of the name under which all of it goes.
        name: the participant's name in decisions.
        mark: the random id of the name in this database, which another one does not have.
        target: the table, for people.
    """

    _session: MySqlConnection
    kind = KIND
    where_it_waits = STAGED

    def __init__(
        self,
        session: MySqlConnection,
        tables: MySqlTableNames,
        *,
        name: str,
        mark: str,
        target: str = "",
    ) -> None:
        super().__init__(
            session, MySqlOwnershipTable(session, tables, mark), keys=tables, name=name
        )
        self._tables = tables
        self._mark = mark
        self._target = target

    @property
    def members(self) -> tuple[Member, ...]:
        """By the mark in the database, which hosts and upgrades do not change."""
        address = {"name": self._tables.name, "mark": self._mark}
        target = f"mysql:{self._session.place} {self._target}".strip()
        return (Member(self._name, KIND, address, target),)

    def check_detail(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.check_detail`."""
        if work.detail.get("form") != FORM:
            raise CheckpointFormatError(
                f"Work {work.identity} has the detail {work.detail}: expected form ({FORM}). Was "
                "the checkpoint written by a newer release? Then use that one."
            )

    def end(self, work: PreparedWork) -> None:
        """See :meth:`SqlParticipant.end`."""
        self._session.run("committing", lambda c: commit_staged(c, self._tables, work))

    def remove(self, key: str) -> bool:
        """See :meth:`SqlParticipant.remove`."""
        return self._session.run("removing rows", lambda c: drop_staged(c, self._tables, key))

    def absent(self, work: PreparedWork) -> Outcome:
        """See :meth:`SqlParticipant.absent`, and above."""
        del work
        return Outcome.ABORTED


def made(
    url: str,
    *,
    prefix: str,
    name: str,
    target: str = "",
    timeout_s: float = 30.0,
    lock_timeout_s: float = 30.0,
) -> MySqlParticipant:
    """The participant of a sink that starts: its tables are made if they are not there yet.

    Raises:
        ConfigurationError: the connection or a right is wrong.
        StoreError: the database does not answer.
    """
    opened = MySqlConnection(url, timeout_s=timeout_s, lock_timeout_s=lock_timeout_s)
    with closed_on_error(opened) as session:
        tables = MySqlTableNames(name_of(prefix, name, called="prefix"))
        mark = make_tables(session, tables)
    return MySqlParticipant(session, tables, name=name, mark=mark, target=target)


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> MySqlParticipant:
    """Reach the database of ``member`` by ``how``: a URL, or its parts as a mapping.

    Raises:
        ConfigurationError: nothing says how, or the address is not one of MySQL.
        StoreError: the database does not answer, or is another one.
    """
    del store
    address = member.address
    if not address.keys() >= {"name", "mark"}:
        raise ConfigurationError(f"{member}: eos/pipeline.json is not of mysql.")
    url = as_text("mysql", how)
    if url is None:
        raise ConfigurationError(
            f"{member}: give how to reach its database, by its name or its kind, such as "
            "reach={'mysql': 'mysql://user:password@host:3306/database'}; the checkpoint holds no "
            "passwords."
        )
    session = MySqlConnection(url, timeout_s=timeout_s)
    participant = MySqlParticipant(
        session, MySqlTableNames(address["name"]), name=member.name, mark=address["mark"]
    )
    return participant.reached()

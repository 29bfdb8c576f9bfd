"""The MySQL sink: a task's rows wait in a table of their own, and one transaction moves them.

Inserts only. The table of a task is made ``LIKE`` the target, with its keys: so what one task can
see is refused before the decision. Every row is written twice, and nothing holds locks meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from airflow_eos.arguments import take_spans
from airflow_eos.closing import closed_on_error
from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.delivery.workers import check_workers
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.mysql.participant import MySqlParticipant, MySqlTableNames, made
from airflow_eos.kinds.mysql.session import Connection, MySqlConnection, printable
from airflow_eos.kinds.mysql.task import check_columns, columns_of, may_refuse, require_table
from airflow_eos.kinds.sql.participant import FORETOLD, HINT, name_of
from airflow_eos.kinds.sql.servers import as_text, parts_of
from airflow_eos.kinds.sql.sink import TableSink
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, check_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.delivery.port import TaskWriter

T = TypeVar("T")
log = structlog.get_logger(__name__)
TASK_MODULES = ("pyarrow", "numpy", "msgspec", "pymysql", "airflow_eos.kinds.mysql.task")


@dataclass(frozen=True)
class MySqlSink(TableSink):
    """The MySQL sink: table and settings.

    Attributes:
        url: ``mysql://user:password@host:3306/database``; a password in percent-encoding. One
            user for driver, tasks and recovery.
        table: its name in that database; InnoDB's.
        prefix: of the keys of its work; owned by one checkpoint.
        lock_timeout: how long a statement waits for a lock of another transaction, of tasks and of
            the driver; a recovery waits 30 seconds.
        answer_within: how long the server may be gone before a step fails.
        name: the participant's name in the decisions of the pipeline.
    """

    url: str = field(repr=False)
    table: str
    prefix: str
    lock_timeout: timedelta = timedelta(seconds=30)
    answer_within: timedelta = timedelta(seconds=30)
    name: str = DEFAULT_PARTICIPANT

    def __post_init__(self) -> None:
        take_spans(self, "lock_timeout", "answer_within")
        check_name(self.name)
        name_of(self.prefix, self.name, called="prefix")
        parts_of(self.url)

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=TASK_MODULES)

    def connect(self, interval: timedelta) -> MySqlParticipant:
        """See :meth:`Sink.connect`; nothing ends staged work but a decision, however late."""
        del interval
        participant = made(
            self.url,
            prefix=self.prefix,
            name=self.name,
            target=self.table,
            timeout_s=self.answer_within.total_seconds(),
            lock_timeout_s=self.lock_timeout.total_seconds(),
        )
        with closed_on_error(participant):
            self._ask("looking at the table", self._require)
        return participant

    @property
    def place(self) -> str:
        """See :attr:`TableSink.place`."""
        return printable(self.url)

    def check_types(self, types: dict[str, str]) -> None:
        """See :meth:`TableSink.check_types`."""
        found = self._ask("looking at columns", lambda c: columns_of(c, self.table))
        if not found:
            raise ConfigurationError(
                f"There is no table {self.table!r} in {self.place}, or its user cannot see it. "
                "Create it first; the sink creates no tables of yours."
            )
        check_columns(types, found, self.table)

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """The writer of one task, in a Spark worker."""
        from airflow_eos.kinds.mysql.task import RowsOfTask

        return RowsOfTask(self, task, attempt, transactional=transactional)

    def _require(self, connection: Connection) -> None:
        tables = MySqlTableNames(name_of(self.prefix, self.name, called="prefix"))
        require_table(connection, self.table, tables.holding(tables.new_key(0, 0)))
        if by := may_refuse(connection, self.table):
            log.warning(FORETOLD, table=self.table, by="; ".join(by), hint=HINT)

    def _ask(self, doing: str, look: Callable[[Connection], T]) -> T:
        with closing(
            MySqlConnection(self.url, timeout_s=self.answer_within.total_seconds())
        ) as session:
            return session.run(doing, look)


# --- configuration --------------------------------------------------------------------------------


class MySqlOptions(SinkOptions, frozen=True):
    """A table, with inserts only; the times are text, such as ``30 seconds``."""

    table: str
    prefix: str | None = None
    lock_timeout: str | None = None
    answer_within: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> MySqlSink:
        """See :meth:`SinkOptions.sink`."""
        url = as_text("mysql", how)
        if url is None:
            raise unreached("a URL of mysql, or an object of its parts")
        given = {"prefix": app.prefix, **self.given()}
        return MySqlSink(url, name=name, **given)


OPTIONS = MySqlOptions

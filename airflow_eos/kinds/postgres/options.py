"""``postgres``: see :class:`~airflow_eos.kinds.postgres.sink.PostgresSink`."""

from __future__ import annotations

from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.kinds.postgres.session import checked_dsn
from airflow_eos.kinds.postgres.sink import PostgresSink


class PostgresOptions(SinkOptions, frozen=True):
    """A table, with inserts only; the times are text, such as ``30 seconds``."""

    table: str
    gid_prefix: str | None = None
    two_phase: bool | None = None
    tasks: int | None = None
    lock_timeout: str | None = None
    answer_within: str | None = None
    schema: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> PostgresSink:
        """See :meth:`SinkOptions.sink`."""
        if not how:
            raise unreached("libpq's 'host=… dbname=… user=…', a URL, or an object of its keywords")
        given = {"gid_prefix": app.prefix, **self.given()}
        return PostgresSink(checked_dsn(how), name=name, **given)


OPTIONS = PostgresOptions

"""``postgres``: see :class:`~airflow_eos.sinks.postgres.sink.PostgresSink`."""

from __future__ import annotations

from typing import Any

from airflow_eos.participants.postgres.session import checked_dsn
from airflow_eos.sinks.kinds.port import AppFacts, SinkOptions, unreached
from airflow_eos.sinks.postgres.sink import PostgresSink
from airflow_eos.sinks.trigger import parse_interval


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
        times = {each: given[each] for each in ("lock_timeout", "answer_within") if each in given}
        given |= {each: parse_interval(text) for each, text in times.items()}
        return PostgresSink(checked_dsn(how), name=name, **given)

"""``mysql``: see :class:`~airflow_eos.kinds.mysql.sink.MySqlSink`."""

from __future__ import annotations

from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.kinds.mysql.sink import MySqlSink
from airflow_eos.kinds.upsert.reach import as_text


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

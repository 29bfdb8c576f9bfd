"""``upsert``: see :class:`~airflow_eos.kinds.upsert.sink.UpsertSink`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.kinds.upsert.reach import as_text
from airflow_eos.kinds.upsert.sink import (
    HBaseUpsert,
    MySqlUpsert,
    PostgresUpsert,
    RedisUpsert,
    UpsertSink,
    UpsertTarget,
)

_TARGETS: dict[str, Callable[[str, str], UpsertTarget]] = {
    "postgres": PostgresUpsert,
    "mysql": MySqlUpsert,
    "redis": RedisUpsert,
    "hbase": HBaseUpsert,
}


class UpsertOptions(SinkOptions, frozen=True):
    """Absolute values by key; ``target`` is a table, a prefix (Redis), ``table/family`` (HBase)."""

    system: Literal["postgres", "mysql", "redis", "hbase"]
    target: str
    key: tuple[str, ...]
    deleted: str | None = None
    staged: bool = True

    def sink(self, name: str, app: AppFacts, how: Any) -> UpsertSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        told = as_text(self.system, how)
        if told is None:
            raise unreached(f"a URL of {self.system}, or an object of its parts")
        target = _TARGETS[self.system](told, self.target)
        return UpsertSink(target, self.key, deleted=self.deleted, staged=self.staged, name=name)


OPTIONS = UpsertOptions

"""``wal``: see :class:`~airflow_eos.kinds.wal.sink.WriteAheadSink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_eos.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.kinds.wal.sink import WriteAheadSink


class WriteAheadOptions(SinkOptions, frozen=True):
    """A function of a user's own; it is named where a recovery finds it too."""

    def sink(self, name: str, app: AppFacts, how: Any) -> WriteAheadSink:
        """See :meth:`SinkOptions.sink`."""
        del app
        asked = {"deliver": how} if isinstance(how, str) else how
        deliver = asked.get("deliver") if isinstance(asked, Mapping) else None
        if not isinstance(asked, Mapping) or not isinstance(deliver, str):
            raise unreached("'package.module:function', or {'deliver': that, 'reach': …}")
        return WriteAheadSink(deliver, name=name, reach=asked.get("reach"))


OPTIONS = WriteAheadOptions

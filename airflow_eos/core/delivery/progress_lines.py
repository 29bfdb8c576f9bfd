"""The lines in which a driver says what it delivers: batch, rows, seconds and lag."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_eos.core.log import Log

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = Log(__name__)

_FIRST, _FIRST_S, _EVERY_S = 10, 10.0, 60.0
"""After each of the first ten lines none comes for ten seconds, then for a minute each."""
_LAG = "maxOffsetsBehindLatest"


class ProgressLines:
    """Says the newest batch that is delivered, in one line, where one is due."""

    def __init__(self) -> None:
        self._newest = -1
        self._said = 0
        self._due_at = time.monotonic()

    def say(self, query: StreamingQuery | None, *, at_once: bool = False) -> None:
        """Log a line on the newest batch that was not told yet; ``at_once``: also before its time.

        Asks Spark only where a line is due.
        """
        now = time.monotonic()
        if query is None or not (at_once or now >= self._due_at):
            return
        progress = query.lastProgress
        line = None if progress is None else line_of(json.loads(progress.json))
        if line is None or line["batch"] <= self._newest:
            return
        log.info("batch_delivered", **line)
        self._newest, self._said = line["batch"], self._said + 1
        self._due_at = now + (_FIRST_S if self._said < _FIRST else _EVERY_S)


def line_of(progress: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a line says of Spark's progress (``StreamingQueryProgress``).

    None where no batch ran: Spark tells of an idle query, too. ``lag`` is of all sources that say
    how many rows they are behind, as Kafka's does.
    """
    times = progress["durationMs"]
    if "addBatch" not in times:
        return None
    behind = [each.get("metrics") or {} for each in progress["sources"]]
    lags = [int(float(each[_LAG])) for each in behind if _LAG in each]
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "seconds": round(times["triggerExecution"] / 1000, 2),
        **({"lag": sum(lags)} if lags else {}),
    }

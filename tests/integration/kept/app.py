"""The app of ``tests/support``, with the sink that its setting ``folder`` names.

``wal:<port>``, ``redis:<url>`` or ``postgres:<dsn>``.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support import app


def sink_of(text: str) -> Any:
    kind, _, rest = text.partition(":")
    if kind == "wal":
        from airflow_eos.sinks.wal import WriteAheadSink

        reach = {"port": int(rest)}
        return WriteAheadSink("tests.integration.kept.endpoint:post", reach=reach)
    from airflow_eos.participants.upsert.postgres import PostgresUpsert
    from airflow_eos.participants.upsert.redis import RedisUpsert
    from airflow_eos.sinks.upsert import UpsertSink

    targets: dict[str, Any] = {"redis": RedisUpsert, "postgres": PostgresUpsert}
    return UpsertSink(targets[kind](rest, "counts"), key=["key"])


if __name__ == "__main__":
    vars(app)["FileSink"] = sink_of
    sys.exit(app.main())

"""The test app with a files sink of any form: ``place`` is its description."""

from __future__ import annotations

import sys

from airflow_eos.sinks import FileSink, Output
from tests.support import app
from tests.support.app import AppSettings

ROWS = [
    "decode(key, 'utf-8') AS key",
    "decode(value, 'utf-8') AS value",
    "right(decode(key, 'utf-8'), 1) AS part",
]


def sink_of(settings: AppSettings) -> list[Output]:
    """The rows as texts, with a column to be partitioned by."""
    sink = FileSink(**settings.place)
    return [Output("orders", sink, rows=ROWS)]


if __name__ == "__main__":
    vars(app)["sink_of"] = sink_of
    sys.exit(app.main())

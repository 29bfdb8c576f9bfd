"""The test app with a PostgreSQL sink: where files would go, ``folder`` is its description."""

from __future__ import annotations

import sys

import msgspec

from airflow_eos.sinks.postgres import PostgresSink
from tests.support import app


def sink_of(description: str) -> PostgresSink:
    """The sink that ``folder`` describes in JSON."""
    return PostgresSink(**msgspec.json.decode(description))


if __name__ == "__main__":
    app.FileSink = sink_of  # type: ignore[assignment,attr-defined]
    sys.exit(app.main())

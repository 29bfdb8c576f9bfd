"""PostgreSQL as a participant: by prepared transactions, or by rows in staging tables."""

from __future__ import annotations

from importlib.util import find_spec

from airflow_eos.errors import ConfigurationError

if find_spec("psycopg") is None:  # pragma: no cover - the extra is there where tests run
    raise ConfigurationError(
        "The library 'psycopg' is missing here: install airflow-provider-eos[postgres] on the "
        "driver, on the executors and where recovery runs."
    )

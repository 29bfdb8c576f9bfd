"""MySQL and MariaDB as a participant: rows wait in the checkpoint."""

from __future__ import annotations

from importlib.util import find_spec

from airflow_eos.errors import ConfigurationError

if find_spec("pymysql") is None:  # pragma: no cover - the extra is there where tests run
    raise ConfigurationError(
        "The library 'PyMySQL' is missing here: install airflow-provider-eos[mysql] on the driver, "
        "on the executors and where recovery runs."
    )

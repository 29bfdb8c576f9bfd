"""The waiting half of the deferrable sensors."""

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here

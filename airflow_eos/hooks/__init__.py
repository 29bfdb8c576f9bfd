"""Thin hooks on Airflow's own ``kafka`` and ``spark`` connections; no new connection type."""

from airflow_eos import airflow_floor as _airflow_floor  # noqa: F401 - an old one ends here

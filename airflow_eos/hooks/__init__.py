"""Thin hooks on Airflow's own ``kafka`` and ``spark`` connections; no new connection type."""

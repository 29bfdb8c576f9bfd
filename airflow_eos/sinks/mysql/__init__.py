"""The MySQL sink: rows staged by statements that Arrow wrote, moved once they are decided."""

from __future__ import annotations

from airflow_eos.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]

"""The PostgreSQL sink: COPY from Arrow, made durable and left open by each task."""

from __future__ import annotations

from airflow_eos.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]

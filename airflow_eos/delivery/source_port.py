"""A source of ours in the place of a DataFrame: its rows, and a way for tasks to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeGuard

from airflow_eos.delivery.outputs import OneSink
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.checkpoint.topics import TopicsRead
    from airflow_eos.delivery.outputs import Outputs
    from airflow_eos.delivery.port import Sink
    from airflow_eos.delivery.task import SinkTask


class OpenedSource(Protocol):
    """The source of one query."""

    @property
    def frame(self) -> DataFrame:
        """A streaming DataFrame of its rows, as any other."""
        ...

    def fused(self, sink: Sink) -> Callable[[SinkTask], DataFrame] | None:
        """What runs a sink's task where the rows are read; None where only Spark can bring them."""
        ...

    def topics(self, resources: ExitStack) -> TopicsRead:
        """Who answers for the topics that it reads."""
        ...


class OwnSource(Protocol):
    """What a user gives: a value."""

    def opened(self, spark: SparkSession, store: CheckpointStore) -> OpenedSource:
        """Begin to read, for the pipeline of that checkpoint."""
        ...


def is_own(rows: DataFrame | OwnSource) -> TypeGuard[OwnSource]:
    """Asked of the class: a DataFrame has its columns as attributes."""
    return hasattr(type(rows), "opened")


def active_session() -> SparkSession:
    """The session in which a source is read that has none of its own.

    Raises:
        ConfigurationError: there is none.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or not hasattr(session, "_jsparkSession"):
        raise ConfigurationError(
            "No Spark session is active in this thread, or it is Spark Connect's: expected that of "
            "a classic driver. Make one first (SparkSession.builder.getOrCreate())."
        )
    return session


def beside(own: OpenedSource | None, sink: OneSink | Outputs) -> OneSink | Outputs:
    """The sink, whose tasks read for themselves where the source can and the sink is one."""
    if own is None or not isinstance(sink, OneSink):
        return sink
    return replace(sink, fused=own.fused(sink.sink))

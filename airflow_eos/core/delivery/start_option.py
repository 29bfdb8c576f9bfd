"""A start of a query, as its options see it, and the points at which it asks them.

A start asks each option, in order: ``examine``, before it opens a connection; ``before_term``, with
open connections; then it takes its term; ``after_term``, since a former driver may have come
between. What an option opens it hands to ``Start.resources``, which closes in the reverse order. An
option that follows the batches wraps the sink that they are written with.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_eos.core.delivery.batch import RunningPlan
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.core.delivery.spark_session import deploy_mode, namespace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.core.checkpoint import CheckpointStore, Tenure
    from airflow_eos.core.checkpoint.drain import Beginning
    from airflow_eos.core.delivery.observer import Observer
    from airflow_eos.core.delivery.outputs import OneSink, Outputs
    from airflow_eos.core.delivery.port import BatchFunction, BatchSink
    from airflow_eos.core.delivery.source import QueryInput
    from airflow_eos.core.delivery.spark_session import QuerySettings


class StartOption:
    """An option of a start; each of these may do nothing."""

    def examine(self, start: Start) -> None:
        """Refuse what needs no connection to be seen; change nothing."""

    def before_term(self, start: Start) -> None:
        """Open connections and refuse; a standby asks as well, while another driver still runs."""

    def after_term(self, start: Start, tenure: Tenure) -> None:
        """Refuse what has come between; from here on a failure is told by the heartbeat."""

    def wrap(self, _start: Start, sink: BatchSink) -> BatchSink:
        """Return the sink of the batches, with what this option does around each."""
        return sink


class GuaranteeOption(StartOption):
    """Exactly one option of a start: it takes the term, and makes the function of the batches."""

    def refuse(self, store: CheckpointStore) -> None:
        """Refuse a checkpoint on which another guarantee has begun; before the term and after."""
        raise NotImplementedError

    def ask_ahead(self, start: Start) -> None:
        """Ask what takes time, for a standby, while the driver before it still ends."""

    def take_term(self, start: Start, after: int | None) -> Tenure:
        """Take the term, which stops a running driver, and recover; ``after``: see there."""
        raise NotImplementedError

    def batch(self, start: Start, tenure: Tenure) -> BatchFunction:
        """Return the function of the query's batches."""
        raise NotImplementedError


@dataclass
class Start:
    """A start of a query.

    Attributes:
        read: the input of the query.
        sink: where the rows go, bound to the checkpoint.
        observer: told of requests, decisions and phases, for the figures; None: nobody is.
        began: when the start began.
        options: in the order in which they are asked.
        guarantee: asked after the others.
        resources: closes what the options have opened.
        plan: the batch that Spark evaluates, once the query runs.
        workers_answer: waits until Spark's workers have shown that they can run the tasks.
    """

    spark: SparkSession
    store: CheckpointStore
    settings: QuerySettings
    read: QueryInput
    sink: OneSink | Outputs
    observer: Observer | None = None
    began: Beginning | None = None
    options: Sequence[StartOption] = ()
    guarantee: GuaranteeOption = field(default_factory=GuaranteeOption)
    resources: ExitStack = field(default_factory=ExitStack)
    plan: RunningPlan = field(default_factory=RunningPlan)
    workers_answer: Callable[[], None] = lambda: None

    @cached_property
    def driver(self) -> str:
        """This driver's name, as terms and decisions show it to people."""
        application = self.spark.sparkContext.applicationId
        return f"driver {application} on {socket.gethostname()}:{os.getpid()}"

    @cached_property
    def heartbeat(self) -> BeatLoop:
        """The driver's heartbeat, made when the start runs: a standby has none."""
        return BeatLoop(
            self.store,
            application_id=self.spark.sparkContext.applicationId,
            trigger=self.settings.interval,
            master=str(self.spark.sparkContext.master),
            deploy_mode=deploy_mode(self.spark),
            namespace=namespace(self.spark),
            spark_ui=self.spark.sparkContext.uiWebUrl or "",
            observer=self.observer,
            began=self.began,
        )

    def wrapped(self, sink: BatchSink) -> BatchSink:
        """Return ``sink``, wrapped by each option."""
        for option in self.options:
            sink = option.wrap(self, sink)
        return sink

    def close(self) -> None:
        """Close what the options have opened."""
        self.resources.close()

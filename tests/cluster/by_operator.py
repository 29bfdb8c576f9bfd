"""A stream that ``SparkStreamingOperator`` itself submits, watches, recovers and starts again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from airflow_eos.core.checkpoint import CheckpointStore, Heartbeat, read_heartbeat
from airflow_eos.operators import SparkStreamingOperator
from tests.cluster.stream import PATIENCE_S, Stream
from tests.integration.airflow.one_try import task_instance

Strike = Callable[[Callable[[], bool]], None]
"""Kills the driver where a failpoint stops it, while the operator (``True``) is at it."""


def operator(one: Stream, told: Mapping[str, str], **more: Any) -> SparkStreamingOperator:
    """The task that reads all there is; ``told`` are variables, ``more`` is of the cluster."""
    return SparkStreamingOperator(
        task_id="copy",
        application_args=one.arguments(),
        env_vars=dict(told),
        checkpoint_location=one.checkpoint,
        transactional_id_prefix=one.name,
        batch_within=timedelta(seconds=30),
        transaction_timeout=timedelta(minutes=7),
        patience=timedelta(seconds=30),
        restart_delay=timedelta(0),
        cancel="kill",
        **more,
    )


def struck(one: Stream, task: SparkStreamingOperator, strike: Strike, kill: str) -> Heartbeat:
    """Run the task through one death of its driver; judges the rows, gives the last heartbeat."""
    with ThreadPoolExecutor(1) as worker:
        run = worker.submit(task.execute, task_instance())
        try:
            strike(lambda: not run.done())
            one.feed(300)
            ended = run.result(PATIENCE_S)
        except BaseException:
            task.on_kill()
            raise
    assert (ended["end"], ended["restarts"]) == ("succeeded", 1)
    one.judge(kill)
    beat = read_heartbeat(CheckpointStore.open(one.checkpoint))
    assert beat is not None
    assert beat.phase == "stopped"
    return beat

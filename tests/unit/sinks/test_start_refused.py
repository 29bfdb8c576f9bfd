"""A start that is refused: by us before anything is taken, or by Spark once we have begun."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog, Verdict
from airflow_eos.checkpoint.backend import SPENT
from airflow_eos.checkpoint.heartbeat import read_heartbeat
from airflow_eos.delivery import start
from airflow_eos.delivery.start import make_batch_function
from airflow_eos.delivery.weaker_guarantees import AtLeastOnceBatch
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, OwnershipError
from airflow_eos.protocol.decision import PreparedWork


def test_the_last_heartbeat_of_a_query_that_spark_refused_is_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = MagicMock()
    df.sparkSession.sparkContext = SimpleNamespace(applicationId="local-1", master="local")
    df.sparkSession.conf.get.return_value = "client"
    writer = df.writeStream.outputMode.return_value.foreachBatch.return_value
    started = writer.option.return_value.trigger.return_value.start
    started.side_effect = RuntimeError("Spark refuses")
    monkeypatch.setattr(start, "check_sources", lambda *_: ())
    monkeypatch.setattr(
        start, "make_batch_function", lambda *_: MagicMock(streamed=lambda rows: rows)
    )
    with pytest.raises(RuntimeError, match="Spark refuses"):
        start.start_exactly_once(
            df,
            MagicMock(),
            checkpoint_location=f"file://{tmp_path}",
            trigger={"availableNow": True},
        )
    beat = read_heartbeat(CheckpointStore.open(f"file://{tmp_path}"))
    assert beat is not None
    assert (beat.phase, beat.end, beat.reason) == (
        "failed",
        "failed",
        "RuntimeError: see the driver's log",
    )


def test_what_spark_would_refuse_is_refused_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The term stops whoever runs now. With real Spark: test_refused_before_the_term.py."""
    df = MagicMock()
    running = SimpleNamespace(name="healthy")
    df.selectExpr.return_value.sparkSession.streams.active = [running]
    take = MagicMock()
    monkeypatch.setattr(start, "make_batch_function", take)
    with pytest.raises(ConfigurationError, match="name 'healthy' is running"):
        start.start_exactly_once(
            df, MagicMock(), checkpoint_location=f"file://{tmp_path}", query_name="healthy"
        )
    take.assert_not_called()


def test_what_a_sink_refuses_is_refused_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output topic that is missing, a driver that is not installed."""
    sink = MagicMock()
    sink.bound.return_value.check.side_effect = ConfigurationError("no driver here")
    df = MagicMock()
    df.selectExpr.return_value.sparkSession.streams.active = []
    take = MagicMock()
    monkeypatch.setattr(start, "make_batch_function", take)
    with pytest.raises(ConfigurationError, match="no driver here"):
        start.start_exactly_once(df, sink, checkpoint_location=f"file://{tmp_path}")
    take.assert_not_called()


_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{}'


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_promise_is_not_written_at_once_by_another_guarantee(
    tmp_path: Path, verdict: Verdict
) -> None:
    """A part of it may be visible, and a recovery can commit the rest at any later time."""
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", _OFFSETS.encode())
    work = PreparedWork("kafka", "sink", "etl-0-0-7-3", 2, "0" * 32, 1_000, 60_000, {})
    DecisionLog(store).record(
        Decision(
            batch_id=0,
            attempt=1,
            verdict=verdict,
            works=(work,) if verdict is Verdict.COMMIT else (),
            offsets=_OFFSETS if verdict is Verdict.COMMIT else "",
            decided_by="driver 1",
            decided_at_ms=1,
            nonce="0" * 32,
            reason="" if verdict is Verdict.COMMIT else "a task failed",
        )
    )

    def begin() -> Any:
        sink = MagicMock(guarantee="at_least_once")
        return make_batch_function(MagicMock(), sink, store, *([MagicMock()] * 5))

    if verdict is Verdict.COMMIT:
        with pytest.raises(OwnershipError, match="Start once more with exactly_once"):
            begin()
        store.put("commits/0", b"v1\n{}")  # Spark has seen it through
    assert isinstance(begin(), AtLeastOnceBatch)


@pytest.mark.parametrize("may_be_visible", [False, True])
def test_topics_are_watched_at_most_once_as_well(tmp_path: Path, may_be_visible: bool) -> None:
    """One that was made again would be read on, from offsets that mean other rows."""
    store = CheckpointStore.open(tmp_path)
    if may_be_visible:
        store.put("offsets/0", _OFFSETS.encode())
        store.create(f"{SPENT}/0/mark", b"1")
    watched = MagicMock()
    sink = MagicMock(guarantee="at_most_once")
    batch: Any = make_batch_function(
        MagicMock(), sink, store, lambda _: watched, timedelta(), *([MagicMock()] * 3)
    )
    store.put("offsets/0", _OFFSETS.encode())  # Spark has planned the batch
    batch(MagicMock(), 0)
    assert watched.prepare.called


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_where_the_first_batch_began_is_lost_for_every_guarantee(tmp_path: Path, guarantee) -> None:
    store = CheckpointStore.open(tmp_path)
    store.put("offsets/0", _OFFSETS.encode())
    store.put("sources/0/0", b"")
    heartbeat = MagicMock()
    with pytest.raises(CheckpointFormatError, match="where the first batch began is lost"):
        make_batch_function(
            MagicMock(),
            MagicMock(guarantee=guarantee),
            store,
            MagicMock(),
            timedelta(),
            heartbeat,
            *([MagicMock()] * 2),
        )
    assert not heartbeat.start.called

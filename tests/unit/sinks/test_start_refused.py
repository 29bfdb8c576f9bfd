"""A start that is refused: by us before anything is taken, or by Spark once we have begun."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.liveness import read_heartbeat
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks import start

pytestmark = pytest.mark.unit


def test_the_last_heartbeat_of_a_query_that_spark_refused_is_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = MagicMock()
    df.sparkSession.sparkContext = SimpleNamespace(applicationId="local-1")
    writer = df.writeStream.outputMode.return_value.foreachBatch.return_value
    started = writer.option.return_value.trigger.return_value.start
    started.side_effect = RuntimeError("Spark refuses")
    monkeypatch.setattr(start, "_batch", lambda *_: MagicMock(streamed=lambda rows: rows))
    with pytest.raises(RuntimeError, match="Spark refuses"):
        start.start_exactly_once(
            df,
            MagicMock(),
            checkpoint_location=f"file://{tmp_path}",
            trigger={"availableNow": True},
        )
    beat = read_heartbeat(CheckpointStore.open(f"file://{tmp_path}"))
    assert beat is not None
    assert beat.phase == "failed"


def test_what_spark_would_refuse_is_refused_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The term stops whoever runs now. With real Spark: test_refused_before_the_term.py."""
    df = MagicMock()
    running = SimpleNamespace(name="healthy")
    df.selectExpr.return_value.sparkSession.streams.active = [running]
    take = MagicMock()
    monkeypatch.setattr(start, "_batch", take)
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
    monkeypatch.setattr(start, "_batch", take)
    with pytest.raises(ConfigurationError, match="no driver here"):
        start.start_exactly_once(df, sink, checkpoint_location=f"file://{tmp_path}")
    take.assert_not_called()

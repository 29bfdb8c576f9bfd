"""Spark refuses to start the query after the heartbeat has begun."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.liveness import read_heartbeat
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
    monkeypatch.setattr(start, "check_sources", lambda *_: None)
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

"""A driver says in single lines what it delivers, and no log grows by that."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.delivery.beats import BeatLoop
from airflow_eos.core.delivery.progress_lines import ProgressLines, line_of


def progress(batch: int, *, ran: bool = True, lags: tuple[str | None, ...] = ("3.0",)) -> Any:
    return {
        "batchId": batch,
        "numInputRows": 1000,
        "durationMs": {"triggerExecution": 412, **({"addBatch": 300} if ran else {})},
        "sources": [
            {"metrics": None if lag is None else {"maxOffsetsBehindLatest": lag}} for lag in lags
        ],
    }


@pytest.mark.parametrize(
    ("lags", "lag"), [(("3.0",), {"lag": 3}), (("3", "4.0", None), {"lag": 7}), ((None,), {})]
)
def test_a_line_has_batch_rows_seconds_and_the_lag_of_all_sources_that_know_it(lags, lag):
    said = line_of(progress(7, lags=lags))
    assert said == {"batch": 7, "rows": 1000, "seconds": 0.41, **lag}


def test_an_idle_query_is_no_delivery():
    assert line_of(progress(7, ran=False)) is None


def test_a_day_of_batches_is_a_line_a_minute_and_the_newest_is_said_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    query: Any = SimpleNamespace(lastProgress=None)
    lines = ProgressLines()
    with capture_logs() as said:
        lines.say(query)  # before the first batch
        for second in range(24 * 3600):
            clock[0] = float(second)
            query.lastProgress = SimpleNamespace(json=json.dumps(progress(second)))
            lines.say(query)
        lines.say(query, at_once=True)
        lines.say(query, at_once=True)
    batches = [each["batch"] for each in said]
    assert batches[:3] == [0, 10, 20]
    assert batches[-1] == 24 * 3600 - 1
    assert len(batches) == len(set(batches)) < 24 * 60 + 20


def test_a_line_that_cannot_be_said_loses_no_batch():
    store = CheckpointStore(obstore.store.MemoryStore(), "memory")
    loop = BeatLoop(store, application_id="a", trigger=timedelta(seconds=1))
    query: Any = object()  # not Spark's any more
    loop.follow(query)
    with capture_logs() as said:
        loop._say_progress()
    assert [each["event"] for each in said] == ["progress_not_said"]

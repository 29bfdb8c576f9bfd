"""Transactions that no timer ends (KIP-939): outages, both kinds in one pipeline, what they cost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.kafka.client.cluster import TWO_PHASE_SETTING
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.hazards.direct import Direct, wait_for

OFFERED = {TWO_PHASE_SETTING: "true", "unstable.api.versions.enable": "true"}
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
ALWAYS = {"two_phase": True, "unattended": True}
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({**SOON, **OFFERED}) as running:
        yield running


@pytest.fixture
def pipeline(broker: EmbeddedKafka, tmp_path: Path) -> Direct:
    topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
    return Direct(broker.bootstrap_servers, tmp_path, topic, sink_options=ALWAYS)


def dies(pipeline: Direct, die_at: Callable[[str], None], place: str) -> None:
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")


def test_an_outage_longer_than_the_timeout_loses_no_promise_and_replays_nothing(
    broker: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.timeout = 2 * SECOND
    pipeline.feed_numbers(300)
    dies(pipeline, die_at, "decided")
    broker.kill()
    broker.start(1)
    time.sleep(10 * pipeline.timeout.total_seconds())
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.COMMIT, Result.DONE)] * 3
    assert len(pipeline.visible()) == 300
    pipeline.run()
    pipeline.assert_exactly_once()
    promised = [each for each in pipeline.decisions.of_batch(0) if each.works]
    assert [[work.timeout_ms for work in each.works] for each in promised] == [[None] * 3]

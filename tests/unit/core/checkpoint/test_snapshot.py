"""A checkpoint as one value: the order in which it is read is part of the proof."""

from __future__ import annotations

from itertools import groupby
from typing import Any, cast

import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore, claim, snapshot, write_heartbeat
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.snapshot import admitted, read_snapshot
from airflow_eos.core.protocol.decision import Outcome, encode, require_own
from airflow_eos.core.protocol.participant import Ownership
from airflow_eos.errors import CheckpointError
from tests.support.pipelines import kafka_member, kafka_pipeline
from tests.unit.core.checkpoint.conftest import TroubledBackend, decision
from tests.unit.core.recovery.facts_of import heartbeat

OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"orders":{"0":7}}'


class Watched(TroubledBackend):
    """Notes which part of the checkpoint is asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get(self, path):
        return self._note(path, super().get)

    def head(self, path):
        return self._note(path, super().head)

    def list_with_delimiter(self, prefix):
        return self._note(prefix, super().list_with_delimiter)

    def _note(self, path, ask):
        self.asked.append("/".join(path.split("/")[: 2 if path.startswith("eos/") else 1]))
        return ask(path)


@pytest.fixture
def watched():
    """Batch 0 is complete, batch 1 in flight and decided; the driver gave a sign of life."""
    backend = Watched()
    store = CheckpointStore(backend, "memory://checkpoint")
    claim(store, kafka_pipeline())
    for batch in (0, 1):
        store.put(f"offsets/{batch}", OFFSETS)
        store.create(f"eos/decisions/{batch}/1.json", encode(decision(batch)))
    store.put("commits/0", b"v1\n{}")
    write_heartbeat(store, heartbeat())
    backend.asked.clear()
    return backend, store


def test_the_decisions_are_read_after_sparks_logs_and_the_heartbeat_last(watched):
    backend, store = watched

    found = read_snapshot(store)

    parts = [part for part, _ in groupby(backend.asked)]
    last_of_spark = max(i for i, part in enumerate(parts) if part in {"offsets", "commits"})
    assert parts.index("eos/decisions") > last_of_spark
    assert parts[-1] == "eos/driver.json"
    assert (found.batch, [each.batch_id for each in found.decisions]) == (1, [1])
    assert (found.state.in_flight, found.heartbeat) == (1, heartbeat())


def test_the_decisions_are_those_of_the_batch_that_was_seen_before(watched):
    _, store = watched

    found = read_snapshot(store, 0)

    assert (found.batch, [each.batch_id for each in found.decisions]) == (0, [0])
    assert found.state.latest_offsets == 1


def test_a_batch_that_was_seen_before_and_is_gone_betrays_an_older_copy(watched):
    _, store = watched

    with pytest.raises(CheckpointError, match="batch 2 was promised or seen before"):
        read_snapshot(store, 2)


def test_a_batch_that_was_decided_and_is_not_planned_betrays_an_older_copy(watched):
    _, store = watched
    store.create("eos/decisions/2/1.json", encode(decision(2)))

    with pytest.raises(CheckpointError, match="batch 2 was promised"):
        read_snapshot(store)


def test_a_batch_that_is_planned_and_decided_meanwhile_betrays_none(watched, monkeypatch):
    _, store = watched
    before = read_state(store)
    store.put("offsets/2", OFFSETS)
    store.create("eos/decisions/2/1.json", encode(decision(2)))
    monkeypatch.setattr(snapshot, "read_state", lambda _: before)

    assert read_snapshot(store).batch == 1


class Forgetful:
    """One of two outputs, whose system remembers nothing of the pipeline."""

    def __init__(self, name: str, became: Outcome) -> None:
        self.members = (replace(kafka_member(), name=name),)
        self.became = became

    def ownership(self, _asking):
        return (Ownership("prefix 'etl'"),)

    def require_settled(self, promise, said): ...

    def outcome(self, works):
        require_own(works, "kafka", self.members[0].name)
        return {work.identity: self.became for work in works}


def test_who_looks_at_one_output_alone_asks_nothing_of_the_others():
    """A preflight, or the doctor, of a prefix: the start itself asks all, and is let in."""
    store = CheckpointStore(MemoryStore(), "memory://checkpoint")
    claim(store, kafka_pipeline())
    [work] = decision(0).works
    both = [replace(work, participant=name) for name in ("orders", "totals")]
    store.put("offsets/0", OFFSETS)
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.create("eos/decisions/0/1.json", encode(decision(0, works=tuple(both))))
    found, _ = admitted(store, cast("Any", Forgetful("orders", Outcome.COMMITTED)))
    assert (found.error, len(found.remarks)) == (None, 1)
    found, _ = admitted(store, cast("Any", Forgetful("totals", Outcome.ABORTED)))
    assert "2 rows of batch 0" in str(found.error)

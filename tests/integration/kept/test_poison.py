"""Decided rows that can never be applied hold a pipeline up until a person gives them up."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_eos.checkpoint import CheckpointStore, DecisionLog, PipelineIdentity, claim, rulings
from airflow_eos.checkpoint.pipeline import owner_of
from airflow_eos.errors import DeliveryError
from airflow_eos.kinds.wal.participant import made
from airflow_eos.recovery import execute_recovery, plan_recovery, shortfall
from airflow_eos.recovery.execute import Result
from airflow_eos.recovery.facts import gather
from airflow_eos.recovery.plan import Action
from tests.integration.kept.keeping import decided, keep

DELIVER = f"{__name__}:deliver"
REACH = {"orders": DELIVER}
DELIVERED: list[bytes] = []


def deliver(_token: str, rows: pa.Table) -> None:
    values = rows["value"].to_pylist()
    if b"poison" in values:
        raise ValueError("400 Bad Request")
    DELIVERED.extend(values)


def test_a_row_that_the_callable_never_takes_is_given_up_and_the_rest_delivered(tmp_path: Path):
    store = CheckpointStore.open(tmp_path / "checkpoint")
    store.put("metadata", b'{"id":"6a4cb5cf-5b5b-4b3e-9f0e-3f0d0b2b5c11"}')
    store.put(
        "offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"in":{"0":3}}'
    )
    participant = made(store, "orders", DELIVER, None)
    members = participant.members
    claim(
        store,
        PipelineIdentity(id="0" * 32, participants=members, created_at_ms=0, created_by="test"),
    )
    participant.claim(owner_of(store))
    works = [
        keep(store, pa.table({"value": [each]}), kind="wal", task=task)
        for task, each in enumerate((b"poison", b"poison", b"good"))
    ]
    DecisionLog(store).record(decided(0, works=tuple(works), term=1))

    for _ in range(2):  # also where those that are refused come first
        with pytest.raises(DeliveryError, match="ValueError"):
            execute_recovery(store.location, reach=REACH, force=True)
    assert DELIVERED == [b"good"], "one that refuses costs the others nothing"

    found = shortfall(gather(store, participant), 0, open_too=True)
    assert (found.rows, found.delivered) == (2, 1)
    rulings.accept(
        store, 0, found.promise, missing=found.missing, ruled_by="ann", given_up=found.given_up
    )

    report = execute_recovery(store.location, reach=REACH, force=True)
    assert [(each.step.action, each.result) for each in report.results] == [
        (Action.ABORT, Result.DONE)
    ] * 2
    assert plan_recovery(store.location, reach=REACH).steps == ()
    assert participant.open() == ()
    assert DELIVERED == [b"good"]

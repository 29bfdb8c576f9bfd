"""Who is looked at by a watchdog: nobody who takes part is ever left out."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.checkpoint import CheckpointStore, PipelineIdentity, claim
from airflow_eos.errors import ConfigurationError
from airflow_eos.protocol.participant import Member
from airflow_eos.recovery import execute as run

TOTALS = Member("totals", "postgres", {"name": "etl.totals", "schema": "eos", "mark": "1"})
ORDERS = Member("orders", "kafka", {"cluster_id": "c", "transactional_id_prefix": "etl"})
BESIDES = Member(run.NOBODYS, "kafka", {"transactional_id_prefix": "etl"})


@pytest.mark.parametrize(
    ("named", "prefix", "asked"),
    [
        ([TOTALS], None, [TOTALS]),
        ([TOTALS], "etl", [TOTALS, BESIDES]),
        ([TOTALS, ORDERS], "etl", [TOTALS, ORDERS]),
        ([], "etl", [BESIDES]),
    ],
)
def test_all_that_take_part_are_looked_at_whatever_the_prefix(
    tmp_path, monkeypatch, named, prefix, asked
):
    store = CheckpointStore.open(tmp_path)
    if named:
        pipeline = PipelineIdentity(
            id="1" * 32, participants=tuple(named), created_at_ms=1, created_by="driver 1"
        )
        claim(store, pipeline)
    reached: list[Any] = []
    monkeypatch.setattr(run, "connect", lambda members, *_, **__: reached.extend(members))
    run.watched(store, None, prefix=prefix)
    assert reached == asked


def test_nobody_to_look_at_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="names no pipeline"):
        run.watched(CheckpointStore.open(tmp_path), None)

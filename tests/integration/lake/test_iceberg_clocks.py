"""A driver whose machine has another clock than the one before it, as after it moved to another.

Iceberg's readers in Java, and its REST servers, refuse a table one of whose snapshots is more than
a minute older than the one before: so a clock that is behind made a table that Spark cannot read.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_eos.core.protocol.decision import Outcome
from tests.integration.lake.kinds import ICEBERG, KINDS
from tests.integration.lake.stage import Stage
from tests.support.clocks import clock_of
from tests.support.kinds.iceberg_java import planned
from tests.support.servers.iceberg import EmbeddedIcebergRest

HOURS = {"behind": (0, -3), "ahead, then right": (26, 0)}


def machine(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """The next commits are those of a machine whose clock is so far ahead."""
    off_s = timedelta(hours=hours).total_seconds()
    clock_of(monkeypatch, "pyiceberg.table.snapshots", time=lambda: time.time() + off_s)


@pytest.fixture(params=list(HOURS.values()), ids=list(HOURS))
def moved(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Two batches of a driver, and two of the one that follows it with the other clock."""
    stage = Stage(ICEBERG, tmp_path).made()
    for number, each in enumerate(hour for hour in request.param for _ in range(2)):
        machine(monkeypatch, each)
        stage.delivered(number, batch=number)
    return stage


def test_no_snapshot_is_older_than_the_one_before_it(moved: Stage) -> None:
    with closing(ICEBERG.catalog(moved.table)) as catalog:
        told = catalog.load_table("db.rows").metadata
    in_order = [each.snapshot_id for each in told.snapshots]
    assert [each.snapshot_id for each in told.snapshot_log] == in_order
    assert len(in_order) == 4
    files, log = ([e.timestamp_ms for e in each] for each in (told.metadata_log, told.snapshot_log))
    assert log == sorted(log)
    assert log[-1] == told.last_updated_ms
    assert files == sorted(files)
    assert files[-1] < told.last_updated_ms


@pytest.mark.long
def test_apache_iceberg_itself_reads_what_drivers_with_two_clocks_committed(moved: Stage) -> None:
    place = ICEBERG.database(moved.table), f"file://{moved.folder}"
    (files,) = planned(*place, ("db.rows", "*", ""))
    assert len(files) == 4


@pytest.mark.parametrize("hours", HOURS.values(), ids=HOURS)
def test_a_rest_catalog_takes_the_promise_of_a_driver_with_another_clock(
    catalog: EmbeddedIcebergRest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hours: tuple[int, int],
) -> None:
    stage = Stage(KINDS["iceberg-rest-s3"], tmp_path).made()
    for number, each in enumerate(hours):
        machine(monkeypatch, each)
        work = stage.prepare(number)
        stage.decide(work, batch=number)
        assert stage.participant().commit([work]) == {work.identity: Outcome.COMMITTED}
    assert stage.values() == Counter(range(2))

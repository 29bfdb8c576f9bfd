"""Where the first batch begins: told once, and then noted, by whoever asks first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.spark_log import SparkLog
from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.client.offsets import EARLIEST, LATEST
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.sinks import StartPosition
from airflow_eos.sources import task as module
from airflow_eos.sources.task import KafkaInput, starting_of

SETTINGS = KafkaSettings.from_librdkafka({"bootstrap.servers": "none:1"})


class Log:
    """Two partitions that begin at 3 and grow; rows of the moment 50 begin at 7 in the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 10  # the last stable offset
        self.high_watermark = 12
        monkeypatch.setattr(module, "partitions_of", self.partitions)
        monkeypatch.setattr(module, "positions", self.positions)

    def partitions(self, _wire: Any, topics: Any, **_: Any) -> list[tuple[str, int]]:
        return [(topic, number) for topic in topics for number in (0, 1)]

    def positions(
        self, _wire: Any, places: Any, when: int, *, committed_only: bool
    ) -> dict[tuple[str, int], int]:
        at = {EARLIEST: 3, LATEST: self.end if committed_only else self.high_watermark}
        return {place: at.get(when, -1 if place[1] else 7) for place in places}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(str(tmp_path / "checkpoint"))


def began(store: CheckpointStore, starting: Any) -> Any:
    return KafkaInput(SETTINGS, ("t",), store, starting).began(None)  # type: ignore[arg-type]


def test_latest_is_where_it_was_when_it_was_first_asked_for(
    log: Log, store: CheckpointStore
) -> None:
    assert began(store, "latest") == {"t": {"0": 10, "1": 10}}
    log.end = 20
    assert began(store, "latest") == {"t": {"0": 10, "1": 10}}


def test_of_two_drivers_that_ask_at_once_both_begin_where_the_first_one_does(
    log: Log, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = CheckpointStore.create

    def after_another(self: CheckpointStore, path: str, data: bytes) -> bool:
        monkeypatch.setattr(CheckpointStore, "create", create)
        assert began(self, "latest") == {"t": {"0": 10, "1": 10}}
        return create(self, path, data)

    monkeypatch.setattr(CheckpointStore, "create", after_another)
    found = KafkaInput(SETTINGS, ("t",), store, {"t": {"0": 15, "1": 15}}).began(None)  # type: ignore[arg-type]
    assert found == {"t": {"0": 10, "1": 10}}


def test_the_note_is_what_sparks_own_source_writes(log: Log, store: CheckpointStore) -> None:
    began(store, "earliest")
    assert SparkLog(store).began("0") == {"t": {0: 3, 1: 3}}
    assert store.get("sources/0/0") == b'\0v1\n{"t":{"0":3,"1":3}}'


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", {"0": 3, "1": 3}),
        ("latest", {"0": 10, "1": 10}),
        (50, {"0": 7, "1": 10}),  # no row of then or later in the second one: its end
        ({"t": {"0": -2, "1": -1}}, {"0": 3, "1": 10}),
        ({"t": {"0": 5, "1": 6}}, {"0": 5, "1": 6}),
    ],
)
def test_every_way_to_say_where(
    log: Log, store: CheckpointStore, starting: Any, expected: Any
) -> None:
    assert began(store, starting) == {"t": expected}


@pytest.mark.parametrize("given", [{"t": {"0": 5}}, {"t": {"0": 5, "1": 5, "2": 5}}])
def test_offsets_of_other_partitions_than_there_are_are_refused(
    log: Log, store: CheckpointStore, given: Any
) -> None:
    with pytest.raises(ConfigurationError, match="starting names the partitions"):
        began(store, given)


@pytest.mark.parametrize(("committed_only", "end"), [(True, 10), (False, 12)])
def test_a_batch_ends_before_the_rows_of_open_transactions_unless_told_otherwise(
    log: Log, store: CheckpointStore, committed_only: bool, end: int
) -> None:
    read = KafkaInput(SETTINGS, ("t",), store, committed_only=committed_only)
    assert read.ends(None) == {("t", 0): end, ("t", 1): end}  # type: ignore[arg-type]


def test_what_was_read_past_the_last_stable_offset_is_no_topic_that_was_made_again(
    log: Log, store: CheckpointStore
) -> None:
    """As ``read_uncommitted`` reads; the transaction that was open then is open still."""
    read = KafkaInput(SETTINGS, ("t",), store)
    ends = read.ends(None)  # type: ignore[arg-type]
    begun = {("t", 0): 12, ("t", 1): 9}
    assert read.not_before(None, ends, begun) == {("t", 0): 12, ("t", 1): 10}  # type: ignore[arg-type]


@pytest.mark.parametrize("committed_only", [True, False])
def test_what_was_read_past_the_high_watermark_is_left_for_the_planner_to_refuse(
    log: Log, store: CheckpointStore, committed_only: bool
) -> None:
    read = KafkaInput(SETTINGS, ("t",), store, committed_only=committed_only)
    ends = read.ends(None)  # type: ignore[arg-type]
    assert read.not_before(None, ends, {("t", 0): 13}) == ends  # type: ignore[arg-type]


def test_what_a_user_may_say() -> None:
    assert starting_of(StartPosition.parsed("latest"), ("t",)) == "latest"
    assert starting_of(StartPosition.parsed("2026-11-23T10:00:00Z"), ("t",)) == 1795428000000
    assert starting_of(StartPosition.offsets({0: 5}), ("t",)) == {"t": {"0": 5}}
    assert starting_of('{"t": {"0": -2}}', ("t",)) == {"t": {"0": -2}}
    for position in ("yesterday", "[1]", '{"t": 5}', '{"t":{"0":-3}}', '{"t":{"x":3}}'):
        with pytest.raises(ConfigurationError, match="expected earliest, latest"):
            starting_of(position, ("t",))
    with pytest.raises(ConfigurationError, match="2 topics"):
        starting_of(StartPosition.offsets({0: 5}), ("t", "u"))

"""What is said of readers that wait, where brokers do not tell all of it."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_eos.cli import app
from airflow_eos.errors import KafkaError, KafkaUnavailableError, TransactionError
from airflow_eos.kafka.transactions import blocked
from airflow_eos.kafka.transactions.blocked import find_blocked, next_step
from airflow_eos.kafka.transactions.listing import HangingTransaction
from airflow_eos.supervision.progress import ends_by
from tests.support.capable import capable

COMMITTED = blocked._committed

PLACE = ("t", 0)
HOUR_MS = 3_600_000
NOW_MS = time.time_ns() // 1_000_000
WRITES = HangingTransaction("t", 0, 5, 7, 0, 0, last_written_ms=NOW_MS)


class Brokers:
    """Partition 0 of "t" is held up at offset 5; what they tell of it is set here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[set[HangingTransaction]] = [{WRITES}]
        self.stable = [5]
        self.states: list[Any] = []
        self.hidden = False
        self.refuses: KafkaError | None = None
        self.first_row_ms = NOW_MS
        settings = {"transaction.max.timeout.ms": "900000"}
        self.wire: Any = SimpleNamespace(
            cluster=SimpleNamespace(capabilities=lambda: capable(settings=settings))
        )
        for name, stand_in in {
            "partitions_of": lambda *_: [PLACE],
            "positions": self._positions,
            "open_in_partitions": lambda *_: self._next(self.opened),
            "of_producers": self._of_producers,
            "require_all_told": self._require_all_told,
            "cluster_clock_ms": lambda _: NOW_MS,
            "read_span": self._read,
            "_committed": lambda *_: ({}, (), ()),
        }.items():
            monkeypatch.setattr(blocked, name, stand_in)

    def _next(self, answers: list[Any]) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _positions(self, *_: Any, committed_only: bool = True) -> dict[Any, int]:
        return {PLACE: self._next(self.stable) if committed_only else 12}

    def _of_producers(self, *_: Any) -> list[Any]:
        if self.refuses is not None:
            raise self.refuses
        return self.states

    def _require_all_told(self, *_: Any, **__: Any) -> None:
        if self.hidden:
            raise TransactionError("not all may be described")

    def _read(self, *_: Any, **__: Any) -> Any:
        if self.first_row_ms is None:
            raise KafkaError("not to be read")
        yield [SimpleNamespace(base_timestamp_ms=self.first_row_ms)]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_one_that_writes_on_while_it_is_asked_about_still_holds_them_up(brokers: Brokers) -> None:
    """Of an id that may not be described no coordinator tells; only its rows have moved on."""
    brokers.opened = [{WRITES}, {replace(WRITES, last_written_ms=NOW_MS + 1)}]
    [found] = find_blocked(brokers.wire, {"t"}).partitions
    assert (found.stable, found.producer_id) == (5, 7)


def test_how_long_it_holds_them_up_is_not_the_age_of_its_newest_row(brokers: Brokers) -> None:
    brokers.first_row_ms = NOW_MS - 2 * HOUR_MS
    [found] = find_blocked(brokers.wire, {"t"}, older_than_ms=HOUR_MS).partitions
    assert found.age_ms == 2 * HOUR_MS


@pytest.mark.parametrize(("hidden", "said"), [(True, "not known"), (False, "hanging")])
def test_one_that_may_be_hidden_from_us_is_not_called_hanging(
    brokers: Brokers, hidden: bool, said: str
) -> None:
    """Rows with the times of their events make it old at once; its coordinator may know it."""
    brokers.opened = [{replace(WRITES, last_written_ms=0)}]
    brokers.hidden = hidden
    found = find_blocked(brokers.wire, {"t"})
    assert [each.state for each in found.partitions] == [said]
    assert found.untold == (("not all may be described",) if hidden else ())


@pytest.mark.parametrize("goes_on", [False, True])
def test_readers_that_stand_still_behind_nothing_that_a_leader_names_are_told(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    brokers.opened, brokers.stable = [set()], [5, 12 if goes_on else 5]
    found = find_blocked(brokers.wire, {"t"})
    assert found.partitions == ()
    assert len(found.unnamed) == (not goes_on)
    monkeypatch.setattr(blocked, "find_blocked", lambda *_, **__: found)
    closed = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(
        "airflow_eos.kafka.client.connection.ConnectionPool", lambda *_, **__: closed
    )
    ran = CliRunner().invoke(app, ["blocked", "t", "-b", "nowhere:1"])
    assert ran.exit_code == (not goes_on)
    assert ("No transaction holds readers up" in ran.output) is goes_on
    assert ("they stand at offset 5" in ran.output) is not goes_on


def test_one_whose_markers_are_being_written_is_not_its_writers_to_end(brokers: Brokers) -> None:
    here = [SimpleNamespace(topic="t", partitions=[0])]
    brokers.states = [
        SimpleNamespace(
            producer_id=7,
            transactional_id="etl-eos-0-0",
            transaction_state="PrepareCommit",
            transaction_start_time_ms=NOW_MS,
            transaction_timeout_ms=60_000,
            topics=here,
        )
    ]
    [found] = find_blocked(brokers.wire, {"t"}).partitions
    assert next_step(found) == "ending"
    assert "leader" in ends_by(found)


@pytest.mark.parametrize("refusal", [KafkaError("denied"), KafkaUnavailableError("silent")])
def test_what_coordinators_do_not_tell_hides_nothing_of_what_leaders_have_told(
    brokers: Brokers, refusal: KafkaError
) -> None:
    brokers.refuses = refusal
    found = find_blocked(brokers.wire, {"t"})
    assert [each.state for each in found.partitions] == ["not known"]
    assert found.untold == (str(refusal),)


@pytest.mark.parametrize("refusal", [KafkaError("denied"), KafkaUnavailableError("silent")])
def test_groups_that_are_not_told_hide_nothing_of_what_holds_them_up(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, refusal: KafkaError
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise refusal

    monkeypatch.setattr(blocked, "_committed", COMMITTED)
    monkeypatch.setattr(blocked, "_groups", refused)
    found = find_blocked(brokers.wire, {"t"})
    assert len(found.partitions) == 1
    assert found.untold == (f"how far consumer groups are: {refusal}",)
    monkeypatch.setattr(blocked, "_groups", lambda *_: ["readers"])
    monkeypatch.setattr(blocked, "GroupCoordinator", lambda *_: SimpleNamespace(read=refused))
    assert find_blocked(brokers.wire, {"t"}).unread == ("readers",)

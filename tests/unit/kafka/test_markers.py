"""What is committed is seen: who ends a transaction looks whether readers get past its rows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_eos.commands.transactions import _show
from airflow_eos.errors import TransactionError
from airflow_eos.kafka.transactions import hanging as markers
from airflow_eos.kafka.transactions.blocked import Blocked
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from airflow_eos.kafka.transactions.listing import HangingTransaction


@pytest.mark.parametrize(
    ("first", "last", "stable", "is_behind"),
    [
        (5, 5, 5, True),  # one row, open: the last stable offset is that row itself
        (5, 9, 5, True),
        (5, 9, 9, True),  # the last of them is not seen
        (5, 9, 10, False),
        (5, 9, 11, False),  # as it is behind the marker
    ],
)
def test_a_partition_whose_last_stable_offset_is_not_past_the_rows_is_seen_to(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, stable: int, is_behind: bool
) -> None:
    seen_to: list[Any] = []
    monkeypatch.setattr(markers, "positions", lambda *_args: {("t", 0): stable})
    monkeypatch.setattr(markers, "replaced", lambda *_args, **_how: set())
    monkeypatch.setattr(
        markers, "require_ended_everywhere", lambda _wire, places, **_how: seen_to.append(places)
    )
    ours = PreparedTransaction("t-0-0", 7, 0, (OffsetRange("t", 0, first, last),), 1, "", 0, 1)
    wire: Any = None
    markers.require_committed_everywhere(wire, [ours])
    assert seen_to == ([{ours.identity: {("t", 0)}}] if is_behind else [])


def test_how_old_a_transaction_is_says_the_clusters_clock_and_not_the_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine an hour ahead took what was a minute old for one that no coordinator would end."""
    there_ms = time.time_ns() // 1_000_000 - 3_600_000
    young = HangingTransaction("t", 0, 5, 7, 0, 0, last_written_ms=there_ms - 60_000)
    monkeypatch.setattr(markers, "partitions_of", lambda *_: [("t", 0)])
    monkeypatch.setattr(markers, "open_in_partitions", lambda *_: {young})
    monkeypatch.setattr(markers, "cluster_clock_ms", lambda _: there_ms)
    monkeypatch.setattr(markers, "held_by_coordinators", lambda *_, **__: set())
    monkeypatch.setattr(markers, "committed_by_coordinators", lambda *_, **__: set())
    monkeypatch.setattr(markers, "require_all_told", lambda *_, **__: None)
    wire: Any = None
    assert markers.find_hanging(wire, {"t"}, older_than_ms=1_200_000) == ()
    assert markers.find_hanging(wire, {"t"}, older_than_ms=60_000) == (young,)


def test_where_coordinators_may_leave_some_out_absent_is_not_hanging_however_old_its_rows_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever writes rows with the times of their events looks a year old in a second."""
    last_years = HangingTransaction("t", 0, 5, 7, 0, 0, last_written_ms=0)
    monkeypatch.setattr(markers, "partitions_of", lambda *_: [("t", 0)])
    monkeypatch.setattr(markers, "open_in_partitions", lambda *_: {last_years})
    monkeypatch.setattr(markers, "cluster_clock_ms", lambda _: None)
    monkeypatch.setattr(markers, "held_by_coordinators", lambda *_, **__: set())

    def hidden(*_: Any, **__: Any) -> None:
        raise TransactionError("not all may be described")

    monkeypatch.setattr(markers, "require_all_told", hidden)
    wire: Any = None
    with pytest.raises(TransactionError, match="not all may be described"):
        markers.find_hanging(wire, {"t"}, older_than_ms=1_200_000)


def test_what_nobody_could_tell_is_said_where_nothing_was_found_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show(Blocked((), ("a group",), ("no broker lists transactions",)))
    said = capsys.readouterr().out
    assert "Not known: no broker lists transactions" in said
    assert "a group" in said

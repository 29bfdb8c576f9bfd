"""What is committed is seen: who ends a transaction looks whether readers get past its rows."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.kafka.transactions import hanging as markers
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction

pytestmark = pytest.mark.unit


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

"""The checker on histories made by hand: one that is whole, and one broken in each way."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.errors import ConfigurationError
from tests.support.history.__main__ import main
from tests.support.history.read import History, read_history
from tests.support.history.rules import check

Events = list[dict[str, Any]]

A = {"transactional_id": "etl-0-0", "producer_id": 1, "producer_epoch": 0}
B = {"transactional_id": "etl-0-0", "producer_id": 1, "producer_epoch": 1}


def named(transaction: dict[str, Any], first: int, rows: int) -> dict[str, Any]:
    written = [{"topic": "out", "partition": 0, "first": first, "last": first + rows - 1}]
    return {
        **transaction,
        "written": written,
        "rows": rows,
        "opened_at_ms": 100,
        "timeout_ms": 1000,
    }


def whole(value: str = "{}") -> Events:
    """Two batches of two rows, each written by one transaction; offsets 2 and 5 are markers."""
    seen = [
        [0, 0, "k", value.format("a", 1), "run-a"],
        [0, 1, "k", value.format("b", 2), "run-a"],
        [0, 3, "k", value.format("c", 3), "run-b"],
        [0, 4, "k", value.format("d", 4), "run-b"],
    ]
    return [
        {"event": "history", "ordered": True, "mode": "rows", "lone": True},
        {"event": "input", "rows": [[0, n, "k", v] for n, v in enumerate("abcd")]},
        {"event": "prepared", "run": "run-a", "transaction": A},
        {"event": "prepared", "run": "run-b", "transaction": B},
        {"event": "saw", "at_ms": 300, "reader": "uncommitted", "rows": copy.deepcopy(seen)},
        {"event": "saw", "at_ms": 300, "reader": "live", "rows": copy.deepcopy(seen)},
        {"event": "saw", "at_ms": 400, "reader": "final", "rows": copy.deepcopy(seen)},
        {"event": "offsets", "batch": 0, "ends": {"0": 2}},
        {"event": "offsets", "batch": 1, "ends": {"0": 4}},
        {"event": "commits", "batch": 0},
        {"event": "commits", "batch": 1},
        decision(0, 1, [named(A, 0, 2)]),
        decision(1, 1, [named(B, 3, 2)]),
        {
            "event": "final",
            "stable": {"0": 6},
            "end": {"0": 6},
            "open": [],
            "caught_up": True,
            "again": 0,
        },
    ]


def decision(batch: int, attempt: int, transactions: list[Any], at_ms: int = 200) -> dict[str, Any]:
    return {
        "event": "decision",
        "batch": batch,
        "attempt": attempt,
        "verdict": "commit",
        "decided_at_ms": at_ms,
        "transactions": transactions,
    }


def seen(events: Events, reader: str) -> list[list[Any]]:
    rows: list[list[Any]] = next(e["rows"] for e in events if e.get("reader") == reader)
    return rows


def final(events: Events) -> dict[str, Any]:
    return events[-1]


def lose(events: Events) -> None:
    for reader in ("live", "final"):
        del seen(events, reader)[3]


def duplicate(events: Events) -> None:
    for reader in ("live", "final", "uncommitted"):
        seen(events, reader).append([0, 5, "k", "d", "run-b"])


def read_aborted(events: Events) -> None:
    events.remove(next(e for e in events if e["event"] == "decision" and e["batch"] == 1))


def read_early(events: Events) -> None:
    next(e for e in events if e.get("reader") == "live")["at_ms"] = 150


def read_before_any_decision(events: Events) -> None:
    events.append({"event": "early", "row": [0, 0, "k", "a", "run-a"]})


def reorder(events: Events) -> None:
    for reader in ("live", "final", "uncommitted"):
        rows = seen(events, reader)
        rows[0][3], rows[1][3] = rows[1][3], rows[0][3]


def swap_batches(events: Events) -> None:
    for event in events:
        if event["event"] == "decision":
            event["batch"] = 1 - event["batch"]


def go_back(events: Events) -> None:
    seen(events, "live").reverse()


def tear(events: Events) -> None:
    del seen(events, "final")[1]


def tear_what_is_in_flight(events: Events) -> None:
    """Spark has not closed the batch: only the transaction itself tells that it is torn."""
    leave_behind(events)
    del seen(events, "final")[3]


def disagree(events: Events) -> None:
    seen(events, "live")[2][2] = "another key"


def end_before_its_time(events: Events) -> None:
    lost = {**A, "producer_epoch": 7}
    events.append(decision(0, 0, [named(lost, 8, 2)], at_ms=150))


def recover_again(events: Events) -> None:
    final(events)["again"] = 1


def stay_open(events: Events) -> None:
    final(events)["open"] = ["etl-0-0"]


def stall(events: Events) -> None:
    final(events)["stable"] = {"0": 3}


def leave_behind(events: Events) -> None:
    events.remove({"event": "commits", "batch": 1})


def crash(events: Events) -> None:
    events.append({"event": "crash", "text": "KeyError"})


def tried(must: str, *, let_in: bool, ended_by: str = "") -> Callable[[Events], None]:
    """A copy is started on, and what becomes of that."""
    return lambda events: events.append(
        {
            "event": "tried",
            "what": "a copy",
            "must": must,
            "refusals": ["OwnershipError"],
            "let_in": let_in,
            "ended_by": ended_by,
        }
    )


def go_on_beside_a_successor(events: Events) -> None:
    events += [
        {"event": "start", "at_ms": 1, "who": "harness", "name": "first"},
        {"event": "admitted", "at_ms": 2, "who": "first"},
        {"event": "start", "at_ms": 3, "who": "harness", "name": "second"},
        {"event": "admitted", "at_ms": 4, "who": "second"},
        {"event": "planned", "at_ms": 5, "who": "first", "batch": 1},
        {"event": "committed", "at_ms": 6, "who": "first", "batch": 1},
    ]


@pytest.mark.parametrize(
    ("spoil", "number"),
    [
        (crash, 0),
        (lose, 1),
        (duplicate, 2),
        (read_aborted, 3),
        (read_early, 4),
        (read_before_any_decision, 4),
        (reorder, 5),
        (go_back, 5),
        (swap_batches, 5),
        (tear, 6),
        (tear_what_is_in_flight, 6),
        (disagree, 7),
        (end_before_its_time, 8),
        (recover_again, 8),
        (stay_open, 9),
        (stall, 9),
        (leave_behind, 9),
        (tried("refuse", let_in=True), 11),
        (tried("refuse", let_in=False, ended_by="StoreError: full"), 11),
        (tried("start", let_in=False, ended_by="OwnershipError: older"), 11),
        (go_on_beside_a_successor, 11),
    ],
)
def test_what_is_broken_is_found(spoil: Callable[[Events], None], number: int) -> None:
    events = whole()
    assert check(History.of(events)) == []
    spoil(events)
    assert number in {violation.number for violation in check(History.of(events))}


def end_what_was_planned_before(events: Events) -> None:
    go_on_beside_a_successor(events)
    events[-2]["at_ms"] = 3


def decide_late_in_a_pruned_place(events: Events) -> None:
    late = {**A, "producer_epoch": 7}
    events.append(decision(0, 1, [named(late, 8, 2)], at_ms=9000))


@pytest.mark.parametrize(
    "add",
    [
        tried("refuse", let_in=False, ended_by="OwnershipError: older"),
        tried("start", let_in=True),
        tried("", let_in=True),
        tried("", let_in=False, ended_by="OwnershipError: older"),
        end_what_was_planned_before,
        decide_late_in_a_pruned_place,
    ],
)
def test_what_is_right_is_not_blamed(add: Callable[[Events], None]) -> None:
    events = whole()
    events[0]["lone"] = False
    add(events)
    assert check(History.of(events)) == []


def whole_of_two() -> Events:
    """The rows of ``whole`` are in a table as well."""
    events = whole()
    rows = [["k", value, "run-b" if value in "cd" else "run-a"] for value in "abcd"]
    return [
        *events[:-1],
        {"event": "there", "at_ms": 300, "output": "table", "reader": "live", "rows": rows[:]},
        {"event": "there", "at_ms": 400, "output": "table", "reader": "final", "rows": rows[:]},
        events[-1],
    ]


def in_table(events: Events, reader: str) -> list[list[Any]]:
    [rows] = [e["rows"] for e in events if (e["event"], e.get("reader")) == ("there", reader)]
    return rows  # type: ignore[no-any-return]


def lose_in_the_table(events: Events) -> None:
    for reader in ("live", "final"):
        del in_table(events, reader)[3]


def have_twice_in_the_table(events: Events) -> None:
    for reader in ("live", "final"):
        in_table(events, reader).append(["k", "d", "run-c"])


def take_back_from_the_table(events: Events) -> None:
    in_table(events, "live").append(["k", "d", "run-c"])


def read_the_table_early(events: Events) -> None:
    events.append({"event": "ahead", "output": "table", "row": ["k", "d", "run-b"]})


def never_fed_to_the_table(events: Events) -> None:
    in_table(events, "final").append(["k", "e", "run-c"])


@pytest.mark.parametrize(
    ("spoil", "numbers"),
    [
        (lose_in_the_table, {1, 12}),
        (have_twice_in_the_table, {2, 12}),
        (never_fed_to_the_table, {2, 12}),
        (take_back_from_the_table, {7}),
        (read_the_table_early, {4}),
        (lose, {1, 6, 12}),
    ],
)
def test_what_is_broken_in_another_output_is_found(
    spoil: Callable[[Events], None], numbers: set[int]
) -> None:
    events = whole_of_two()
    assert check(History.of(events)) == []
    spoil(events)
    assert {violation.number for violation in check(History.of(events))} == numbers


def test_a_wrong_count_is_found() -> None:
    assert check(History.of(whole("{}#{}"))) == []
    events = whole("{}#{}")
    for reader in ("live", "final", "uncommitted"):
        seen(events, reader)[2][3] = "c#4"
    [violation] = check(History.of(events))
    assert violation.number == 10
    assert "'c' counted 4, a recount gives 3" in violation.first


def test_counts_alone_tell_of_lost_and_of_repeated_rows() -> None:
    """The mode of an app whose output is a count a key, without the rows."""
    events = whole()
    events[0]["mode"] = "counts"
    for reader in ("live", "final", "uncommitted"):
        for count, row in enumerate(seen(events, reader)):
            row[3] = str(count + 1)
    assert check(History.of(events)) == []
    seen(events, "final")[3][3] = "3"
    assert {violation.number for violation in check(History.of(events))} == {2, 7, 10}


def test_counts_of_another_output_are_those_of_the_topic() -> None:
    events = whole_of_two()
    events[0]["mode"] = "counts"
    for reader in ("live", "final", "uncommitted"):
        for count, row in enumerate(seen(events, reader)):
            row[3] = str(count + 1)
    for reader in ("live", "final"):
        for count, row in enumerate(in_table(events, reader)):
            row[1] = str(count + 1)
    assert check(History.of(events)) == []
    lose_in_the_table(events)
    assert {violation.number for violation in check(History.of(events))} == {12}


def test_the_report_names_the_first_row_and_tells_its_story() -> None:
    events = whole()
    duplicate(events)
    violation = next(v for v in check(History.of(events)) if v.number == 2)
    assert violation.first == "'d' of key 'k' again at output 0:5"
    story = "\n".join(violation.history)
    assert "fed [[0, 3, 'k', 'd']]" in story
    assert "decided batch 1" in story
    assert "final saw" in story


def test_a_file_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in whole()))
    assert check(read_history(file)) == []


@pytest.mark.parametrize("text", ["", "no json", '{"event": "input"}', '{"event": "history"}'])
def test_a_file_that_is_no_history_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="history"):
        read_history(file)


# --- ``python -m tests.support.history FILE``: the checker on its own -----------------------------


def audit(tmp_path: Path, events: Events, *options: str) -> int:
    """The exit status of the command on a file of these events."""
    file = tmp_path / "history.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["history", str(file), *options])
        return main()


def test_a_whole_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path, whole()) == 0
    assert "2 duplicated: 0" in capsys.readouterr().out


def test_a_violated_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = whole()
    duplicate(events)
    assert audit(tmp_path, events) == 1
    assert "2 duplicated: 1, first 'd' of key 'k' again at output 0:5" in capsys.readouterr().out
    assert audit(tmp_path, events, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert 2 in [violation["number"] for violation in told]

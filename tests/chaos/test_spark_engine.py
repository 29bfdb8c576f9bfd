"""Histories of the engine ``spark``: why a driver ended, as its log tells, and who stands by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from tests.chaos.chance import racing_scenario, standing_by
from tests.chaos.elsewhere import Watched
from tests.chaos.journal import Journal
from tests.chaos.processes import wait_until
from tests.chaos.spark_engine import last_error
from tests.chaos.spark_loop import offsets_text
from tests.chaos.stage import goes_alone

pytestmark = pytest.mark.unit

OURS = "SupersededError: Another driver has taken this checkpoint over.\n"
DAEMON = """Traceback (most recent call last):
Traceback (most recent call last):
  File "/home/python/lib/pyspark.zip/pyspark/daemon.py", line 262, in manager
  File "/home/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
OF_THE_APP = """Traceback (most recent call last):
  File "/tests/support/app.py", line 262, in main
    query.awaitTermination()
BrokenPipeError: [Errno 32] Broken pipe
"""


def test_what_a_worker_says_of_its_own_end_is_not_why_the_driver_ended() -> None:
    """Seed 29000034."""
    assert last_error(OURS + DAEMON) == OURS.strip()


def test_the_last_word_of_the_driver_counts_whatever_it_is() -> None:
    assert last_error(OURS + OF_THE_APP).startswith("BrokenPipeError")
    assert last_error("all went well\n") == ""


def test_histories_with_standbys_draw_every_end_of_the_first_and_say_who_is_left() -> None:
    drawn = [
        incident for seed in range(200) for incident in standing_by(racing_scenario(seed)).incidents
    ]
    assert {each.behind for each in drawn} == {"", "KILL", "STOP", "hand over"}
    assert all(goes_alone(each) is not each.group for each in drawn)


class Held:
    """An output that has these rows."""

    def __init__(self, *values: str) -> None:
        self._values = values

    def make(self) -> None: ...

    def rows(self) -> list[tuple[str, str, str]]:
        return [("k", value, "") for value in self._values]


def test_a_row_of_no_run_is_ahead_where_no_decision_for_its_output_reaches_so_far(
    tmp_path: Path,
) -> None:
    """Nothing but the offsets of a decision tells whose row it is; a count has no offset."""
    store = CheckpointStore.open(tmp_path / "checkpoint")
    work = {"kind": "files", "participant": "files", "key": "w", "rows": 2}
    decision = {"nonce": "1", "works": [work], "offsets": offsets_text({"in": {"0": 2}}, 0)}
    store.put("eos/decisions/0/1.json", json.dumps(decision).encode())
    journal = Journal(tmp_path / "history.jsonl", "harness")
    fed = {value: (0, offset) for offset, value in enumerate("abc")}
    held = {"files": Held("a", "b", "c", "7"), "table": Held("a", "7")}
    watched = Watched(held, journal, store, fed)  # type: ignore[arg-type]
    with watched:
        assert wait_until(lambda: journal.file.exists() and told(journal, "there") == 2, 30)
    events = [json.loads(line) for line in journal.file.read_text().splitlines()]
    ahead = [(e["output"], e["row"][1]) for e in events if e["event"] == "ahead"]
    assert ahead == [("files", "c"), ("table", "a")]


def told(journal: Journal, event: str) -> int:
    return journal.file.read_text().count(f'"event": "{event}"')

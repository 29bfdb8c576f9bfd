"""Histories of the engine ``spark``: why a driver ended, as its log tells, and who stands by."""

from __future__ import annotations

import pytest

from tests.chaos.chance import racing_scenario, standing_by
from tests.chaos.spark_engine import last_error
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

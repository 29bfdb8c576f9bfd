"""The protocol holds in every history that is tried; ``test_mutations`` breaks it rule by rule."""

from __future__ import annotations

import os

import pytest

from tests.model import who_drives
from tests.model.history import run_history

pytestmark = [pytest.mark.unit, pytest.mark.slow]

HISTORIES = int(os.environ.get("EOS_MODEL_HISTORIES", "180"))
"""A longer search, on every core: python -m tests.model --histories 1000000 --seed 7"""


@pytest.mark.timeout(max(600, HISTORIES))
def test_every_row_is_delivered_exactly_once_whatever_happens():
    for seed in range(HISTORIES):
        run_history(seed)


def test_every_row_is_delivered_exactly_once_whatever_a_power_cut_or_a_person_takes():
    for seed in range(HISTORIES // 6):
        run_history(seed, disk=True)


def test_every_row_is_delivered_exactly_once_by_drivers_that_stood_by_rightly_or_wrongly():
    for seed in range(HISTORIES // 6):
        run_history(seed, standbys=True)


def test_every_row_is_delivered_exactly_once_while_a_cluster_comes_to_offer_no_timer_and_stops():
    for seed in range(HISTORIES // 3):
        run_history(seed, two_phase=True)


def test_what_the_input_has_left_is_delivered_once_and_what_lacks_was_announced():
    for seed in range(HISTORIES // 12):
        run_history(seed, lossy=True)


def test_who_is_asked_to_stop_stops_and_else_somebody_drives_whoever_dies_when() -> None:
    for seed in range(HISTORIES // 6):
        who_drives.run_history(seed)


def test_the_same_seed_is_the_same_history():
    first, again = run_history(77), run_history(77)
    assert first.world.judge.history == again.world.judge.history

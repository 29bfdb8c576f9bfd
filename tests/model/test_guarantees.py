"""The guarantee of a checkpoint is changed, beside drivers of the former one that sleep or wake."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.model.mixed import run_history, without_races

pytestmark = [pytest.mark.unit, pytest.mark.slow]

HISTORIES = int(os.environ.get("EOS_MODEL_HISTORIES", "200"))


@pytest.fixture(autouse=True)
def no_races() -> Iterator[None]:
    with without_races():
        yield


@pytest.mark.timeout(max(600, HISTORIES))
def test_no_row_comes_twice_or_is_lost_by_a_change_and_somebody_is_always_let_in() -> None:
    for seed in range(HISTORIES):
        run_history(seed)


def test_the_same_seed_is_the_same_history() -> None:
    assert run_history(7).world.judge.history == run_history(7).world.judge.history

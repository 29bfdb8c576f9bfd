"""Rows a second, of batches that take long and of pauses between them."""

from __future__ import annotations

from airflow_eos.page.pipeline_state import PlannedBatch, mean_rate, rates

BATCHES = (
    PlannedBatch(0, 10_000, 11_000, 500),
    PlannedBatch(1, 12_000, 12_500, 100),
    PlannedBatch(2, 14_000, None, 900),
)


def test_a_pause_after_a_batch_counts_and_what_is_in_flight_does_not():
    assert rates(BATCHES) == (250.0, 50.0)


def test_the_newest_batch_counts_until_it_was_committed():
    assert rates(BATCHES[:2]) == (250.0, 200.0)


def test_a_batch_whose_rows_nobody_knows_has_no_rate():
    assert rates((PlannedBatch(0, 1_000, 2_000, None),)) == ()


def test_the_mean_is_of_the_last_minute():
    old = PlannedBatch(0, 0, 1_000, 1_000_000)
    new = (PlannedBatch(1, 200_000, 201_000, 300), PlannedBatch(2, 201_000, 202_000, 100))
    assert mean_rate((old, *new), now_ms=261_000) == 200.0


def test_who_has_committed_nothing_for_a_minute_is_at_nought():
    assert mean_rate(BATCHES[:2], now_ms=72_501) == 0.0


def test_clocks_that_differ_divide_by_no_nought():
    assert rates((PlannedBatch(0, 5_000, 4_000, 3),)) == (3_000.0,)


def test_of_no_batch_there_is_no_rate():
    assert rates(()) == ()
    assert mean_rate((), now_ms=1) is None

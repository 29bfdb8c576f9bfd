"""Readers of several outputs take cuts while the pipeline dies: the books balance at each."""

from __future__ import annotations

import pytest

from airflow_eos import cuts
from tests.integration.kinds.delivery import BATCH, Delivery
from tests.support.kinds.books import unbalanced


@pytest.mark.parametrize("kind", ["bookings"])
def test_killed_between_settle_and_cut(delivery: Delivery) -> None:
    """Rows of the batch are visible and no cut has them; the next driver writes it, or recovery."""
    delivery.pipeline.feed(3 * BATCH)
    delivery.killed("settled-some@9")  # seven in the first batch; the topic, then the table
    cut = cuts.latest(delivery.pipeline.checkpoint)
    assert unbalanced(delivery.kind.read(delivery.at)), "without a cut a reader sees halves"
    assert cut.batch_id == 0
    seen = delivery.kind.read_at(delivery.at, cut)
    assert unbalanced(seen) == []
    assert seen["credits"].total() == BATCH
    assert delivery.recover() == 0
    cut = cuts.latest(delivery.pipeline.checkpoint)
    assert cut.batch_id == 1
    assert delivery.kind.read_at(delivery.at, cut)["credits"].total() == 2 * BATCH
    assert unbalanced(delivery.kind.read_at(delivery.at, cut)) == []
    delivery.resume()
    for batch in range(3):
        seen = delivery.kind.read_at(delivery.at, cuts.at(delivery.pipeline.checkpoint, batch))
        assert unbalanced(seen) == []
        assert seen["files"].total() == 2 * (batch + 1) * BATCH
    delivery.assert_exactly_once()

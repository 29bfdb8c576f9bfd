"""Transactions that no timer ends (KIP-939), on the releases that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_eos.local import EmbeddedKafka
from tests.brokers.releases import AS_SHIPPED, RELEASES, programs, running
from tests.integration.conftest import die_at
from tests.integration.hazards.conftest import _no_warm_writers
from tests.integration.hazards.direct import Direct
from tests.integration.hazards.test_transaction_versions import pipeline
from tests.integration.hazards.test_two_phase import ALWAYS, OFFERED, SOON, an_outage

__all__ = ["_no_warm_writers", "die_at", "pipeline"]


@pytest.fixture(
    scope="module", params=[each for each in RELEASES if each.numbers >= (4, 1)], ids=str
)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with (
        programs(request.param.version),  # also where the test starts it again
        running(request.param, AS_SHIPPED | SOON | OFFERED) as made,
    ):
        yield made


def test_a_promise_outlives_any_outage(
    broker: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.sink_options = ALWAYS
    an_outage(broker, pipeline, die_at)

"""The protocol holds in every history that the machine finds."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import ProtocolMachine

pytestmark = [pytest.mark.unit, pytest.mark.slow]

EXAMPLES = int(os.environ.get("EOS_MODEL_EXAMPLES", "300"))
SEED = int(os.environ.get("EOS_MODEL_SEED", "1"))
"""A longer search: EOS_MODEL_EXAMPLES=100000 EOS_MODEL_SEED=7 pytest -k whatever_happens."""

_SETTINGS = settings(
    stateful_step_count=60,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(max(300, EXAMPLES))
def test_every_row_is_delivered_exactly_once_whatever_happens():
    run_state_machine_as_test(
        seed(SEED)(ProtocolMachine), settings=settings(_SETTINGS, max_examples=EXAMPLES)
    )

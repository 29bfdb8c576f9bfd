"""The protocol holds in every history that the machine finds, and not with any one rule broken."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from airflow_eos.errors import EosError
from tests.model import mutations
from tests.model.judge import ProtocolBroken
from tests.model.machine import ProtocolMachine
from tests.model.mutations import Mutation

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


@pytest.mark.parametrize("broken", mutations.MUTATIONS, ids=lambda broken: broken.__name__)
def test_the_machine_notices_every_broken_rule(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    searching = settings(_SETTINGS, max_examples=5000, phases=[Phase.generate])
    # an error that ends no process of the unbroken machine is a notice too
    with pytest.raises((ProtocolBroken, EosError)) as found:
        run_state_machine_as_test(seed(1)(ProtocolMachine), settings=searching)
    print(found.value)  # noqa: T201 - pytest -s shows by what it was noticed

"""With any one rule of the protocol broken, the machine finds a history in which that shows.

A file of its own: with the search in ``test_protocol.py`` it is what takes longest, and two workers
share them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from airflow_eos.errors import EosError
from tests.model import mutations
from tests.model.judge import ProtocolBroken
from tests.model.machine import ProtocolMachine
from tests.model.mutations import Mutation

pytestmark = [pytest.mark.unit, pytest.mark.slow]

_SEARCHING = settings(
    max_examples=5000,
    phases=[Phase.generate],
    stateful_step_count=60,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("broken", mutations.MUTATIONS, ids=lambda broken: broken.__name__)
def test_the_machine_notices_every_broken_rule(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    # an error that ends no process of the unbroken machine is a notice too
    with pytest.raises((ProtocolBroken, EosError)) as found:
        run_state_machine_as_test(seed(1)(ProtocolMachine), settings=_SEARCHING)
    print(found.value)  # noqa: T201 - pytest -s shows by what it was noticed

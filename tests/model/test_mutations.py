"""Not one rule of the protocol can be left out without a history that shows it."""

from __future__ import annotations

import pytest

from airflow_eos.errors import EosError
from tests.model import mutations
from tests.model.history import run_history
from tests.model.judge import ProtocolBroken
from tests.model.mutations import Mutation

pytestmark = [pytest.mark.unit, pytest.mark.slow]

HISTORIES_AT_MOST = 3_000


@pytest.mark.parametrize("broken", mutations.MUTATIONS, ids=lambda broken: broken.__name__)
def test_the_model_notices_every_broken_rule(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    # an error that ends no process of the unbroken model is a notice too
    with pytest.raises((ProtocolBroken, EosError)) as found:
        _run_histories()
    print(str(found.value)[:200])  # noqa: T201 - pytest -s shows by what it was noticed


def _run_histories() -> None:
    for seed in range(HISTORIES_AT_MOST):
        run_history(seed)

"""Not one rule of the protocol can be left out without a history that shows it.

The history that showed it last is tried first (``known.json``). Where the model has changed so that
this one no longer does, all are searched: slow, and as sure.
"""

from __future__ import annotations

import pytest

from airflow_eos.errors import EosError
from tests.model import mutations, who_drives
from tests.model.history import run_history
from tests.model.judge import ProtocolBroken
from tests.model.mutations import AT_MOST, Mutation, known

pytestmark = [pytest.mark.unit, pytest.mark.slow]

SEEDS = known()


@pytest.mark.parametrize("broken", mutations.MUTATIONS, ids=lambda broken: broken.__name__)
def test_the_model_notices_every_broken_rule(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    # an error that ends no process of the unbroken model is a notice too
    with pytest.raises((ProtocolBroken, EosError)) as found:
        _run_histories(SEEDS.get(broken.__name__, 0))
    print(str(found.value)[:200])  # noqa: T201 - pytest -s shows by what it was noticed


@pytest.mark.parametrize("broken", mutations.ON_A_DISK, ids=lambda broken: broken.__name__)
def test_the_model_notices_every_rule_of_disks_that_is_broken(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEEDS.get(broken.__name__, 0)
    run_history(seed, disk=True)
    broken(monkeypatch)
    with pytest.raises((ProtocolBroken, EosError)):
        _run_histories(seed, disk=True)


@pytest.mark.parametrize("broken", mutations.LOSSY, ids=lambda broken: broken.__name__)
def test_the_model_notices_every_rule_of_lost_input_that_is_broken(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEEDS.get(broken.__name__, 0)
    run_history(seed, lossy=True)
    broken(monkeypatch)
    with pytest.raises((ProtocolBroken, EosError)):
        _run_histories(seed, lossy=True)


@pytest.mark.parametrize("broken", mutations.TWO_PHASE, ids=lambda broken: broken.__name__)
def test_the_model_notices_every_rule_of_promises_without_a_timer_that_is_broken(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = SEEDS.get(broken.__name__, 0)
    run_history(seed, two_phase=True)
    broken(monkeypatch)
    with pytest.raises((ProtocolBroken, EosError)):
        _run_histories(seed, two_phase=True)


@pytest.mark.parametrize("broken", mutations.WHO_DRIVES, ids=lambda broken: broken.__name__)
def test_the_model_notices_every_rule_of_who_drives_that_is_broken(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SEEDS.get(broken.__name__, 0)
    who_drives.run_history(first)
    broken(monkeypatch)
    with pytest.raises(ProtocolBroken):
        _play_who_drives(first)


@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_the_same_histories_hold_where_nothing_is_broken(seed: int) -> None:
    run_history(seed)


def _play_who_drives(first: int) -> None:
    for seed in (first, *range(AT_MOST)):
        who_drives.run_history(seed)


def _run_histories(first: int, **kind: bool) -> None:
    for seed in (first, *range(AT_MOST)):
        run_history(seed, **kind)

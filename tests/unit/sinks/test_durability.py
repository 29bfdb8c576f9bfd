"""Which topics may lose rows that were acknowledged, and what to set on them."""

from __future__ import annotations

import pytest

from airflow_eos.kinds.kafka.preflight import Durability

INSYNC, CLEAN = {"min.insync.replicas": "2"}, {"unclean.leader.election.enable": "false"}


@pytest.mark.parametrize(
    ("copies", "min_insync", "unclean", "to_set"),
    [
        (1, 1, False, {}),
        (1, 1, True, {}),
        (2, 1, False, INSYNC),
        (2, 2, False, {}),
        (3, 2, True, CLEAN),
        (3, 1, True, INSYNC | CLEAN),
        (3, 3, False, {}),
    ],
)
def test_what_one_broker_could_take_with_it(copies, min_insync, unclean, to_set):
    assert Durability("out", copies, min_insync, unclean).to_set() == to_set


def test_settings_that_nobody_told_are_not_known_and_no_advice_is_made_of_them():
    untold = Durability("out", copies=3, min_insync=None, unclean=None)
    assert untold.to_set() == {}
    assert untold.not_told() == ["min.insync.replicas", "unclean.leader.election.enable"]
    assert Durability("out", copies=3, min_insync=2, unclean=False).not_told() == []

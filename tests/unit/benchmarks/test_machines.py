"""What a second machine brings is reckoned within each round, and so is ours beside theirs."""

from __future__ import annotations

from benchmarks import machines_told


def of_machines(*per_second: float) -> list[machines_told.Figures]:
    return [machines_told.Figures(each, 0.9) for each in per_second]


def test_a_gain_is_that_of_a_round_and_a_slow_round_falls_on_all_alike():
    found = {
        "spark_sink": {1: of_machines(100, 50, 100), 2: of_machines(200, 100, 150)},
        "exactly_once": {1: of_machines(200, 100, 200), 2: of_machines(380, 190, 300)},
    }
    ratios = machines_told.result(found, {"cores_of_a_machine": 0.4}).ratios
    assert ratios == {
        "gain_spark_sink": 2.0,
        "gain_exactly_once": 1.9,
        "gain_exactly_once_over_spark_sink": 0.95,
    }

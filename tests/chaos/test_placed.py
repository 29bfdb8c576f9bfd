"""Placed faults, a few seconds each: every failpoint once, two drivers, timeouts, lost replies.

What real Spark shows of them in ``make test`` (tests/integration/sinks, hazards and recovery) is
here left to ``make proof``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from tests.chaos.arena import Arena
from tests.chaos.play import Played, play
from tests.chaos.proxy import API_KEYS
from tests.chaos.scenario import (
    DRIVER_PLACES,
    EXPIRY_S,
    LONG_S,
    ORDER_SURVIVES_REPLAY,
    RACING,
    RECOVERY_PLACES,
    RETAINED,
    SHORT_S,
    WORKER_PLACES,
    Incident,
    Scenario,
    topics_of,
)
from tests.chaos.settings import PATIENT_S

pytestmark = pytest.mark.proof

LONG = pytest.mark.proof

_numbers = count(1)


def some(places: Sequence[str], *ours: str) -> list[Any]:
    """All of them; those that are not ours are left to ``make proof``."""
    return [each if each in ours else pytest.param(each, marks=LONG) for each in places]


def exact(
    arena: Arena, *incidents: Incident, kind: str = "map", retained: int = 100, batch_rows: int = 20
) -> Played:
    """Play the incidents; every property of the checker must hold."""
    scenario = Scenario(
        seed=next(_numbers),
        kind=kind,
        incidents=incidents,
        retained=retained,
        batch_rows=batch_rows,
    )
    arena.create_topics(topics_of(scenario))
    played = play(arena, scenario)
    assert not played.violations, "\n".join(str(violation) for violation in played.violations)
    return played


def told(played: Played, *kinds: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in played.file.read_text().splitlines()]
    return [event for event in events if event["event"] in kinds]


@pytest.mark.parametrize("kind", ["map", pytest.param("count", marks=LONG)])
@pytest.mark.parametrize("place", some(DRIVER_PLACES, "settled-some"))
def test_driver_killed(arena: Arena, place: str, kind: str) -> None:
    nth = 1 if place == "sealed" else 2
    exact(arena, Incident(fault=place, failpoints=f"{place}=kill@{nth}"), kind=kind)


@pytest.mark.parametrize("what", ["kill", "raise"])
@LONG
@pytest.mark.parametrize("place", WORKER_PLACES)
def test_task_lost_or_failed(arena: Arena, place: str, what: str) -> None:
    exact(arena, Incident(fault=place, failpoints=f"{place}={what}@2"), kind="shuffle")


@LONG
@pytest.mark.parametrize("place", RECOVERY_PLACES)
def test_two_recoveries_one_killed(arena: Arena, place: str) -> None:
    left = "decided" if place == "recovery-acted-first" else "prepared"
    exact(
        arena,
        Incident(
            fault=place,
            failpoints=f"{left}=kill@2",
            recoveries=2,
            recovery_failpoints=f"{place}=kill",
        ),
    )


def test_recovery_forced_beside_a_live_driver(arena: Arena) -> None:
    beside = Incident(fault="beside", at_s=0.3, recoveries=2, beside=True, feed=200)
    exact(arena, beside, beside)


@LONG
@pytest.mark.parametrize("kind", ["count", "map", "shuffle"])
def test_promise_left_until_its_timeout(arena: Arena, kind: str) -> None:
    """Twice in a row: the replay of the first is itself decided and left."""
    left = Incident(
        fault="timeout", failpoints="settled-some=kill", timeout_s=SHORT_S, left_s=SHORT_S + 0.6
    )
    exact(arena, left, left, kind=kind)


@LONG
def test_promise_replayed_under_another_parallelism(arena: Arena) -> None:
    left = Incident(
        fault="timeout", failpoints="settled-some=kill", timeout_s=SHORT_S, left_s=SHORT_S + 0.6
    )
    exact(arena, left, Incident(fault="kill", failpoints="decided=kill", width=5), kind="shuffle")


@LONG
@pytest.mark.parametrize("kind", ["map", "count"])
def test_two_drivers_from_the_start(arena: Arena, kind: str) -> None:
    exact(arena, Incident(fault="two", rival="at-start", signal="KILL", at_s=1.0), kind=kind)


@pytest.mark.parametrize(
    "place", ["decided", pytest.param("sealed", marks=LONG), pytest.param("task-wrote", marks=LONG)]
)
def test_whoever_of_two_comes_to_the_place_first_is_killed(arena: Arena, place: str) -> None:
    nth = 1 if place == "sealed" else 2
    race = Incident(fault="race", rival=RACING, failpoints=f"{place}=kill@{nth}", past=1)
    # On a busy machine the two may end one another before either is there.
    assert any(exact(arena, race).reached == 1 for _ in range(12))


@LONG
@pytest.mark.parametrize("place", ["decided", "task-prepared", "prepared"])
def test_a_zombie_comes_back_beside_its_successor(arena: Arena, place: str) -> None:
    exact(
        arena,
        Incident(
            fault="zombie",
            failpoints=f"{place}=stop@2",
            rival="when-stopped",
            timeout_s=SHORT_S,
            left_s=0.3,
            group=False,
        ),
    )


@pytest.mark.parametrize("action", ["drop-reply", pytest.param("cut", marks=LONG)])
@pytest.mark.parametrize("api", some(("EndTxn", "Produce", "InitProducerId"), "EndTxn"))
def test_reply_lost(arena: Arena, api: str, action: str) -> None:
    exact(arena, Incident(fault=f"{action} {api}", rule=(api, 2, action)))


@LONG
@pytest.mark.parametrize("action", ["drop-reply", "cut"])
@pytest.mark.parametrize("api", sorted(API_KEYS))
def test_each_of_the_first_four_is_lost(arena: Arena, api: str, action: str) -> None:
    """Each in a start of its own, which finds what a driver before it has prepared.

    Producers are asked for surely where it is aborted; at a commit only where a marker is late.
    """
    place = "prepared" if api == "DescribeProducers" else "decided"
    prepared = Incident(fault="kill", failpoints=f"{place}=kill@2")
    lost = [
        Incident(fault=f"{action} {api}", rule=(api, nth, action), signal="KILL", at_s=0.1)
        for nth in range(1, 5)
    ]
    played = exact(arena, *(incident for each in lost for incident in (prepared, each)))
    assert played.reached > len(lost)


@LONG
def test_broker_killed(arena: Arena) -> None:
    exact(arena, Incident(fault="broker", broker=True, at_s=0.4))


def test_an_executor_killed(arena: Arena) -> None:
    exact(arena, Incident(fault="executor", executor=True, at_s=0.2), kind="shuffle")


@LONG
@pytest.mark.parametrize("place", ["decided", "settled"])
def test_ids_expired_before_anybody_came(arena: Arena, place: str) -> None:
    exact(arena, Incident(fault="expiry", failpoints=f"{place}=kill@2", left_s=EXPIRY_S + 1))


@LONG
@pytest.mark.parametrize("place", ["decided", "settled"])
def test_a_promise_that_nobody_can_look_up_is_asked_and_never_guessed(
    arena: Arena, place: str
) -> None:
    """Its id has expired, its rows are past retention; a person who knows rules, and all is whole.

    Decided and lost (its timeout passed), or settled and read: the product cannot tell them apart.
    """
    for tries in range(5):  # held up longer than its timeout by a busy machine, it never decides
        short_s = PATIENT_S * 2**tries
        left = Incident(
            fault="retention",
            failpoints=f"{place}=kill@2",
            timeout_s=short_s if place == "decided" else LONG_S,
            left_s=short_s + EXPIRY_S + 1,
            retention=True,
        )
        played = exact(arena, left)
        if told(played, "asked"):
            break
    assert [e["event"] for e in told(played, "deleted", "asked")] == ["deleted", "asked"]
    ruled = {event["outcome"] for event in told(played, "ruled")}
    assert ruled == {"aborted" if place == "decided" else "committed"}


@pytest.mark.parametrize(
    ("place", "emptied"),
    [
        ("decided", ("offsets", "commits")),
        pytest.param("prepared", ("offsets",), marks=LONG),
        pytest.param("settled", ("metadata", "commits"), marks=LONG),
    ],
)
def test_files_of_sparks_that_a_power_cut_leaves_empty(
    arena: Arena, place: str, emptied: tuple[str, ...]
) -> None:
    exact(arena, Incident(fault="power cut", failpoints=f"{place}=kill@2", emptied=emptied))


@LONG
@pytest.mark.parametrize("place", ["between", "decided", "planned", "returned"])
def test_a_sleeper_that_outlives_what_spark_and_we_remember_of_its_batch(
    arena: Arena, place: str
) -> None:
    """It could plan the batch again, and deliver it twice."""
    exact(
        arena,
        Incident(
            fault="sleeper",
            failpoints=f"{place}=stop@3",
            rival="when-stopped",
            past=RETAINED + 3,
            group=False,
            feed=160,
        ),
        retained=RETAINED,
        batch_rows=5,
    )


@LONG
@pytest.mark.parametrize("past", [1, 0])
@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_an_entry_of_sparks_log_that_a_late_rename_replaces(
    arena: Arena, log: str, past: int
) -> None:
    """It planned the batch with another end than the driver that delivers, or delivered it."""
    exact(
        arena,
        Incident(
            fault="renamed late",
            failpoints=f"{log}-renaming=stop@3",
            rival="when-stopped",
            rival_rows=2,
            past=past,
            left_s=0.3,
            group=False,
            feed=160,
        ),
        batch_rows=5,
    )


def test_two_drivers_that_both_add_each_batch(arena: Arena) -> None:
    both = Incident(
        fault="both add",
        rival="at-start",
        rival_rows=2,
        gap_s=0.1,
        signal="KILL",
        at_s=1.5,
        feed=160,
    )
    exact(arena, both, both, batch_rows=5)


@LONG
@pytest.mark.parametrize("copy", ["restored", "in place"])
@pytest.mark.parametrize("place", ["prepared", "planned"])
def test_a_copy_of_the_checkpoint_that_lags_by_the_batch_in_flight_is_refused(
    arena: Arena, place: str, copy: str
) -> None:
    played = exact(
        arena,
        Incident(
            fault="copy", failpoints=f"{place}=stop@3,between=stop@3", copy=copy, past=1, feed=160
        ),
        batch_rows=5,
    )
    [tried] = told(played, "tried")
    assert (tried["must"], tried["let_in"]) == ("refuse", False)


@LONG
def test_the_newest_copy_of_the_checkpoint_is_let_in(arena: Arena) -> None:
    played = exact(
        arena, Incident(fault="copy", failpoints="between=stop@3", copy="restored", past=0, feed=20)
    )
    [tried] = told(played, "tried")
    assert (tried["must"], tried["let_in"]) == ("start", True)


@LONG
@pytest.mark.parametrize("other", ["another topic", "the same topic", "another topic, left alone"])
def test_a_second_pipeline_with_the_prefix_is_refused(arena: Arena, other: str) -> None:
    """The first goes on unharmed, or starts again."""
    exact(arena, Incident(fault="second", other=other, feed=160), batch_rows=10)


@LONG
@pytest.mark.skipif(not ORDER_SURVIVES_REPLAY, reason="a replay across tasks shuffles its rows")
def test_a_replay_under_another_parallelism_keeps_the_order_of_a_key(arena: Arena) -> None:
    left = Incident(
        fault="timeout", failpoints="settled-some=kill", timeout_s=SHORT_S, left_s=SHORT_S + 0.6
    )
    exact(arena, left, Incident(fault="kill", failpoints="decided=kill", width=5), kind="keyed")

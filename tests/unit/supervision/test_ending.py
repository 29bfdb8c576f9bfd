"""How an app ended: every row of the table, and nothing green by mistake."""

from __future__ import annotations

import pytest

from airflow_eos.supervision.adoption import Action, choose
from airflow_eos.supervision.ending import IN_ORDER, End, Patience, Process, ended

from .lives import US, beat, seen, started

pytestmark = pytest.mark.unit

PATIENCE = Patience(silent_s=60, first_beat_s=600)
RUNS, EXITED = Process(running=True), Process(running=False)
LOST = Process(running=False, failure=RuntimeError("Error code is: 1"), detached=True)
CRASHED = Process(running=False, failure=RuntimeError("Error code is: 137"))
NEWER = beat(term=2, started_by=started("s2"), application_id="app-2")
BY_HAND = beat(term=2, started_by=None, application_id="app-2")


@pytest.mark.parametrize(
    ("look", "process", "since_s", "expected", "says"),
    [
        (seen(beat()), RUNS, 9999, None, ""),
        (seen(None), RUNS, 599, None, ""),
        (seen(None), RUNS, 600, End.NEVER_SEEN, "600 s of the submit"),
        (seen(beat(), silent_s=60), RUNS, 0, End.STALLED, "stand still for 60 s"),
        (seen(beat("failed", end="failed", reason="E: y"), silent_s=59), RUNS, 0, None, ""),
        (seen(beat("failed", reason="E: y"), silent_s=60), RUNS, 0, End.FAILED, "7 is still there"),
        (seen(beat("failed", end="superseded"), silent_s=60), RUNS, 0, End.SUPERSEDED, ""),
        (seen(beat("stopped", end="drained"), silent_s=599), RUNS, 0, None, ""),
        (seen(beat("stopped", end="finished"), silent_s=600), RUNS, 0, End.SUCCEEDED, "600 s"),
        (seen(beat("stopped", end="drained"), silent_s=600), RUNS, 0, End.DRAINED, ""),
        (seen(NEWER, silent_s=60), RUNS, 599, None, ""),
        (seen(NEWER, silent_s=60), RUNS, 600, End.SUPERSEDED, "app-2"),
        (seen(beat("stopped", end="finished")), EXITED, 0, End.SUCCEEDED, "last batch 4"),
        (seen(beat("stopped", end="drained")), EXITED, 0, End.DRAINED, "last batch 4"),
        (seen(beat("stopped"), moved=False), EXITED, 0, End.SUCCEEDED, ""),
        (seen(beat("waiting")), EXITED, 0, End.FAILED, "exited with 0"),
        (seen(beat("failed")), EXITED, 0, End.FAILED, "exited with 0"),
        (seen(None), EXITED, 0, End.FAILED, "no heartbeat of this start"),
        (seen(beat("stopped", started_by=started("s0")), moved=False), EXITED, 0, End.FAILED, ""),
        (seen(beat("stopped")), CRASHED, 0, End.FAILED, "137"),
        (seen(beat("failed", reason="RowError: x")), CRASHED, 0, End.FAILED, "RowError: x"),
        (seen(beat("failed", end="superseded")), CRASHED, 0, End.SUPERSEDED, ""),
        (seen(NEWER), CRASHED, 0, End.SUPERSEDED, "app-2"),
        (seen(NEWER), EXITED, 0, End.SUPERSEDED, "app-2"),
        (seen(beat()), LOST, 9999, None, ""),
        (seen(beat("stopped", end="finished")), LOST, 0, End.SUCCEEDED, ""),
        (seen(beat("failed", reason="E: y")), LOST, 0, End.FAILED, "E: y"),
        (seen(beat(), silent_s=60), LOST, 0, End.VANISHED, "silent for 60 s"),
        (seen(None), LOST, 0, End.FAILED, "Error code is: 1"),
        (seen(beat()), None, 9999, None, ""),
        (seen(beat("stopped", end="finished")), None, 0, End.SUCCEEDED, ""),
        (seen(beat("stopped", end="drained", reason="ops: x")), None, 0, End.DRAINED, "ops: x"),
        (seen(beat("stopped", end="drained", drained_by="page ann")), None, 0, End.DRAINED, ""),
        (seen(beat("stopped", end="drained", drained_by="airflow")), None, 0, End.CALLED_OFF, ""),
        (seen(beat("stopped", end="drained", drained_by="airflow")), EXITED, 0, End.CALLED_OFF, ""),
        (seen(beat("failed", end="failed", reason="E: y")), None, 0, End.FAILED, "E: y"),
        (seen(beat("failed", end="superseded")), None, 0, End.SUPERSEDED, ""),
        (seen(beat(), silent_s=59), None, 9999, None, ""),
        (seen(beat(), silent_s=60), None, 0, End.VANISHED, "silent for 60 s"),
        (seen(beat("stopped"), silent_s=999), None, 0, End.SUCCEEDED, ""),
        (seen(NEWER), None, 0, End.SUPERSEDED, "app-2"),
        (seen(BY_HAND), None, 0, End.SUPERSEDED, "app-2"),
        (seen(NEWER, moved=False), None, 599, None, ""),
        (seen(beat("stopped"), term=2), None, 9999, None, ""),
        (seen(beat(), term=2, silent_s=60), None, 9999, End.SUPERSEDED, "term 2"),
        (seen(None), None, 599, None, ""),
        (seen(None), None, 600, End.NEVER_SEEN, "600 s of the submit"),
    ],
)
def test_how_it_ended(look, process, since_s, expected, says):
    how = ended(look, "s1", process, PATIENCE, since_s)
    assert (how and how.end) is expected
    assert says in str(how)


def test_who_is_given_up_is_not_taken_over_again_by_the_next_look():
    for silent_s in (0.5, 5.9, 6.0, 7.0):
        look = seen(beat(), silent_s=silent_s)
        how = ended(look, "s1", None, Patience(0.1, 600), 0)
        assert (how is not None) is (choose(look, US, None).action is Action.START)


def test_only_a_driver_that_says_that_it_stopped_is_ever_in_order():
    assert {End.SUCCEEDED, End.DRAINED} == IN_ORDER
    for phase in ("starting", "waiting", "preparing", "settling", "failed"):
        for process in (RUNS, EXITED, CRASHED, None):
            for silent_s in (0, 9999):
                how = ended(seen(beat(phase), silent_s=silent_s), "s1", process, PATIENCE, 9999)
                assert how is None or not how.in_order


@pytest.mark.parametrize(
    ("heartbeat", "process", "hopeless"),
    [
        (beat("failed", reason="OwnershipError: of another"), None, True),
        (beat("failed", reason="TimeoutBudgetError: 3 numbers"), None, True),
        (beat("failed", reason="NonDeterministicReplayError: x"), None, True),
        (beat("failed", reason="KafkaUnavailableError: away"), None, False),
        (beat("failed", reason="ValueError, see the driver's log"), None, False),
        (beat("failed", reason=None), None, False),
        (beat("failed", reason="OwnershipError: of another"), CRASHED, True),
        (None, CRASHED, False),
        (None, Process(running=False, failure=RuntimeError("Error code is: 78.")), True),
        (None, Process(running=False, failure=RuntimeError("Error code is: 178.")), False),
    ],
)
def test_what_no_restart_can_heal_is_told_apart(heartbeat, process, hopeless):
    how = ended(seen(heartbeat), "s1", process, PATIENCE, 0)
    assert how.hopeless is hopeless

"""How an app ended: every row of the table, and nothing green by mistake."""

from __future__ import annotations

import pytest

from airflow_eos.supervision.exit_status import (
    IN_ORDER,
    ExitKind,
    NextAction,
    Patience,
    Process,
    choose,
    ended,
)

from tests.unit.supervision.lives import US, beat, seen, started

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
        (seen(None), RUNS, 600, ExitKind.NEVER_SEEN, "600 s of the submit"),
        (seen(beat(), silent_s=60), RUNS, 0, ExitKind.STALLED, "stand still for 60 s"),
        (seen(beat("failed", end="failed", reason="E: y"), silent_s=59), RUNS, 0, None, ""),
        (
            seen(beat("failed", reason="E: y"), silent_s=60),
            RUNS,
            0,
            ExitKind.FAILED,
            "7 is still there",
        ),
        (seen(beat("failed", end="superseded"), silent_s=60), RUNS, 0, ExitKind.SUPERSEDED, ""),
        (seen(beat("stopped", end="drained"), silent_s=599), RUNS, 0, None, ""),
        (seen(beat("stopped", end="finished"), silent_s=600), RUNS, 0, ExitKind.SUCCEEDED, "600 s"),
        (seen(beat("stopped", end="drained"), silent_s=600), RUNS, 0, ExitKind.DRAINED, ""),
        (seen(NEWER, silent_s=60), RUNS, 599, None, ""),
        (seen(NEWER, silent_s=60), RUNS, 600, ExitKind.SUPERSEDED, "app-2"),
        (seen(beat("stopped", end="finished")), EXITED, 0, ExitKind.SUCCEEDED, "last batch 4"),
        (seen(beat("stopped", end="drained")), EXITED, 0, ExitKind.DRAINED, "last batch 4"),
        (seen(beat("stopped"), moved=False), EXITED, 0, ExitKind.SUCCEEDED, ""),
        (seen(beat("waiting")), EXITED, 0, ExitKind.FAILED, "exited with 0"),
        (seen(beat("failed")), EXITED, 0, ExitKind.FAILED, "exited with 0"),
        (seen(None), EXITED, 0, ExitKind.FAILED, "no heartbeat of this start"),
        (
            seen(beat("stopped", started_by=started("s0")), moved=False),
            EXITED,
            0,
            ExitKind.FAILED,
            "",
        ),
        (seen(beat("stopped")), CRASHED, 0, ExitKind.FAILED, "137"),
        (seen(beat("failed", reason="RowError: x")), CRASHED, 0, ExitKind.FAILED, "RowError: x"),
        (seen(beat("failed", end="superseded")), CRASHED, 0, ExitKind.SUPERSEDED, ""),
        (seen(NEWER), CRASHED, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(NEWER), EXITED, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(beat()), LOST, 9999, None, ""),
        (seen(beat("stopped", end="finished")), LOST, 0, ExitKind.SUCCEEDED, ""),
        (seen(beat("failed", reason="E: y")), LOST, 0, ExitKind.FAILED, "E: y"),
        (seen(beat(), silent_s=60), LOST, 0, ExitKind.VANISHED, "silent for 60 s"),
        (seen(None), LOST, 0, ExitKind.FAILED, "exited with status 1"),
        (seen(beat()), None, 9999, None, ""),
        (seen(beat("stopped", end="finished")), None, 0, ExitKind.SUCCEEDED, ""),
        (
            seen(beat("stopped", end="drained", reason="ops: x")),
            None,
            0,
            ExitKind.DRAINED,
            "ops: x",
        ),
        (
            seen(beat("stopped", end="drained", drained_by="page ann")),
            None,
            0,
            ExitKind.DRAINED,
            "",
        ),
        (
            seen(beat("stopped", end="drained", drained_by="airflow")),
            None,
            0,
            ExitKind.CALLED_OFF,
            "",
        ),
        (
            seen(beat("stopped", end="drained", drained_by="airflow")),
            EXITED,
            0,
            ExitKind.CALLED_OFF,
            "",
        ),
        (seen(beat("failed", end="failed", reason="E: y")), None, 0, ExitKind.FAILED, "E: y"),
        (seen(beat("failed", end="superseded")), None, 0, ExitKind.SUPERSEDED, ""),
        (seen(beat(), silent_s=59), None, 9999, None, ""),
        (seen(beat(), silent_s=60), None, 0, ExitKind.VANISHED, "silent for 60 s"),
        (seen(beat("stopped"), silent_s=999), None, 0, ExitKind.SUCCEEDED, ""),
        (seen(NEWER), None, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(BY_HAND), None, 0, ExitKind.SUPERSEDED, "app-2"),
        (seen(NEWER, moved=False), None, 599, None, ""),
        (seen(beat("stopped"), term=2), None, 9999, None, ""),
        (seen(beat(), term=2, silent_s=60), None, 9999, ExitKind.SUPERSEDED, "term 2"),
        (seen(None), None, 599, None, ""),
        (seen(None), None, 600, ExitKind.NEVER_SEEN, "600 s of the submit"),
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
        assert (how is not None) is (choose(look, US, None).action is NextAction.START)


def test_only_a_driver_that_says_that_it_stopped_is_ever_in_order():
    assert {ExitKind.SUCCEEDED, ExitKind.DRAINED} == IN_ORDER
    for phase in ("starting", "waiting", "preparing", "settling", "failed"):
        for process in (RUNS, EXITED, CRASHED, None):
            for silent_s in (0, 9999):
                how = ended(seen(beat(phase), silent_s=silent_s), "s1", process, PATIENCE, 9999)
                assert how is None or not how.in_order


@pytest.mark.parametrize(
    ("heartbeat", "process", "hopeless"),
    [
        (beat("failed", restart_heals=False), None, True),
        (beat("failed", restart_heals=True), None, False),
        (beat("failed", restart_heals=None), None, False),
        (beat("waiting", restart_heals=False), None, False),
        (beat("failed", restart_heals=False), CRASHED, True),
        (beat("failed", restart_heals=True), CRASHED, False),
        (None, CRASHED, False),
        (None, Process(running=False, failure=RuntimeError("Error code is: 78.")), True),
        (None, Process(running=False, failure=RuntimeError("Error code is: 178.")), False),
    ],
)
def test_what_no_restart_can_heal_is_told_apart(heartbeat, process, hopeless):
    how = ended(seen(heartbeat), "s1", process, PATIENCE, 0)
    assert (how is not None and how.hopeless) is hopeless


COMMAND = "Cannot execute: spark-submit " + "--conf a=b " * 300


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("-9", "the app was killed (signal 9): exit status -9"),
        ("137", "the app was killed (signal 9): exit status 137"),
        ("143", "the app was killed (signal 15): exit status 143"),
        ("1", "the app exited with status 1; see its log"),
        ("255", "the app exited with status 255; see its log"),
        ("78", "it refuses to run as it is"),
    ],
)
def test_a_process_that_failed_is_told_in_a_few_words_and_not_by_its_command_line(status, says):
    failure = RuntimeError(f"{COMMAND}. Error code is: {status}.")
    how = ended(seen(None), "s1", Process(running=False, failure=failure), PATIENCE, 0)
    assert says in str(how)
    assert len(str(how)) < 200
    said = beat("failed", reason="STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE: another form")
    how = ended(seen(said), "s1", Process(running=False, failure=failure), PATIENCE, 0)
    assert how.found.startswith("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE: another form (the driver ")


def test_what_spark_submit_could_not_even_begin_is_one_line_and_cut():
    failure = OSError("no such file\n" + "x" * 10_000)
    how = ended(seen(None), "s1", Process(running=False, failure=failure), PATIENCE, 0)
    assert how.found.startswith("no such file x")
    assert len(how.found) == 300

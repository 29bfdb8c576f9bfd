"""Start, adopt, wait or refuse: every row of the table."""

from __future__ import annotations

import pytest

from airflow_eos.supervision.exit_status import NextAction, choose

from tests.unit.supervision.lives import US, beat, drain, seen, started

OTHER_RUN = started(run_id="r0")


@pytest.mark.parametrize(
    ("look", "request_", "expected", "says"),
    [
        (seen(None), None, NextAction.START, "no driver has ever run"),
        (seen(None, term=1), None, NextAction.LOOK, "driver of term 1"),
        (seen(None, term=1, silent_s=6), None, NextAction.START, "silent for 6 s"),
        (seen(beat("stopped")), None, NextAction.START, "has ended"),
        (seen(beat("failed"), moved=False), None, NextAction.START, "has ended"),
        (seen(beat("stopped", started_by=OTHER_RUN)), None, NextAction.START, "has ended"),
        (seen(beat(), silent_s=6), None, NextAction.START, "silent for 6 s"),
        (seen(beat(), silent_s=5.9, moved=False), None, NextAction.LOOK, "in a moment"),
        (seen(beat(interval_ms=9000), silent_s=6), None, NextAction.ADOPT, "earlier try"),
        (seen(beat(), moved=False), None, NextAction.LOOK, "in a moment"),
        (seen(beat()), None, NextAction.ADOPT, "earlier try"),
        (seen(beat("starting")), None, NextAction.ADOPT, "earlier try"),
        (seen(beat(started_by=OTHER_RUN)), None, NextAction.REFUSE, "task d.t of run r0"),
        (seen(beat(started_by=None)), None, NextAction.REFUSE, "nobody in Airflow"),
        (seen(beat()), drain(term=1), NextAction.WAIT, "asked by ops to drain"),
        (seen(beat()), drain(submission="s1"), NextAction.WAIT, "asked by ops"),
        (seen(beat(started_by=OTHER_RUN)), drain(term=1), NextAction.WAIT, "asked by ops"),
        (seen(beat(term=2)), drain(term=1), NextAction.ADOPT, "earlier try"),
        (seen(beat()), drain(submission="s0"), NextAction.ADOPT, "earlier try"),
        (seen(beat("stopped"), term=2), None, NextAction.LOOK, "driver of term 2"),
        (seen(beat(), term=2), None, NextAction.LOOK, "driver of term 2"),
        (seen(beat(), term=2, silent_s=6), None, NextAction.START, "driver of term 2"),
    ],
)
def test_what_a_try_does(look, request_, expected, says):
    choice = choose(look, US, request_)
    assert choice.action is expected
    assert says in choice.reason

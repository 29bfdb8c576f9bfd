"""What happened to a pipeline: noted by who comes next, bounded, and never in anybody's way."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, history, take_term, write_heartbeat
from airflow_eos.core.checkpoint.backend import HISTORY
from airflow_eos.core.checkpoint.drain import BY_STANDBY
from airflow_eos.core.checkpoint.heartbeat import StartedBy
from airflow_eos.core.checkpoint.history import KEPT, PastEvents
from airflow_eos.core.checkpoint.liveness import note_process_end
from airflow_eos.core.delivery.beats import BeatLoop
from tests.support.beats import heartbeat
from tests.unit.core.checkpoint.conftest import TroubledBackend


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(TroubledBackend(), "memory://test")


def driver(store: CheckpointStore, *, stood_by: bool = False) -> None:
    """One that starts, and ends at once in order."""
    beats = BeatLoop(store, application_id="app-2", trigger=timedelta(seconds=1))
    beats.stood_by = stood_by
    beats.start(take_term(store, taken_by="app-2").term.number)
    beats.stop("stopped")


@pytest.mark.parametrize(
    ("former", "what", "why"),
    [
        ({"phase": "settling"}, "silent", "no last word, in phase 'settling'"),
        ({"phase": "failed", "end": "failed", "reason": "TopicError: gone"}, "failed", "TopicErr"),
        (
            {"phase": "stopped", "end": "drained", "drained_by": "cli ann", "reason": "cli ann: x"},
            "drained",
            "cli ann: x",
        ),
        ({"phase": "stopped", "end": "drained", "drained_by": BY_STANDBY}, "handed over", ""),
        ({"phase": "stopped", "end": "superseded"}, "superseded", ""),
    ],
)
def test_a_driver_notes_how_the_one_before_it_ended(store, former, what, why):
    """Its last word was gone once the next one gave a heartbeat, and who had drained it."""
    write_heartbeat(store, heartbeat(**former, term=None))
    driver(store, stood_by=True)
    end, start = PastEvents().events(store)
    assert (end.what, end.who) == (what, "app-1 on node-1")
    assert why in end.why
    assert (start.what, start.why) == ("took over", "by hand")
    assert start.release
    assert start.app


def test_an_end_that_whoever_started_it_has_seen_is_said(store):
    task = StartedBy(dag_id="d", task_id="t", run_id="r", map_index=-1, submission="s")
    by = heartbeat("waiting", started_by=task)
    assert history.ended(by, store).why == "no last word, in phase 'waiting'"
    note_process_end(store, "s", "exit status -9")
    assert history.ended(by, store).why.endswith(": exit status -9")
    assert history.started(by, stood_by=False, app="", release="").why == f"by {task}"


def test_the_first_driver_of_all_has_none_before_it(store):
    driver(store)
    assert [each.what for each in PastEvents().events(store)] == ["started"]


def test_a_driver_notes_where_its_spark_ui_is_and_a_note_of_before_has_none(store):
    beats = BeatLoop(
        store, application_id="app-2", trigger=timedelta(seconds=1), spark_ui="http://node-1:4040"
    )
    beats.start(take_term(store, taken_by="app-2").term.number)
    beats.stop("stopped")
    former = msgspec.structs.asdict(_event(1)) | {"format_version": 1}
    del former["spark_ui"]
    store.put(f"{HISTORY}/{1:015}-0.json", msgspec.json.encode(former))
    assert [each.spark_ui for each in PastEvents().events(store)] == ["", "http://node-1:4040"]


def test_only_the_newest_are_kept(store):
    for number in range(KEPT + 3):
        history.note(store, [_event(number)])
    kept = PastEvents().events(store)
    assert [each.at_ms for each in kept] == list(range(3, KEPT + 3))
    assert len(store.list(HISTORY)) == KEPT


def test_what_is_damaged_hides_no_other(store):
    history.note(store, [_event(1), _event(2)])
    store.put(store.list(HISTORY)[0].path, b"{")
    assert [each.at_ms for each in PastEvents().events(store)] == [2]


def _event(at_ms: int) -> history.Happened:
    return history.Happened(what="recovered", at_ms=at_ms, who="ann", why="batch 1")

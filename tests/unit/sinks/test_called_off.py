"""A start that was given up while its cluster let it wait comes up late, and finds another one."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_eos.checkpoint import (
    CheckpointStore,
    StartedBy,
    newest_term,
    request_drain,
    take_term,
)
from airflow_eos.checkpoint.heartbeat import BY_AIRFLOW, STARTED_BY
from airflow_eos.delivery import start as module
from airflow_eos.errors import CalledOffError
from airflow_eos.protocol.decision import encode
from tests.unit.supervision.lives import drain, started

GUARANTEES = ("exactly_once", "at_most_once", "at_least_once")
GIVEN_UP: dict[str, Any] = {"requested_by": BY_AIRFLOW, "reason": "it was given up: NEVER_SEEN"}


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    store = CheckpointStore.open(tmp_path)
    take_term(store, taken_by="the start that took its place")
    return store


@pytest.fixture
def begin(store, monkeypatch):
    """Begin as this start; returns what was taken."""
    taken: list[str] = []
    driver = SimpleNamespace(
        start=lambda _: taken.append("the heartbeat"), mark=None, observer=None
    )
    monkeypatch.setattr(module, "_reached", lambda *_: MagicMock())

    def take_over(*_: Any, **__: Any) -> Any:
        taken.append("the claim")
        return MagicMock(), MagicMock()

    monkeypatch.setattr(module, "take_over", take_over)
    monkeypatch.setattr(module, "retained_batches", lambda _: 2)

    def made(guarantee: str, us: StartedBy | None) -> list[str]:
        if us is not None:
            monkeypatch.setenv(STARTED_BY, us.as_text())
        sink, governed = MagicMock(guarantee=guarantee), MagicMock()
        with ExitStack() as resources:
            given: tuple[Any, ...] = (governed, MagicMock(), driver, MagicMock(), resources)
            module.make_batch_function(MagicMock(), sink, store, *given)
        return taken

    made.taken = taken  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_start_that_was_given_up_takes_nothing_from_the_driver_that_runs(store, begin, guarantee):
    request_drain(store, submission="s1", **GIVEN_UP)
    with pytest.raises(CalledOffError, match=r"airflow has asked.*given up.*Nothing was begun"):
        begin(guarantee, started("s1"))
    assert newest_term(store) == 1
    assert begin.taken == []


def test_so_does_one_that_a_former_release_has_asked(store, begin):
    store.put("eos/drain.json", encode(drain(submission="s1")))
    with pytest.raises(CalledOffError):
        begin("at_most_once", started("s1"))
    assert newest_term(store) == 1


@pytest.mark.parametrize("named", [{}, {"term": 1}, {"submission": "s0"}], ids=str)
@pytest.mark.parametrize("us", [started("s1"), None], ids=["by Airflow", "by hand"])
def test_what_was_asked_of_others_keeps_no_start_from_beginning(store, begin, named, us):
    request_drain(store, requested_by="ops", reason="a release", **named)
    assert begin("at_most_once", us) == ["the heartbeat"]
    assert newest_term(store) == 2


def test_one_that_was_asked_is_found_also_behind_a_request_to_whoever_runs(store, begin):
    request_drain(store, submission="s1", **GIVEN_UP)
    request_drain(store, requested_by="ops", reason="a release")
    with pytest.raises(CalledOffError):
        begin("exactly_once", started("s1"))

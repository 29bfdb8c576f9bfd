"""A witness that does not show: waited for where it can come to light, else a person is asked.

What leaders answer is made by hand; tests/integration/kafka/test_copies_that_lag.py has brokers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.offsets import LogEnds
from airflow_eos.kafka.transactions import outcomes
from airflow_eos.protocol.decision import Outcome
from tests.unit.kafka.test_outcome_table import PREPARED, WITNESS

WIRE: Any = SimpleNamespace(cluster=SimpleNamespace(find_leaders=lambda _topic: {0: 1}))
HOLDS_IT, ENDS_BEFORE = LogEnds(0, WITNESS + 1), LogEnds(0, WITNESS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ask once, where the leader says that its log begins and ends there."""
    grace: dict[Any, Deadline] = {}

    def ask(ends: LogEnds | None) -> Outcome | None:
        monkeypatch.setattr(outcomes, "log_ends", lambda *_given, **_leader: ends)
        return outcomes._hidden(WIRE, PREPARED, grace)

    return ask


@pytest.mark.parametrize("ends", [HOLDS_IT, LogEnds(WITNESS, WITNESS + 1), None])
def test_a_log_that_holds_it_or_a_leader_that_does_not_say_is_asked_again(asked, ends):
    assert asked(ends) is None


def test_what_is_past_retention_nobody_can_tell(asked):
    assert asked(LogEnds(WITNESS + 1, WITNESS + 9)) is Outcome.UNKNOWN


def test_a_log_that_ends_before_it_is_given_time(asked, monkeypatch):
    """It may have been a former leader that answered; UNKNOWN would stand for ever."""
    assert asked(ENDS_BEFORE) is None
    assert asked(ENDS_BEFORE) is None
    monkeypatch.setattr(Deadline, "expired", True)
    assert asked(ENDS_BEFORE) is Outcome.UNKNOWN


def test_the_time_begins_anew_where_the_log_held_it_in_between(asked, monkeypatch):
    assert asked(ENDS_BEFORE) is None
    since = Deadline(0.0)
    monkeypatch.setattr(outcomes, "Deadline", lambda _seconds: since)
    assert asked(HOLDS_IT) is None
    assert asked(ENDS_BEFORE) is Outcome.UNKNOWN, "the deadline of the second time is another one"


@pytest.mark.parametrize(("local", "outcome"), [(True, Outcome.UNKNOWN), (False, None)])
def test_an_empty_answer_of_remote_storage_is_asked_again_and_no_question_for_a_person(
    monkeypatch: pytest.MonkeyPatch, local: bool, outcome: Outcome | None
) -> None:
    asked: list[Any] = []

    def is_local(_wire: Any, *place: Any, leader: int) -> Any:
        asked.append((*place, leader))
        return local

    monkeypatch.setattr(outcomes, "is_local", is_local)
    assert outcomes._of_nothing(WIRE, PREPARED) is outcome
    assert asked == [("out", 0, WITNESS, 1)]

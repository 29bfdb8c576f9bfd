"""The recovery of a start goes over the connection of the look before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from airflow_eos.errors import TimeoutBudgetError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.supervision.preflight import TimeoutBudget, reached_within
from airflow_eos.supervision.recovery import Recovery, recover_before_start

MINUTE = timedelta(minutes=1)


def budget(**changes) -> TimeoutBudget:
    fields = {
        "trigger_interval": timedelta(seconds=1),
        "batch_within": MINUTE,
        "recover_within": MINUTE,
        "transaction_timeout": 5 * MINUTE,
    }
    return TimeoutBudget(**(fields | changes))


@dataclass
class Connections:
    opened: list[ConnectionPool] = field(default_factory=list)
    closed: list[ConnectionPool] = field(default_factory=list)


@pytest.fixture
def connections(monkeypatch) -> Connections:
    """Those that are opened and closed from now on."""
    noted, opens, closes = Connections(), ConnectionPool.__init__, ConnectionPool.close

    def opening(self, *given, **known):
        noted.opened.append(self)
        opens(self, *given, **known)

    def closing(self):
        noted.closed.append(self)
        closes(self)

    monkeypatch.setattr(ConnectionPool, "__init__", opening)
    monkeypatch.setattr(ConnectionPool, "close", closing)
    return noted


def test_kafka_is_reached_once_and_let_go_before_the_app_runs(dead, connections):
    dead.decided(dead.write(0, ["a"]), term=1)
    first = reached_within(budget(), dead.settings)
    recovery = Recovery(dead.store.location, dead.settings, first=first)

    recover_before_start(recovery, known_dead=lambda _: True, act=True)

    assert dead.visible() == ["a"]
    assert len(connections.opened) == 1
    assert set(connections.closed) == set(connections.opened)
    recover_before_start(recovery, known_dead=lambda _: True, act=True)
    assert len(connections.opened) == 2, "a restart, days later, opens its own"


def test_a_budget_that_does_not_hold_leaves_no_connection_behind(dead, connections):
    with pytest.raises(TimeoutBudgetError):
        reached_within(budget(transaction_timeout=MINUTE), dead.settings)

    assert len(connections.opened) == len(connections.closed) == 1

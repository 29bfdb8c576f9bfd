"""A deadline on the age of the last settled batch."""

from __future__ import annotations

import importlib
from datetime import timedelta

import airflow.sdk
from airflow.sdk import DAG

from airflow_eos import notifications as deadline
from airflow_eos.notifications import settled_within

try:
    # Left out of Airflow's own stub.
    from airflow.sdk import AsyncCallback, DeadlineReference  # type: ignore[attr-defined]
except ImportError:  # Airflow 3.1 has them, and exports them not
    from airflow.sdk.definitions.deadline import (  # type: ignore[attr-defined]
        AsyncCallback,
        DeadlineReference,
    )


async def late() -> None:
    """What would be called."""


def test_it_counts_from_when_the_batch_before_was_told():
    alert = settled_within(timedelta(minutes=10), AsyncCallback(late))
    assert alert.reference == DeadlineReference.DAGRUN_QUEUED_AT
    assert alert.interval == timedelta(minutes=10)
    assert DAG("d", schedule=None, deadline=alert).deadline == [alert]


def test_an_airflow_that_does_not_export_deadlines_has_them_all_the_same(monkeypatch):
    """3.1."""

    def lacks(name: str) -> None:
        raise AttributeError(name)

    with monkeypatch.context() as older:
        older.setattr(airflow.sdk, "__getattr__", lacks)
        for name in ("DeadlineAlert", "DeadlineReference"):
            older.delattr(airflow.sdk, name, raising=False)
        importlib.reload(deadline)
        alert = deadline.settled_within(timedelta(minutes=10), AsyncCallback(late))
        assert alert.interval == timedelta(minutes=10)
    importlib.reload(deadline)

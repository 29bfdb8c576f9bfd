"""What every test of the model runs under: no real waiting, no log output."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from airflow_eos.checkpoint import store
from airflow_eos.kafka import coordinator, ending, listing, outcomes, patience, settle
from tests.model.wire import VirtualTime


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualTime()
    for room in (coordinator, ending, listing, outcomes, patience, settle):
        monkeypatch.setattr(room, "time", clock)
    monkeypatch.setattr(store, "_PAUSES_S", (0.0, 0.0))


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()

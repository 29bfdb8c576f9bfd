"""What a history of the model runs under: no real waiting, no log output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from airflow_eos.checkpoint import store
from airflow_eos.kafka.client import patience
from airflow_eos.kafka.transactions import coordinator, ending, listing, outcomes, settle
from airflow_eos.sinks import difference
from tests.model.wire import VirtualTime


@contextmanager
def quiet() -> Iterator[None]:
    """Waiting costs nothing, and nobody says anything."""
    clock = VirtualTime()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with pytest.MonkeyPatch.context() as patch:
        for room in (coordinator, ending, listing, outcomes, patience, settle):
            patch.setattr(room, "time", clock)
        patch.setattr(store, "_PAUSES_S", (0.0, 0.0))
        patch.setattr(difference, "undelivered", lambda rows, seen, **_: rows.exceptAll(seen))
        yield
    structlog.reset_defaults()

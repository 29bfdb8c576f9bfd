"""What a history of the model runs under: no real waiting, no log output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

from airflow_eos.core.checkpoint import store
from airflow_eos.core.delivery import replay as difference
from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.transactions import hanging
from tests.model.wire import VirtualTime


@contextmanager
def quiet() -> Iterator[None]:
    """Waiting costs nothing, and nobody says anything."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "time", VirtualTime())
        patch.setattr(store, "_PAUSES_S", (0.0, 0.0))
        # Its topic is never made again; so the histories that are known stay what they were.
        patch.setattr(hanging, "replaced", lambda *_args, **_how: set())
        patch.setattr(difference, "undelivered", lambda rows, seen, **_: rows.exceptAll(seen))
        yield
    structlog.reset_defaults()

"""What a history of the model runs under: no real waiting, no log output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import structlog
from greenlet import getcurrent

from airflow_eos.core.checkpoint import store
from airflow_eos.core.delivery import batch
from airflow_eos.core.delivery import replay as difference
from airflow_eos.core.protocol import participant_group
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
        for module in (participant_group, batch):
            patch.setattr(module, "side_by_side", in_some_order)
        yield
    structlog.reset_defaults()


def in_some_order(acts: Iterable[Callable[[], Any]]) -> list[Any]:
    """One after another, since a thread is no process of the model; in each process another way."""
    answers: dict[int, Any] = {}

    def ask(number: int, act: Callable[[], Any]) -> None:
        answers[number] = act()

    asked = list(enumerate(acts))
    name = getattr(getcurrent(), "name", "")
    is_backwards = sum(name.encode()) % 2 == 1
    participant_group.in_turn(
        partial(ask, *each) for each in (reversed(asked) if is_backwards else asked)
    )
    return [answers[number] for number, _ in asked]

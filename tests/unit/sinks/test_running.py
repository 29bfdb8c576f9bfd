"""What becomes of an error of Spark's while somebody has asked to drain."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.delivery.query import Drained, ExactlyOnceQuery, GuardedBatch
from airflow_eos.errors import RowError, SupersededError


class Heart:
    """What a query asks of its heartbeat, and what it tells it at the end."""

    def __init__(self) -> None:
        self.draining, self.superseded = threading.Event(), threading.Event()
        self.said: list[Any] = []

    def begin(self, batch_id: int) -> None: ...

    def fail(self, batch_id: int, error: BaseException) -> None: ...

    def stop(self, phase: str, error: BaseException | None = None) -> None:
        self.said.append((phase, type(error)))


class Spark:
    """A query that ends as it is told."""

    isActive = False  # noqa: N815 - Spark's name

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def awaitTermination(self, _timeout: int | None = None) -> bool:  # noqa: N802 - Spark's name
        if self.error is not None:
            raise self.error
        return True


@pytest.fixture
def heart() -> Heart:
    return Heart()


def query(heart: Heart, error: BaseException | None, batch: Any = None) -> Any:
    run = GuardedBatch(batch or (lambda *_: None), heart)  # type: ignore[arg-type]
    return ExactlyOnceQuery(Spark(error), run, heart, ExitStack()), run  # type: ignore[arg-type]


def test_a_query_that_fails_while_it_drains_is_not_green(heart):
    """Its source, its state or its plan: errors that no batch of ours has seen."""
    heart.draining.set()
    made, _ = query(heart, RuntimeError("offsets are gone"))
    with pytest.raises(RuntimeError, match="offsets are gone"):
        made.awaitTermination()
    assert heart.said == [("failed", RuntimeError)]


def test_a_batch_that_is_left_to_the_next_start_is_how_spark_tells_of_a_drain(heart):
    made, run = query(heart, RuntimeError("[FOREACH_BATCH_USER_FUNCTION_ERROR]"))
    heart.draining.set()
    with pytest.raises(Drained):
        run(SimpleNamespace(), 7)
    assert made.awaitTermination() is True
    assert heart.said == [("stopped", type(None))]


def test_a_driver_has_ended_as_soon_as_it_has_left_a_batch(heart):
    """Spark plans nothing more, and takes its time to come to rest: who stands by takes over."""
    _made, run = query(heart, None)
    heart.draining.set()
    with pytest.raises(Drained):
        run(SimpleNamespace(), 7)
    assert heart.said == [("stopped", type(None))]


def test_a_batch_that_fails_while_it_drains_is_raised(heart):
    def fails(*_: Any) -> None:
        heart.draining.set()
        raise RowError("too big")

    made, run = query(heart, RuntimeError("[FOREACH_BATCH_USER_FUNCTION_ERROR]"), fails)
    with pytest.raises(RowError):
        run(SimpleNamespace(), 7)
    with pytest.raises(RowError):
        made.awaitTermination()
    assert heart.said == [("failed", RowError)]


@pytest.mark.parametrize("between", [True, False], ids=["between two batches", "before one"])
def test_a_query_that_ends_because_it_was_superseded_says_so(heart, between):
    made, run = query(heart, None if between else RuntimeError("[FOREACH_BATCH]"))
    heart.superseded.set()
    heart.draining.set()
    if not between:
        with pytest.raises(Drained):
            run(SimpleNamespace(), 7)
    with pytest.raises(SupersededError, match="taken this checkpoint over"):
        made.awaitTermination()
    assert heart.said == [("failed", SupersededError)]

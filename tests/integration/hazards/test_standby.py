"""Drivers that stand by behind a real one: it is killed, drains, hands over, sleeps and wakes."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_eos.checkpoint import CheckpointStore, drain_newest, newest_term
from airflow_eos.checkpoint.standby import standbys
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.stopping import PATIENCE_S
from tests.support.host import Host
from tests.support.pipeline import Pipeline, finish, kill, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

Process = subprocess.Popen[str]


class Watched(Pipeline):
    """A pipeline that goes on until it is drained."""

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore.open(self.checkpoint)

    def await_rows(self, process: Process, what: str) -> None:
        """Until every row that was fed is visible."""
        self._await(process, lambda: len(self.visible()) >= len(self.expected), what)

    def await_term(self, process: Process, term: int) -> None:
        self._await(process, lambda: newest_term(self.store) >= term, f"term {term}")

    def await_standbys(self, process: Process, count: int) -> None:
        self._await(
            process, lambda: len(standbys(self.store)) >= count, f"{count} drivers that stand by"
        )

    def _await(self, process: Process, condition: object, what: str) -> None:
        wait_until(
            lambda: process.poll() is not None or condition(),  # type: ignore[operator]
            timeout=PATIENCE_S,
            what=what,
        )
        assert process.poll() is None, f"{what}: {finish(process, 5)[-4000:]}"

    @contextmanager
    def drives(self) -> Iterator[Process]:
        """A driver that has delivered, in a JVM of its own."""
        process = self.elsewhere().start(until_caught_up=False)
        try:
            self.feed(200)
            self.await_rows(process, "the first rows")
            yield process
        finally:
            kill(process)

    @contextmanager
    def stands_by(self, count: int = 1, **changes: object) -> Iterator[Process]:
        """A driver that waits for its turn, beside ``count - 1`` others."""
        process = self.start(until_caught_up=False, standby=True, **changes)
        try:
            self.await_standbys(process, count)
            yield process
        finally:
            kill(process)

    def end(self, process: Process) -> str:
        """Drain the driver of the newest term, and check all that was delivered."""
        drain_newest(self.store, requested_by="test", reason="the end of the test")
        said = finish(process, PATIENCE_S)
        assert process.returncode == 0, said[-4000:]
        self.assert_exactly_once()
        self.assert_ordered()
        assert self.open_transactions() == ()
        return said


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, host: Host, tmp_path: Path) -> Watched:
    return Watched(kafka_broker, tmp_path, host=host)


def test_a_standby_follows_a_driver_that_was_killed(pipeline: Watched) -> None:
    """Both its processes, as by a machine that is gone; the rows go on, each once."""
    with pipeline.drives() as first, pipeline.stands_by() as standby:
        assert newest_term(pipeline.store) == 1, "it took a term while it stood by"
        pipeline.feed(300)
        pipeline.await_rows(first, "rows while another stands by")
        began = time.monotonic()
        kill(first)
        pipeline.feed(300)
        pipeline.await_rows(standby, "the rows after the kill")
        logging.getLogger(__name__).warning("visible after %.1f s", time.monotonic() - began)
        assert newest_term(pipeline.store) == 2
        assert standbys(pipeline.store) == ()
        pipeline.end(standby)

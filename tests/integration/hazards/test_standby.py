"""Drivers that stand by behind a real one: it is killed, drains, hands over, sleeps and wakes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint import CheckpointStore, drain_newest, newest_term, read_heartbeat
from airflow_eos.core.checkpoint.standby import standbys
from airflow_eos.errors import ConfigurationError
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.stopping import PATIENCE_S
from tests.support.host import Host
from tests.support.pipeline import Pipeline, finish, kill, wait_until

pytestmark = pytest.mark.timeout(900)

Process = subprocess.Popen[str]


class Watched(Pipeline):
    """A pipeline that goes on until it is drained."""

    counts = False

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore.open(self.checkpoint)

    def await_rows(self, process: Process, what: str) -> None:
        """Until every row that was fed is visible."""
        self._await(process, self._all_there, what)

    def _all_there(self) -> bool:
        if self.counts:
            newest = {key: int(count) for key, count in self.visible()}
            return sum(newest.values()) >= len(self.expected)
        return len(self.visible()) >= len(self.expected)

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
    def drives(self, **changes: Any) -> Iterator[Process]:
        """A driver that has delivered, in a JVM of its own."""
        process = self.elsewhere().start(until_caught_up=False, **changes)
        try:
            self.feed(200)
            self.await_rows(process, "the first rows")
            yield process
        finally:
            kill(process)

    @contextmanager
    def again(self) -> Iterator[Process]:
        """A driver that follows without having stood by."""
        process = self.elsewhere().start(until_caught_up=False)
        try:
            yield process
        finally:
            kill(process)

    @contextmanager
    def stands_by(self, count: int = 1, **changes: Any) -> Iterator[Process]:
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
    made = Watched(kafka_broker, tmp_path, host=host)
    made.settings = {"beat_s": 4}  # else a busy machine makes a driver that lives look dead
    return made


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
        wait_until(lambda: standbys(pipeline.store) == (), what="the driver to stand by no more")
        pipeline.end(standby)


@pytest.mark.proof
def test_a_driver_hands_over_to_its_standby(pipeline: Watched) -> None:
    """Asked for by hand; nobody is asked to end while nobody stands by."""
    with pipeline.drives() as first:
        refused = CliRunner().invoke(app, ["handover", pipeline.checkpoint])
        assert isinstance(refused.exception, ConfigurationError)
        with pipeline.stands_by() as standby:
            pipeline.feed(300)
            done = CliRunner().invoke(app, ["handover", pipeline.checkpoint, "--wait", "240"])
            assert done.exit_code == 0, done.output
            finish(first, PATIENCE_S)
            assert first.returncode == 0, "it was not drained"
            pipeline.feed(300)
            pipeline.await_rows(standby, "the rows after it was handed over")
            assert newest_term(pipeline.store) == 2
            pipeline.end(standby)


@pytest.mark.proof
def test_a_driver_that_nobody_could_follow_goes_on(pipeline: Watched) -> None:
    """The topic of the new version was deleted while that stood by."""
    new, admin = f"{pipeline.name}-new", AdminClient({"bootstrap.servers": pipeline.bootstrap})
    pipeline.broker.create_topic(new, 2)
    with pipeline.drives() as first, pipeline.stands_by(output_topic=new) as standby:
        admin.delete_topics([new])[new].result(30)
        kept = CliRunner().invoke(app, ["handover", pipeline.checkpoint, "--wait", "240"])
        assert kept.exit_code == 1, kept.output
        assert "the driver goes on" in kept.output
        assert new in kept.output, "it does not say what is missing"
        pipeline.feed(300)
        pipeline.await_rows(first, "the rows after it was asked to hand over")
        assert newest_term(pipeline.store) == 1
        assert standby.poll() is None, "it could follow once the topic is there"
        pipeline.end(first)


@pytest.mark.proof
def test_of_two_standbys_one_follows_and_the_other_follows_that_one(pipeline: Watched) -> None:
    with (
        pipeline.drives() as first,
        pipeline.stands_by() as one,
        pipeline.stands_by(count=2) as two,
    ):
        kill(first)
        pipeline.await_term(one, 2)
        pipeline.await_standbys(two, 1)
        pipeline.feed(300)
        pipeline.await_rows(one, "the rows of the second driver")
        drives, waits = (one, two) if read_heartbeat(pipeline.store).pid == one.pid else (two, one)
        kill(drives)
        pipeline.feed(300)
        pipeline.await_rows(waits, "the rows of the third driver")
        assert newest_term(pipeline.store) == 3, "one of them stopped the other"
        pipeline.end(waits)


@pytest.mark.proof
def test_a_driver_that_was_wrongly_taken_for_dead_delivers_nothing_more(pipeline: Watched) -> None:
    """It stands still (SIGSTOP) long enough, is followed, and wakes beside its successor."""
    with pipeline.drives() as first, pipeline.stands_by() as standby:
        pipeline.feed(300)
        os.killpg(first.pid, signal.SIGSTOP)
        pipeline.await_term(standby, 2)
        pipeline.feed(300)
        pipeline.await_rows(standby, "the rows of the standby")
        os.killpg(first.pid, signal.SIGCONT)
        said = finish(first, PATIENCE_S)
        assert first.returncode not in (0, None), said[-3000:]
        pipeline.feed(300)
        pipeline.await_rows(standby, "the rows after it woke")
        pipeline.end(standby)


@pytest.mark.proof
def test_a_standby_that_wakes_late_stands_by_behind_whoever_came(pipeline: Watched) -> None:
    """It sleeps through the end of the first, the start and the rows of the second."""
    with pipeline.drives() as first, pipeline.stands_by() as standby:
        os.kill(standby.pid, signal.SIGSTOP)
        kill(first)
        with pipeline.again() as second:
            pipeline.feed(300)
            pipeline.await_rows(second, "the rows of the second driver")
            os.kill(standby.pid, signal.SIGCONT)
            behind = time.monotonic() + PATIENCE_S
            while all(each.behind < 2 for each in standbys(pipeline.store)):
                assert time.monotonic() < behind
                time.sleep(0.1)
            pipeline.feed(300)
            pipeline.await_rows(second, "the rows beside the standby that woke")
            assert newest_term(pipeline.store) == 2, "it stopped a driver that lives"
            pipeline.end(second)
        said = finish(standby, PATIENCE_S)
        assert "nobody is needed to stand by" in said, said[-3000:]


@pytest.mark.proof
def test_an_app_that_does_not_fit_says_so_and_nobody_stops(pipeline: Watched) -> None:
    """Another prefix is another pipeline; and a standby that is killed costs nobody anything."""
    with pipeline.drives() as first:
        refused = pipeline.start(until_caught_up=False, standby=True, prefix=f"{pipeline.name}x")
        said = finish(refused, PATIENCE_S)
        assert refused.returncode == 3, said[-3000:]
        assert "OwnershipError" in said
        with pipeline.stands_by() as standby:
            kill(standby)
        pipeline.feed(300)
        pipeline.await_rows(first, "the rows beside standbys that failed")
        assert newest_term(pipeline.store) == 1
        pipeline.end(first)


@pytest.mark.proof
def test_an_app_whose_state_has_another_form_says_so_and_nobody_stops(pipeline: Watched) -> None:
    """And one with the same state follows, from the state of the first."""
    pipeline.counts = True
    with pipeline.drives(kind="count") as first:
        changed = pipeline.start(until_caught_up=False, standby=True, kind="count pairs")
        said = finish(changed, PATIENCE_S)
        assert changed.returncode == 3, said[-3000:]
        assert "the state in the checkpoint has another form" in said, said[-3000:]
        assert newest_term(pipeline.store) == 1
        with pipeline.stands_by(kind="count") as standby:
            kill(first)
            pipeline.feed(300)
            pipeline.await_rows(standby, "the counts of all rows")
            drain_newest(pipeline.store, requested_by="test", reason="the end of the test")
            said = finish(standby, PATIENCE_S)
            assert "standing_by" in said
            assert "standby_is_not_warm" not in said, "a state is not computed ahead, as is meant"
            pipeline.assert_counts()

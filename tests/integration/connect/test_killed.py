"""What a Spark Connect client has started dies at every place, and its rows come once."""

from __future__ import annotations

import signal

import psutil
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, newest_term, read_heartbeat
from tests.support.connect_server import connect_server, die_at
from tests.support.pipeline import wait_until

pytestmark = pytest.mark.timeout(900)

PLACES = ("sealed", "before-prepare", "prepared", "settled")


def test_its_driver_dies_once_it_has_decided_and_the_next_query_of_the_server_delivers(
    remote, server
):
    failed = remote.deliver(server, "decided=kill")
    assert failed is not None
    assert remote.visible() == [], "promised, and not yet shown"

    assert remote.deliver(server) is None
    remote.assert_exactly_once()
    remote.assert_ordered()
    assert remote.open_transactions() == ()
    store = CheckpointStore.open(remote.checkpoint)
    assert newest_term(store) == 2
    assert read_heartbeat(store).end == "finished"
    wait_until(lambda: server.drivers() == [], timeout=60, what="the drivers' processes to end")


@pytest.mark.proof
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_its_driver_dies_anywhere(remote, server, place, nth):
    if (place, nth) == ("sealed", 2):
        pytest.skip("the first batch alone seals")
    assert remote.deliver(server, f"{place}=kill@{nth}") is not None
    assert remote.deliver(server) is None
    remote.assert_exactly_once()
    assert remote.open_transactions() == ()


@pytest.mark.proof
@pytest.mark.parametrize("place", ["prepared", "decided", "settled"])
def test_the_jvm_dies_under_a_driver_that_sleeps_and_wakes_behind_its_successor(
    remote, tmp_path, place
):
    with connect_server(tmp_path / "first") as first:
        die_at(first.folder, f"{place}=stop")
        with first.client() as session:
            remote.begin(session)
            wait_until((first.folder / f"{place}.hit").exists, what="the driver to sleep")
            [sleeper] = first.drivers()
            first.kill_jvm()
    try:
        with connect_server(tmp_path / "second") as second:
            assert remote.deliver(second) is None
            remote.assert_exactly_once()
            sleeper.send_signal(signal.SIGCONT)
            gone, _ = psutil.wait_procs([sleeper], 60)
            assert gone == [sleeper], "a driver whose JVM is gone ends"
            remote.assert_exactly_once()
            assert remote.open_transactions() == ()
    finally:
        if sleeper.is_running():
            sleeper.kill()

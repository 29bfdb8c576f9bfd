"""A host that is gone says nothing: neither side of a connection may wait for it for long."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from airflow_eos.errors import StoreError
from airflow_eos.kinds.mysql.session import MySqlConnection, asked, connected, done
from tests.integration.mysql.conftest import World

pytestmark = pytest.mark.long


def test_a_server_that_vanishes_is_noticed_within_the_time(world: World):
    """No packet says that it is gone, so the kernel has to ask."""
    with closing(connected(world.server.url, lock_timeout_s=5, timeout_s=9)) as connection:
        line = connection._sock
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        found = [line.getsockopt(socket.IPPROTO_TCP, getattr(socket, each)) for each in options]
        assert found == [9, 3, 3, 9000]
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_driver_that_vanishes_leaves_its_locks_for_seconds_only(world: World):
    """And one that was only idle for so long is answered."""
    world.sql(f"INSERT INTO {world.tag} VALUES (1, 'one')")
    locked = f"SELECT id FROM {world.tag} FOR UPDATE"

    def lock(connection: Any) -> None:
        done(connection, "BEGIN")
        done(connection, locked)

    with closing(MySqlConnection(world.server.url, timeout_s=1)) as vanished:
        vanished.run("locking", lock)
        with closing(MySqlConnection(world.server.url, timeout_s=20, lock_timeout_s=10)) as other:
            assert other.run("locking", lambda c: asked(c, locked)) == [(1,)]
        assert vanished.run("asking", lambda c: asked(c, "SELECT 1")) == [(1,)]


def test_a_commit_waits_for_a_lock_as_long_as_the_sink_was_told(unique: World):
    my, work = unique.participant(lock_timeout=timedelta(seconds=1)), unique.prepare(1)
    with closing(connected(unique.server.url, lock_timeout_s=5, timeout_s=5)) as other:
        done(other, "BEGIN")
        done(other, f"INSERT INTO {unique.tag} VALUES (1, 'not yet')")
        began = time.monotonic()
        with pytest.raises(StoreError, match="longer than lock_timeout"):
            my.commit([work])
        assert time.monotonic() - began < 45, "the server's own limit is 50 s"
        done(other, "ROLLBACK")
    my.commit([work])
    assert unique.seen() == [1]

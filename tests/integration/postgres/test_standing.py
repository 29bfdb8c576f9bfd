"""What a database remembers of a name, and what it is asked before it is believed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    PipelineIdentity,
    claim,
)
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.checkpoint.rulings import accept, resolve
from airflow_eos.core.checkpoint.snapshot import require_owner as require_owner_of_checkpoint
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import OwnershipError, StoreError, exit_status
from airflow_eos.kinds.postgres.participant import PostgresParticipant
from airflow_eos.kinds.postgres.session import durable
from tests.integration.postgres.conftest import World
from tests.integration.sql.verbs import require_owner
from tests.support.pipelines import commit_of, owner_at
from tests.support.servers.postgres import EmbeddedPostgres

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"orders":{"0":5}}'
THEIRS = PreparedWork("kafka", "totals", "theirs", 5, "0" * 32, 0, None, {})


def promised(nonce: str, *works: PreparedWork, batch: int = 7, attempt: int = 1) -> Decision:
    return commit_of(batch, *works, attempt=attempt, offsets=OFFSETS, nonce=nonce * 32)


def test_a_commit_that_a_failover_lost_is_never_rolled_back(two_phase: World):
    """What was prepared is back, nobody in flight names it, and recovery would abort it."""
    pg, work = two_phase.participant(), two_phase.prepare(1)
    with pytest.raises(OwnershipError, match=rf"Commit \(never roll back\).*{work.key}"):
        require_owner(pg, "/a", 8, b7=(promised("a", work),))


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(max_prepared_transactions=8) as server:
        yield server


@pytest.mark.long
def test_a_standby_is_no_witness_and_a_failover_stops_whoever_runs(own_server: EmbeddedPostgres):
    """Prepared transactions survive it; a start goes on, a process that ran before does not."""
    world = World(own_server)
    pg, works = world.participant(), [world.prepare(1), world.prepare(2, task=1)]
    pg.commit(works[:1])
    own_server.stop()
    (own_server.folder / "data" / "standby.signal").touch()
    own_server.start()
    for asked in (lambda: pg.outcome(works), lambda: world.prepare(3)):
        with pytest.raises(StoreError, match=r"is a standby.*=primary") as refused:
            asked()
        assert exit_status(refused.value) == 1, "the next start may find the primary"
    promote(own_server)
    with pytest.raises(StoreError, match=r"failed over.*Start again"):
        pg.outcome(works)
    after = world.participant()
    assert after.outcome(works) == {
        works[0].identity: Outcome.COMMITTED,
        works[1].identity: Outcome.OPEN,
    }
    after.commit(works)
    assert world.seen() == [1, 2]


def promote(server: EmbeddedPostgres) -> None:
    """As a failover does to a standby."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote(wait_seconds => 30)").fetchone() == (True,)


class Batches:
    """A checkpoint in which batch 7 is over, as ``decided`` says, and batch 8 was planned."""

    def __init__(self, folder: Path, *decided: Decision) -> None:
        self.store = CheckpointStore.open(folder)
        for batch in (7, 8):
            self.store.put(f"offsets/{batch}", OFFSETS.encode())
        self.store.put("commits/7", b'v1\n{"nextBatchWatermarkMs":0}')
        for decision in decided:
            assert DecisionLog(self.store).record(decision)
        self.newest = decided[-1]

    def require_owner(self, pg: PostgresParticipant) -> None:
        pipeline = PipelineIdentity(
            id="7" * 32, participants=pg.members, created_at_ms=0, created_by="a test"
        )
        claim(self.store, pipeline)
        owner = owner_of(self.store)
        pg.claim(owner)
        pg.note(self.newest, owner)
        require_owner_of_checkpoint(self.store, pg)


def test_rows_that_a_person_has_given_up_are_no_rows_that_the_database_forgot(
    world: World, tmp_path: Path
):
    """Else no start after an acceptance would ever be let through: its witnesses are missing."""
    pg, works = world.participant(), [world.prepare(1), world.prepare(2, 3, task=1)]
    batches = Batches(tmp_path, promised("a", *works))
    pg.commit(works[1:])
    pg.abort([works[0].identity])
    with pytest.raises(OwnershipError, match="does not show 1 of its rows"):
        batches.require_owner(pg)
    accept(batches.store, 7, "a" * 32, missing={"orders": 1}, ruled_by="ann")
    batches.require_owner(pg)
    world.sql(f"DELETE FROM airflow_eos.works WHERE key = '{works[1].key}'")
    with pytest.raises(OwnershipError, match="does not show 3 of its rows"):
        batches.require_owner(pg)


def test_rows_that_a_person_says_readers_have_are_not_missed(world: World, tmp_path: Path):
    pg, lost, whole = world.participant(), world.prepare(1), world.prepare(2, task=1)
    batches = Batches(tmp_path, promised("a", lost, whole))
    pg.commit([whole])
    pg.abort([lost.identity])
    resolve(batches.store, lost.identity, Outcome.COMMITTED)
    batches.require_owner(pg)


def test_rows_that_a_person_says_are_not_there_were_replayed_and_are_missed(
    world: World, tmp_path: Path
):
    """A lost witness of the replay must not pass in silence because of the ruling before it."""
    pg, lost, again = world.participant(), world.prepare(1), world.prepare(1, task=1)
    batches = Batches(tmp_path, promised("a", lost), promised("b", again, attempt=2))
    resolve(batches.store, lost.identity, Outcome.ABORTED)
    with pytest.raises(OwnershipError, match="does not show 1 of its rows"):
        batches.require_owner(pg)
    pg.abort([lost.identity])
    pg.commit([again])
    batches.require_owner(pg)


def test_rows_of_the_last_batch_of_a_run_that_ended_in_order_are_missed_too(
    world: World, tmp_path: Path
):
    """Nobody would ask about it again: the next start plans another one."""
    pg, work = world.participant(), world.prepare(1)
    batches = Batches(tmp_path, promised("a", work, batch=8))
    batches.require_owner(pg)  # in flight: recovery asks for its outcome
    batches.store.put("commits/8", b'v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(OwnershipError, match=r"Batch 8 .*does not show 1 of its rows"):
        batches.require_owner(pg)
    pg.commit([work])
    batches.require_owner(pg)


def test_what_a_pooler_makes_of_a_session_loses_no_commit_of_staged_rows():
    """It gives each transaction another connection: what was set before is not set there."""
    lax = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
    with EmbeddedPostgres(settings=lax) as server:
        world = World(server, two_phase=False)
        pg, work = world.participant(), world.prepare(1)
        pg._session.run("being pooled", lambda connection: connection.execute("RESET ALL"))

        def said(connection: Any) -> Any:
            with durable(connection):
                return connection.execute("SHOW synchronous_commit").fetchone()[0]

        # Rows alone do not tell: the stage's removal has the server write all that came before.
        assert pg._session.run("a transaction of ours", said) == "on"
        pg.claim(owner_at("/a"))
        pg.note(promised("a", work), owner_at("/a"))
        pg.commit([work])
        server.stop(how=signal.SIGQUIT)
        server.start()
        assert world.seen() == [1]
        pg.close()

"""A server that is set back to an older copy of its data: what was applied since is gone there.

The rows are in no checkpoint any more, so nothing delivers them again; going on would lose them in
silence.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, claim
from airflow_eos.core.checkpoint import PipelineIdentity as PipelineIdentity
from airflow_eos.core.checkpoint.backend import COMMITS
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.checkpoint.snapshot import require_owner
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import DeliveryError, OwnershipError
from airflow_eos.kinds.spill.participant import new_key
from airflow_eos.kinds.upsert.mysql import MySqlTarget, MySqlUpsert
from airflow_eos.kinds.upsert.participant import UpsertParticipant, made
from airflow_eos.kinds.upsert.postgres import PostgresUpsert
from airflow_eos.kinds.upsert.redis import RedisUpsert
from airflow_eos.kinds.upsert.target import RowSchema, TargetSpec
from tests.integration.kept.keeping import decided, keep
from tests.support.authority import OFFSETS
from tests.support.mysql import EXACT_COLLATION, mysql_server
from tests.support.servers.postgres import EmbeddedPostgres
from tests.support.servers.redis import EmbeddedRedis

psycopg = pytest.importorskip("psycopg")
redis = pytest.importorskip("redis")
pytest.importorskip("pymysql")

TABLE = "CREATE TABLE totals (id varchar(40){0} PRIMARY KEY, value bigint, eos_version varchar(64))"


class Base(ABC):
    """A server, its data, and how a person speaks to it."""

    server: Any
    reached: TargetSpec

    @property
    @abstractmethod
    def data(self) -> Path:
        """Its folder of data."""

    @abstractmethod
    def stop(self) -> None:
        """End it, with all on disk."""

    @abstractmethod
    def run(self, statement: str) -> None:
        """What a person runs."""

    @abstractmethod
    def fresh(self) -> None:
        """An empty target, which nobody has owned."""

    @abstractmethod
    def rows(self) -> dict[str, int]:
        """All values by key."""

    def copied(self, into: Path) -> Path:
        self.stop()
        subprocess.run(["cp", "-a", str(self.data), str(into)], check=True)
        self.server.start()
        return into

    def set_back(self, copy: Path) -> None:
        self.stop()
        shutil.rmtree(self.data)
        subprocess.run(["cp", "-a", str(copy), str(self.data)], check=True)
        self.server.start()


class Postgres(Base):
    def __init__(self) -> None:
        self.server = EmbeddedPostgres()
        self.server.start()
        self.reached = PostgresUpsert(self.server.dsn, "totals")

    @property
    def data(self) -> Path:
        return Path(self.server.folder, "data")

    def stop(self) -> None:
        self.server.stop()

    def _ask(self, statement: str) -> list[Any]:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            found = connection.execute(statement)
            return list(found.fetchall()) if found.description else []

    def run(self, statement: str) -> None:
        self._ask(statement)

    def fresh(self) -> None:
        self._ask("DROP TABLE IF EXISTS totals, airflow_eos_upserts")
        self._ask(TABLE.format(""))

    def rows(self) -> dict[str, int]:
        return dict(self._ask("SELECT id, value FROM totals"))


class MySql(Base):
    def __init__(self) -> None:
        self.server = mysql_server()
        self.numbers = itertools.count(2)
        self.server.start()
        self.reached = MySqlUpsert(self.server.url, "totals")

    @property
    def data(self) -> Path:
        return Path(self.server._folder, "data")

    def stop(self) -> None:
        self.server.kill()  # every commit is on disk

    def set_back(self, copy: Path) -> None:
        self.server._settings = (f"--server-id={next(self.numbers)}",)  # a replica took over
        super().set_back(copy)

    def _ask(self, statement: str) -> list[Any]:
        target = MySqlTarget(self.server.url, "totals", timeout_s=30)
        with target.asking("testing") as cursor:
            cursor.execute(statement)
            found = list(cursor.fetchall())
        target.close()
        return found

    def run(self, statement: str) -> None:
        self._ask(statement)

    def fresh(self) -> None:
        self._ask("DROP TABLE IF EXISTS totals, airflow_eos_upserts")
        self._ask(TABLE.format(f" COLLATE {EXACT_COLLATION}"))

    def rows(self) -> dict[str, int]:
        return dict(self._ask("SELECT id, value FROM totals"))


class Redis(Base):
    def __init__(self) -> None:
        self.server = EmbeddedRedis()
        self.server.start()
        self.reached = RedisUpsert(self.server.url, "t:")

    @property
    def data(self) -> Path:
        return Path(self.server._folder, "appendonlydir")

    def stop(self) -> None:
        self.server.kill()  # every write is on disk

    def run(self, statement: str) -> None:
        with redis.Redis.from_url(self.server.url) as client:
            for command in statement.split(" and "):
                client.execute_command(*shlex.split(command)[1:])

    def fresh(self) -> None:
        self.run("redis-cli FLUSHALL")

    def rows(self) -> dict[str, int]:
        with redis.Redis.from_url(self.server.url, decode_responses=True) as client:
            keys = list(client.scan_iter("t:*"))
            return {key.removeprefix("t:"): int(client.hget(key, "value")) for key in keys}


@pytest.fixture(scope="module", params=[Postgres, MySql, Redis], ids=lambda each: each.__name__)
def running(request: pytest.FixtureRequest) -> Iterator[Base]:
    base = request.param()
    yield base
    base.server.close()


@pytest.fixture
def base(running: Base) -> Base:
    running.fresh()
    return running


def row(batch: int, task: int) -> pa.Table:
    table = pa.table({"id": [f"k{batch}-{task}"], "value": [batch]})
    return table.replace_schema_metadata(RowSchema(("id",)).metadata())


def identity(name: str, members: Sequence[Member]) -> PipelineIdentity:
    return PipelineIdentity(
        id=name, participants=tuple(members), created_at_ms=0, created_by="driver 1"
    )


class Pipeline:
    """A checkpoint that delivers batches, as a driver of it does."""

    def __init__(self, base: Base, folder: Path) -> None:
        self.base = base
        self.store = CheckpointStore.open(folder / "checkpoint")
        self.driver = self.participant()
        claim(self.store, identity("1" * 32, self.driver.members))
        self.driver.claim(owner_of(self.store))

    def participant(self) -> UpsertParticipant:
        return made(self.store, "totals", self.base.reached.open(timeout_s=30))

    def prepared(self, batch: int, task: int = 0) -> PreparedWork:
        table = row(batch, task)
        return keep(self.store, table, kind="upsert", name="totals", batch=batch, task=task)

    def decided(self, batch: int, *works: PreparedWork) -> None:
        self.store.put(f"offsets/{batch}", OFFSETS.encode())
        decision = decided(batch, works=works)
        DecisionLog(self.store).record(decision)
        self.driver.note(decision, owner_of(self.store))

    def delivers(self, batch: int, *, tasks: int = 1) -> None:
        works = [self.prepared(batch, task) for task in range(tasks)]
        self.decided(batch, *works)
        self.driver.commit(works)
        self.store.put(f"{COMMITS}/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')

    def starts(self) -> UpsertParticipant:
        """As a driver that starts does, and a recovery."""
        participant = self.participant()
        try:
            require_owner(self.store, participant)
        except BaseException:
            participant.close()
            raise
        return participant


class AtOnce(Pipeline):
    """The same with ``staged=False``: tasks write, and then a decision that names none of it."""

    def participant(self) -> UpsertParticipant:
        return made(self.store, "totals", self.base.reached.open(timeout_s=30), staged=False)

    def delivers(self, batch: int, *, tasks: int = 1) -> None:
        for task in range(tasks):
            key = new_key(batch, task, 0)
            work = PreparedWork("upsert", "totals", key, 1, "0" * 32, 0, None, {})
            self.driver.apply(work, row(batch, task))
        self.decided(batch)
        self.store.put(f"{COMMITS}/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def pipeline(base: Base, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(base, tmp_path)
    yield pipeline
    pipeline.driver.close()


@pytest.fixture
def at_once(base: Base, tmp_path: Path) -> Iterator[AtOnce]:
    pipeline = AtOnce(base, tmp_path)
    yield pipeline
    pipeline.driver.close()


def test_a_target_that_lost_batches_that_are_over_is_refused_until_a_person_lets_it(
    pipeline: Pipeline, base: Base, tmp_path: Path
):
    pipeline.delivers(8)
    copy = base.copied(tmp_path / "copy")
    pipeline.driver.close()
    for batch in (9, 10):
        pipeline.delivers(batch)
    pipeline.starts().close()
    base.set_back(copy)
    with pytest.raises(
        OwnershipError, match=r"was set back \(it counts to 1, after 3\)"
    ) as refused:
        pipeline.starts()
    assert base.rows() == {"k8-0": 8}, "9 and 10 are in no checkpoint, and would never come again"
    base.run(str(refused.value).partition("knowingly: ")[2].partition(", then start")[0])
    pipeline.driver.close()
    pipeline.driver = pipeline.starts()
    pipeline.delivers(11)
    pipeline.starts().close()


@pytest.mark.long
def test_batches_without_rows_hide_no_loss(pipeline: Pipeline, base: Base, tmp_path: Path):
    pipeline.delivers(8)
    copy = base.copied(tmp_path / "copy")
    pipeline.driver.close()
    pipeline.delivers(9)
    for batch in (10, 11):
        pipeline.delivers(batch, tasks=0)
    base.set_back(copy)
    with pytest.raises(OwnershipError, match="was set back"):
        pipeline.starts()
    shutil.rmtree(Path(pipeline.store.location, "eos/kept/totals/done"))
    with pytest.raises(OwnershipError, match=r"batch 10 is over, and it knows of none after 8"):
        pipeline.starts()  # its marks are pruned


def test_a_part_of_the_batch_in_flight_that_was_lost_is_missed(
    pipeline: Pipeline, base: Base, tmp_path: Path
):
    """Its mark says that it is applied, and the driver that replays the batch asks for no more."""
    works = [pipeline.prepared(0, task) for task in range(2)]
    pipeline.decided(0, *works)
    copy = base.copied(tmp_path / "copy")
    pipeline.driver.close()
    pipeline.driver.commit(works[:1])
    pipeline.starts().close()
    base.set_back(copy)
    with pytest.raises(OwnershipError, match=r"was set back \(it counts to 0, after 1\)"):
        pipeline.starts()


def test_a_driver_that_runs_on_is_stopped_before_the_next_batch(
    pipeline: Pipeline, base: Base, tmp_path: Path
):
    pipeline.delivers(0)
    copy = base.copied(tmp_path / "copy")
    pipeline.driver.close()
    pipeline.delivers(1)
    base.set_back(copy)
    pipeline.driver.close()  # and connects again
    with pytest.raises(OwnershipError, match=r"was set back \(it counts to 1, after 2\)"):
        pipeline.delivers(2)
    assert base.rows() == {"k0-0": 0}


def test_a_target_that_was_set_back_between_note_and_rows_never_counts_up_to_what_it_lost(
    pipeline: Pipeline, base: Base, tmp_path: Path
):
    """Else the next start would find the number that it expects."""
    pipeline.delivers(0)
    copy = base.copied(tmp_path / "copy")
    pipeline.driver.close()
    pipeline.delivers(1)
    work = pipeline.prepared(2)
    pipeline.decided(2, work)
    base.set_back(copy)
    pipeline.driver.close()
    for _ in range(2):
        with pytest.raises(OwnershipError, match="was set back"):
            pipeline.driver.commit([work])
    assert pipeline.driver.outcome([work]) == {work.identity: Outcome.OPEN}
    with pytest.raises(OwnershipError, match="was set back"):
        pipeline.starts()


def test_what_a_failover_takes_away_within_a_commit_is_never_marked_as_applied(
    pipeline: Pipeline, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was counted last is older than the rows, so that the number alone tells nothing."""
    pipeline.delivers(0)
    works = [pipeline.prepared(1, task) for task in range(2)]
    pipeline.decided(1, *works)
    copy = base.copied(tmp_path / "copy")
    pipeline.driver.close()
    target = pipeline.driver._target
    apply = type(target).apply
    applied = itertools.count(1)

    def dies_after_the_first(self: Any, *given: Any) -> int:
        older = apply(self, *given)
        if next(applied) == 1:
            base.set_back(copy)
        return older

    monkeypatch.setattr(type(target), "apply", dies_after_the_first)
    with contextlib.suppress(DeliveryError):
        pipeline.driver.commit(works)
    pipeline.driver.commit(works)
    assert base.rows() == {"k0-0": 0, "k1-0": 1, "k1-1": 1}
    pipeline.starts().close()


@pytest.mark.long
def test_a_target_that_was_given_up_and_taken_again_is_none_that_was_set_back(
    pipeline: Pipeline, base: Base
):
    pipeline.delivers(0)
    pipeline.delivers(1, tasks=20)
    base.run(pipeline.driver._target.give_up)
    again = pipeline.participant()
    again.claim(owner_of(pipeline.store))
    require_owner(pipeline.store, again)
    again.close()


def test_a_driver_whose_tasks_write_at_once_notices_between_two_batches(
    at_once: AtOnce, base: Base, tmp_path: Path
):
    """No commit counts what they wrote, so a decision that names nothing of it must."""
    at_once.delivers(0)
    copy = base.copied(tmp_path / "copy")
    at_once.driver.close()
    at_once.delivers(1)
    base.set_back(copy)
    at_once.driver.close()  # and connects again
    with pytest.raises(OwnershipError, match=r"was set back \(it counts to 1, after 2\)"):
        at_once.delivers(2)


def test_a_start_notices_what_was_written_at_once_and_is_gone(
    at_once: AtOnce, base: Base, tmp_path: Path
):
    at_once.delivers(0)
    copy = base.copied(tmp_path / "copy")
    at_once.driver.close()
    at_once.delivers(1)
    at_once.delivers(2)
    at_once.starts().close()
    base.set_back(copy)
    with pytest.raises(OwnershipError, match=r"batch \d is over, and it knows of none after 0"):
        at_once.starts()

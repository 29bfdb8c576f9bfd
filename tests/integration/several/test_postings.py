"""Two-sided postings to Kafka and PostgreSQL at once: the books balance for every reader, always.

Both sides of a posting are rows of one task, so of one prepared transaction: whoever looks, at
whatever moment of whatever crash, finds both or none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.postgres import EmbeddedPostgres
from airflow_eos.recovery import Action, execute_recovery, plan_recovery
from tests.support.pipeline import KILLED, Pipeline, wait_until

pytestmark = [pytest.mark.integration]

TABLE = "CREATE TABLE postings (posting text, side text, amount bigint)"
LOOK = "SELECT coalesce(sum(amount), 0), count(*) FROM postings"


class Auditor(threading.Thread):
    """Looks at the books again and again, through a connection of its own."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self.looks = 0
        self.rows_seen: set[int] = set()
        self.unbalanced: list[tuple[int, int]] = []
        self._dsn = dsn
        self._over = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.is_set():
                found = connection.execute(LOOK).fetchone()
                assert found is not None
                total, rows = found
                self.looks += 1
                self.rows_seen.add(rows)
                if total != 0 or rows % 2:
                    self.unbalanced.append((total, rows))

    def end(self) -> None:
        self._over.set()
        self.join(30)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        yield running


@pytest.fixture
def auditor(server: EmbeddedPostgres) -> Iterator[Auditor]:
    looking = Auditor(server.dsn)
    looking.start()
    yield looking
    looking.end()


def test_the_books_balance_for_every_reader_at_every_moment(
    kafka_broker: EmbeddedKafka,
    server: EmbeddedPostgres,
    auditor: Auditor,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    pipeline = Pipeline(kafka_broker, tmp_path, settings={"dsn": server.dsn})
    for place in ("prepared@2", "settled-some@2", "decided@1"):
        name, _, nth = place.partition("@")
        pipeline.feed(4000)
        pipeline.run(expect=KILLED, failpoints=f"{name}=kill@{nth}")
    reach = {"postings": server.dsn}
    kafka = {"bootstrap.servers": pipeline.bootstrap}
    plan = plan_recovery(pipeline.checkpoint, kafka, reach=reach)
    promised = plan.count(Action.COMMIT, Action.REPLAY)  # where Kafka's timeout was faster
    assert promised == len(plan.steps) > 0
    execute_recovery(plan, kafka, reach=reach, force=True).require_complete()
    pipeline.resume(spark)
    wait_until(lambda: auditor.looks >= 10_000, timeout=120, what="10,000 looks at the books")
    auditor.end()

    assert auditor.unbalanced == []
    assert len(auditor.rows_seen) > 5, "it looked while rows came"
    postings = {value for _, value in pipeline.expected}
    sides = {(posting, side): 1 for posting in postings for side in ("from", "to")}
    with psycopg.connect(server.dsn) as connection:
        booked = connection.execute("SELECT posting, side FROM postings").fetchall()
        waiting = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone()
    assert Counter(booked) == sides
    seen = Counter((value, key.partition(" ")[0]) for key, value in pipeline.visible())
    assert seen == sides, "in Kafka too, no posting has one side only"
    assert waiting == (0,)
    assert pipeline.open_transactions() == ()

"""The documents' numbers of the page views: checkpoint 100, alignment, Redis, and MySQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.examples import Example
from tests.support.kinds.mysql import connect
from tests.support.topics import read_topic

COUNTS = "from_json(cast(value AS string), 'app string, views bigint')"


@dataclass(frozen=True)
class Views:
    """The app, and the topics beside it."""

    app: Example
    views: str
    counts: str

    def view(self, app: str, times: int, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.app.broker.bootstrap_servers})
        for _ in range(times):
            producer.produce(self.views, json.dumps({"app": app}), partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def seen(self, app: str, isolation: str = "read_committed") -> list[int]:
        """Each count of an app that a reader finds, in order."""
        rows = read_topic(self.app.broker.bootstrap_servers, self.counts, isolation=isolation)
        return [json.loads(value)["views"] for key, value in rows if key == app]

    def settled(self) -> dict[str, int]:
        """By partition, the offset that Spark goes on from: that of the last batch it committed."""
        batch = max(int(log.name) for log in (self.app.checkpoint / "commits").glob("[0-9]*"))
        [offsets] = (self.app.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
        told: dict[str, int] = json.loads(offsets)[self.views]
        return told


@pytest.fixture
def views(example, topic) -> Callable[..., Views]:
    def made(partitions: int = 1, **how) -> Views:
        views, counts = topic("views", partitions), topic("counts")
        topics = ("--input-topic", views, "--output-topic", counts)
        app = example("page_views", *topics, *("--state-partitions", "2"), **how)
        return Views(app, views, counts)

    return made


@pytest.mark.examples
def test_checkpoint_100_holds_offset_60000_and_its_counts_and_a_crash_goes_on_from_both(
    views, play
):
    job = views()
    job.view("app1", 50_000)
    job.view("app2", 10_000)
    play(job.app)
    job.app.assert_rocksdb()
    assert job.settled() == {"0": 60_000}
    assert (job.seen("app1"), job.seen("app2")) == ([50_000], [10_000])

    job.view("app1", 300)
    job.view("app2", 200)
    play(job.app, "prepared", "decided")

    assert job.settled() == {"0": 60_500}
    assert (job.seen("app1"), job.seen("app2")) == ([50_000, 50_300], [10_000, 10_200])


@pytest.mark.examples
def test_the_count_of_two_partitions_is_20005_and_not_20008(views, play):
    """The documents' snapshot across a later offset would have 20008, and count three twice.

    The first death is looked at before anybody brings the app back; then it dies once more.
    """
    job = views(partitions=2)
    job.view("shop", 10_000, partition=0)
    job.view("shop", 10_005, partition=1)
    play(job.app)
    assert job.settled() == {"0": 10_000, "1": 10_005}
    job.view("shop", 3, partition=1)
    job.app.killed("prepared")

    assert job.settled() == {"0": 10_000, "1": 10_005}
    assert job.seen("shop", "read_uncommitted") == [20_005, 20_008]
    assert job.seen("shop") == [20_005]
    play(job.app, "decided")
    assert job.settled() == {"0": 10_000, "1": 10_008}
    assert job.seen("shop") == [20_005, 20_008]


@pytest.mark.examples
def test_absolute_counts_in_redis_and_postgres_stand_at_10200_where_increments_give_10400(
    views, servers, spark, tmp_path
):
    reach = servers.of(["redis", "postgres"])
    table = f"views_{tmp_path.name.replace('-', '_')}"
    target = {"kind": "upsert", "key": ["app"], "rows": COUNTS}
    job = views(
        outputs=[
            {"name": "redis", "system": "redis", "target": f"{table}:", **target},
            {"name": "postgres", "system": "postgres", "target": table, **target},
        ],
        reach=reach,
    )
    cache = redis.Redis.from_url(reach["redis"], decode_responses=True)
    database = psycopg.connect(reach["postgres"], autocommit=True)
    with closing(cache), closing(database):
        columns = "app text PRIMARY KEY, views bigint, eos_version text"
        database.execute(f"CREATE TABLE {table} ({columns})")

        def absolute() -> tuple[object, list[tuple[int]]]:
            found = database.execute(f"SELECT views FROM {table}").fetchall()
            return cache.hget(f"{table}:shop", "views"), found

        def add(rows: DataFrame) -> None:
            cache.incrby(f"{table} plain", rows.count())

        job.view("shop", 10_000)
        job.app.run()
        plain(spark, job, tmp_path, add)
        assert absolute() == ("10000", [(10_000,)])
        assert cache.get(f"{table} plain") == "10000"

        job.view("shop", 200)
        job.app.killed("settled")
        with pytest.raises(StreamingQueryException):
            plain(spark, job, tmp_path, dying(add))
        # Both stand at 10,200 when the job dies, and its checkpoint at 10,000.
        assert job.settled() == {"0": 10_000}
        assert absolute() == ("10200", [(10_200,)])
        assert cache.get(f"{table} plain") == "10200"

        job.app.run()
        plain(spark, job, tmp_path, add)
        assert absolute() == ("10200", [(10_200,)])
        assert cache.get(f"{table} plain") == "10400", "or the control shows nothing"


@pytest.mark.examples
def test_rows_that_a_plain_insert_leaves_twice_in_mysql_are_there_once(
    views, servers, spark, tmp_path
):
    reach = servers.of(["mariadb"])["mariadb"]
    table = f"views_{tmp_path.name.replace('-', '_')}"
    output = {"name": "mysql", "kind": "mysql", "table": table, "rows": COUNTS}
    job = views(outputs=[output], reach={"mysql": reach})
    with closing(connect(reach)) as database, database.cursor() as cursor:
        for name in (table, f"{table}_plain"):
            cursor.execute(f"CREATE TABLE {name} (app varchar(20), views bigint)")

        def insert(rows: DataFrame) -> None:
            cursor.execute(f"INSERT INTO {table}_plain VALUES ('shop', {rows.count()})")

        def found(name: str) -> list[tuple[str, int]]:
            cursor.execute(f"SELECT app, views FROM {name}")
            return list(cursor.fetchall())

        job.view("shop", 200)
        job.app.killed("settled")
        with pytest.raises(StreamingQueryException):
            plain(spark, job, tmp_path, dying(insert))
        job.app.run()
        plain(spark, job, tmp_path, insert)
        assert found(table) == [("shop", 200)]
        assert found(f"{table}_plain") == [("shop", 200)] * 2, "or the control shows nothing"


def plain(
    spark: SparkSession, job: Views, folder: Path, write: Callable[[DataFrame], None]
) -> None:
    """The same without us: what a batch writes is told as it comes, by Spark's own means alone."""
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.app.broker.bootstrap_servers)
        .option("subscribe", job.views)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.col("value"))
    )
    (
        rows.writeStream.option("checkpointLocation", str(folder / "plain"))
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, _: write(batch))
        .start()
        .awaitTermination()
    )


def dying(write: Callable[[DataFrame], None]) -> Callable[[DataFrame], None]:
    """The job dies when it has written, and before Spark has noted that the batch is done."""

    def once(rows: DataFrame) -> None:
        write(rows)
        raise RuntimeError("the job dies")

    return once

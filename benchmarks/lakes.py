"""CPU a row of our lake sinks beside Spark's own streaming writers of the same formats.

Each way reads the same orders from Kafka and appends them to a partitioned table in a bucket:
Iceberg by day(at) and bucket(16, order_id) through a REST catalog, Delta by a column of days and
one of 16 buckets. Time runs on with the orders, so that a batch has one day or two.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from airflow_eos.kinds.lake.new_table import NewTable
from airflow_eos.local.jars import pyspark_version, s3a_jars
from airflow_eos.sinks import DeltaSink, IcebergSink, start_exactly_once
from benchmarks import rows, spark
from benchmarks.cpu import CpuMeter
from benchmarks.plot import Chart
from benchmarks.report import Result, Table, median_ratio
from benchmarks.stage import Stage, refuse, staged
from benchmarks.targets import COLUMNS, PARTITIONS, sums_of
from tests.support.servers.iceberg import EmbeddedIcebergRest
from tests.support.servers.jars import server_jars
from tests.support.servers.s3 import EmbeddedS3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 2_000_000
_ROUNDS = 2
_WARM, _BATCHES, _LAST = 1, 4, 1
_WARM_UP_SHARE = 10
_MADE = (
    "order_id BIGINT, customer STRING, country STRING, currency STRING, quantity INT, cents BIGINT"
)
_AT = "timestamp_micros(1780000000000000 + order_id * 50000) AS at"
"""An order each 50 ms: 1,728,000 a day."""
_CUT = ("CAST(at AS DATE) AS day", "CAST(pmod(xxhash64(order_id), 16) AS INT) AS bucket")
_CODECS = {"iceberg": "zstd", "delta": "snappy"}
"""Each format's default in Spark, for both sides: codecs are not compared."""
_TRIGGER = {"availableNow": True}
_SPARK = "4.1"
"""The newest Spark that both runtimes are for."""
_JARS = (f"iceberg-spark-{_SPARK}-1.12.0", f"delta-spark-{_SPARK}-4.4.0")


@dataclass(frozen=True)
class Lake:
    """Spark, a broker, a bucket and a catalog."""

    session: SparkSession
    stage: Stage
    bucket: EmbeddedS3
    catalog: EmbeddedIcebergRest

    @property
    def by_rest(self) -> dict[str, str]:
        """Properties of the catalog, for pyiceberg."""
        options = self.bucket.storage_options
        return {
            "type": "rest",
            "uri": self.catalog.uri,
            "s3.endpoint": options["aws_endpoint"],
            "s3.region": options["aws_region"],
        }

    def checkpoint(self, run: str) -> str:
        """Folder of a run's checkpoint."""
        return str(self.stage.folder / f"checkpoint-{run}")

    def folder(self, run: str) -> str:
        """The Delta table of a run, without its scheme."""
        return f"{self.bucket.url.removeprefix('s3://')}/delta/{run}"


class Way(NamedTuple):
    """One way: what people read, its format, and what starts a query into a run's table."""

    label: str
    format: str
    start: Callable[[Lake, DataFrame, str], Any]


def _ours(sink: Callable[[Lake, str], Any]) -> Callable[[Lake, DataFrame, str], Any]:
    def start(lake: Lake, orders: DataFrame, run: str) -> Any:
        return start_exactly_once(
            orders, sink(lake, run), checkpoint_location=lake.checkpoint(run), trigger=_TRIGGER
        )

    return start


def _iceberg(lake: Lake, run: str, distribute: Any = "none") -> IcebergSink:
    return IcebergSink(
        f"bench.{run}",
        lake.by_rest,
        application_id=run,
        compression=_CODECS["iceberg"],
        distribute=distribute,
        create=NewTable(f"{_MADE}, at TIMESTAMP", ("day(at)", "bucket(16, order_id)")),
    )


def _delta(lake: Lake, run: str, distribute: Any = "none") -> DeltaSink:
    return DeltaSink(
        f"s3://{lake.folder(run)}",
        lake.bucket.storage_options,
        application_id=run,
        compression=_CODECS["delta"],
        distribute=distribute,
        create=NewTable(f"{_MADE}, at TIMESTAMP, day DATE, bucket INT", ("day", "bucket")),
    )


def _spark_iceberg(lake: Lake, orders: DataFrame, run: str) -> Any:
    lake.session.sql(
        f"CREATE TABLE lake.bench.{run} ({_MADE}, at TIMESTAMP) USING iceberg "
        "PARTITIONED BY (days(at), bucket(16, order_id))"
    )
    writer = _writer(lake, orders, run).format("iceberg").option("fanout-enabled", "true")
    return writer.toTable(f"lake.bench.{run}")


def _spark_delta(lake: Lake, orders: DataFrame, run: str) -> Any:
    writer = _writer(lake, orders, run).format("delta").partitionBy("day", "bucket")
    return writer.start(f"s3a://{lake.folder(run)}")


def _noop(lake: Lake, orders: DataFrame, run: str) -> Any:
    return _writer(lake, orders, run).format("noop").start()


def _writer(lake: Lake, orders: DataFrame, run: str) -> Any:
    stream = orders.writeStream.option("checkpointLocation", lake.checkpoint(run))
    return stream.outputMode("append").trigger(**_TRIGGER)


WAYS = {
    "noop": Way("Spark reading only (noop)", "", _noop),
    "iceberg": Way("Iceberg: ours", "iceberg", _ours(_iceberg)),
    "iceberg_hash": Way(
        "Iceberg: ours, distribute='hash'",
        "iceberg",
        _ours(lambda lake, run: _iceberg(lake, run, "hash")),
    ),
    "spark_iceberg": Way("Iceberg: Spark's own", "iceberg", _spark_iceberg),
    "delta": Way("Delta: ours", "delta", _ours(_delta)),
    "delta_hash": Way(
        "Delta: ours, distribute='hash'",
        "delta",
        _ours(lambda lake, run: _delta(lake, run, "hash")),
    ),
    "spark_delta": Way("Delta: Spark's own", "delta", _spark_delta),
}


class Figures(NamedTuple):
    """Microseconds a row: of CPU of Spark with its workers, of the servers, and by the clock."""

    cpu: float
    servers: float
    time: float
    files: int


Found = dict[str, list[Figures]]


@dataclass(frozen=True)
class Bench:
    """A topic that each way delivers, in so many rows a batch."""

    lake: Lake
    topic: str
    batch_rows: int

    def measure(self, name: str, run: str) -> Figures:
        """Run one way, and check what it wrote."""
        lake, way = self.lake, WAYS[name]
        source = spark.read(lake.session, lake.stage, self.topic, **spark.bulk(self.batch_rows))
        orders = source.selectExpr(*COLUMNS).selectExpr("*", _AT)
        if way.format == "delta":
            orders = orders.selectExpr("*", *_CUT)
        with CpuMeter() as meter:
            found = spark.drained(way.start(lake, orders, run))
        files = self._checked(way, run, orders.columns) if way.format else 0
        count, start_ms, end_ms = spark.steady(found, _WARM, _BATCHES)
        used = meter.between(start_ms, end_ms)
        seconds = used["Java"] + used["Python"], used["broker"], (end_ms - start_ms) / 1e3
        cpu, servers, time = (round(each * 1e6 / count, 3) for each in seconds)
        return Figures(cpu, servers, time, files)

    def _checked(self, way: Way, run: str, columns: list[str]) -> int:
        """Compare the table with the topic; return how many files it has."""
        lake = self.lake
        source = lake.session.read.format("kafka").option("subscribe", self.topic)
        source = source.option("kafka.bootstrap.servers", lake.stage.bootstrap)
        wanted = source.load().selectExpr(*COLUMNS).selectExpr("*", _AT)
        if way.format == "iceberg":
            found = lake.session.table(f"lake.bench.{run}")
            with closing(load_catalog("default", **lake.by_rest)) as catalog:
                files = len(list(catalog.load_table(f"bench.{run}").scan().plan_files()))
        else:
            wanted = wanted.selectExpr("*", *_CUT)
            found = lake.session.read.format("delta").load(f"s3a://{lake.folder(run)}")
            options = lake.bucket.storage_options
            files = len(DeltaTable(f"s3://{lake.folder(run)}", storage_options=options).file_uris())
        refuse(f"{run}, columns", sorted(found.columns), sorted(columns))
        whole = f"sum(CAST(xxhash64({', '.join(columns)}) AS DECIMAL(20, 0))) AS whole"
        refuse(f"{run}, rows", sums_of(found, whole), sums_of(wanted, whole))
        return files


@contextmanager
def _lake() -> Iterator[Lake]:
    with ExitStack() as after:
        stage = after.enter_context(staged())
        bucket = after.enter_context(EmbeddedS3())
        catalog = after.enter_context(EmbeddedIcebergRest(bucket))
        jars = [jar for name in _JARS for jar in server_jars(name)]
        session = spark.session(jars=(*s3a_jars(), *jars), conf=_conf(bucket, catalog))
        lake = Lake(after.enter_context(session), stage, bucket, catalog)
        lake.session.sql("CREATE NAMESPACE lake.bench")
        yield lake


def _conf(bucket: EmbeddedS3, catalog: EmbeddedIcebergRest) -> dict[str, str]:
    options = bucket.storage_options
    lake, s3a = "spark.sql.catalog.lake", "spark.hadoop.fs.s3a"
    return {
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.databricks.delta.snapshotPartitions": str(PARTITIONS),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
        "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        lake: "org.apache.iceberg.spark.SparkCatalog",
        f"{lake}.type": "rest",
        f"{lake}.uri": catalog.uri,
        # Both formats by one client: Iceberg's own S3FileIO needs another AWS SDK than Hadoop's.
        f"{lake}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        f"{s3a}.endpoint": options["aws_endpoint"],
        f"{s3a}.endpoint.region": options["aws_region"],
        f"{s3a}.access.key": options["aws_access_key_id"],
        f"{s3a}.secret.key": options["aws_secret_access_key"],
        f"{s3a}.path.style.access": "true",
    }


def run(arguments: argparse.Namespace) -> Result:
    """Run all ways in turns, and return ours over Spark's own."""
    count, rounds = arguments.rows or _ROWS, arguments.rounds or _ROUNDS
    only = arguments.only.split(",") if arguments.only else list(WAYS)
    if not pyspark_version().startswith(f"{_SPARK}."):
        raise SystemExit(f"pyspark {pyspark_version()}: Iceberg's runtime is for Spark {_SPARK}")
    found: Found = {way: [] for way in WAYS if way in only}
    with _lake() as lake:
        cold = _filled(lake, "cold", count // _WARM_UP_SHARE)
        for way in found:
            cold.measure(way, f"warm_{way}")
        bench = _filled(lake, "input", count)
        for number in range(rounds):
            for way in list(found)[:: 1 if number % 2 == 0 else -1]:
                figures = bench.measure(way, f"{way}_{number}")
                found[way].append(figures)
                print(f"{way}: {figures}", flush=True)
    return _result(count, found)


def _filled(lake: Lake, topic: str, count: int) -> Bench:
    batch_rows = count // _BATCHES
    lake.stage.topic(topic, PARTITIONS)
    rows.fill(lake.stage.bootstrap, topic, batch_rows * (_WARM + _BATCHES + _LAST))
    return Bench(lake, topic, batch_rows)


def _result(count: int, found: Found) -> Result:
    ratios = {}
    for way in found:
        theirs = f"spark_{WAYS[way].format}"
        if way != theirs and theirs in found:
            for what in Figures._fields:
                above, below = ([getattr(each, what) for each in found[of]] for of in (way, theirs))
                ratios[f"{what}_{way}_over_spark"] = median_ratio(above, below)
    medians = {
        WAYS[way].label: [statistics.median(each) for each in zip(*rounds, strict=True)]
        for way, rounds in found.items()
    }
    title = f"The same {count:,} orders, median of {max(map(len, found.values()))}"
    heads = ("way", "CPU µs a row", "of the servers", "µs a row by the clock", "files")
    told = [
        (name, *(f"{each:.2f}" for each in of[:3]), f"{of[3]:.0f}") for name, of in medians.items()
    ]
    bars = {name: {"CPU": of[0]} for name, of in medians.items()}
    return Result(
        name="lakes",
        settings={
            "rows": count,
            "batches": {"warm_up": _WARM, "counted": _BATCHES, "last": _LAST},
            "tasks": PARTITIONS,
            "compression": _CODECS,
            "runtimes": _JARS,
        },
        raw={way: [each._asdict() for each in rounds] for way, rounds in found.items()},
        ratios=ratios,
        charts=[Chart(title, "CPU µs a row", bars)],
        tables=[Table(title, heads, told)],
    )

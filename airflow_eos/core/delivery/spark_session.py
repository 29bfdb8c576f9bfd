"""The checks of the user's Spark: session, state, trigger, paths, and its own checkpoint logs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING, Any, Protocol

from airflow_eos.core.arguments import TimeSpan
from airflow_eos.core.checkpoint.backend import EOS
from airflow_eos.core.checkpoint.layout import newest_planned
from airflow_eos.core.checkpoint.locations import (
    HDFS,
    KEPT,
    LOCAL,
    is_temporary,
    located,
    text_of,
    way_out_of_temporary,
)
from airflow_eos.core.checkpoint.offsets import OFFSET_LOG_2
from airflow_eos.core.checkpoint.store import RaceResult, content_of, sentence_of
from airflow_eos.core.delivery.port import SPARK
from airflow_eos.core.log import Log
from airflow_eos.errors import ConfigurationError, Remedy, StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.delivery.policy import CheckpointPolicy
    from airflow_eos.core.protocol.decision import Guarantee


def classic_session(df: DataFrame) -> SparkSession:
    """Return the session; refuse one whose ``foreachBatch`` would not run in this process."""
    if not getattr(df, "isStreaming", False):
        raise ConfigurationError(
            "This is no DataFrame that is streaming: read it with spark.readStream."
        )
    spark = df.sparkSession
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "Spark Connect runs foreachBatch elsewhere, where decisions cannot be tied to this "
            "driver. Write with format('eos') (docs/howto/connect.md), or start the app with "
            "spark-submit (classic Spark)."
        )
    return spark


def deploy_mode(spark: SparkSession) -> str:
    """Return where the driver runs, as Spark names it: ``client`` or ``cluster``."""
    if spark.conf.get("spark.kubernetes.submitInDriver", "false") == "true":
        return "cluster"  # in its pod Kubernetes submits the driver once more, as a client
    return str(spark.conf.get("spark.submit.deployMode", "client"))


def namespace(spark: SparkSession) -> str:
    """Return the namespace of driver and executor pods; empty where Spark runs elsewhere."""
    if not str(spark.sparkContext.master).startswith("k8s"):
        return ""
    return str(spark.conf.get("spark.kubernetes.namespace", "default"))  # Spark's own default


_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
}
"""Spark's logical operators that keep state where their input is a stream."""


def stateful(df: DataFrame) -> tuple[str, ...]:
    """Return the names of a query's operators that keep state; a join of two streams is one.

    Found in the analysed plan; ``nodeName``, ``children`` and ``isStreaming`` are the same in
    Spark 4.0 to 4.3.
    """
    found = set()
    waiting = [df._jdf.queryExecution().analyzed()]  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        name = str(node.nodeName())
        children = [node.children().apply(i) for i in range(node.children().size())]
        streams = sum(child.isStreaming() for child in children)
        if (name in _STATEFUL and streams) or (name == "Join" and streams > 1):
            found.add(name)
        waiting += children
    return tuple(sorted(found))


def absolute(spark: SparkSession, location: str | os.PathLike[str]) -> str:
    """Return the checkpoint's absolute location, the same for Spark and for our own store."""
    location = text_of(location)
    found = located(location)
    if found.scheme != LOCAL or location.lower().startswith("file:/"):
        return found.for_spark
    default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    if not str(default).startswith("file:"):
        raise ConfigurationError(
            f"checkpoint_location {location!r} has no scheme, and Spark's default file system is "
            f"{default}. Write the whole URL (file:///…, s3a://…, gs://…)."
        )
    return found.for_spark


# --- trigger --------------------------------------------------------------------------------------
# Spark's trigger arguments: checked, and turned into an interval.


def trigger_interval(trigger: Mapping[str, Any]) -> timedelta:
    """Return how long the query waits between batches: zero for availableNow.

    Raises:
        ConfigurationError: not exactly one of processingTime or availableNow, or a wrong interval.
    """
    match dict(trigger):
        case {"processingTime": str(text), **rest} if not rest:
            return TimeSpan().of("trigger_interval", text)  # type: ignore[no-any-return]
        case {"availableNow": True, **rest} if not rest:
            return timedelta(0)
    named = " ".join(why for name, why in _OTHER_TRIGGERS.items() if name in trigger)
    raise ConfigurationError(
        f"trigger {dict(trigger)!r}: expected {{'processingTime': '1 second'}} or "
        f"{{'availableNow': True}}. {named}".rstrip()
    )


_OTHER_TRIGGERS = {
    "realTime": "Real-time mode hands rows on while its batch still reads, before anybody can "
    "decide that all of them are there; the least latency that is exactly-once is "
    "{'processingTime': '0 seconds'}.",
    "continuous": "Continuous processing has no batches to make exactly-once.",
    "once": "'once' is the older form of availableNow.",
}


# --- spark logs -----------------------------------------------------------------------------------
# Whether only one writer can win an entry of Spark's own logs here: Spark is raced, not trusted.
#
# ``offsets/N`` and ``commits/N`` are written by Spark's ``CheckpointFileManager``, whatever store
# and class are configured. Where two can win, the range of one driver may stand after the other one
# has delivered its own. Decisions make that harmless (see ``Authority``); a guarantee without
# decisions then needs that one driver runs at a time, and the log says so.


log = Log(__name__)

ROUNDS, RACERS = 6, 2
_GATE_S = 60.0
_PACKAGES = ("checkpointing.", "")
"""Packages below Spark's ``execution.streaming``: of 4.1 and later, and of 4.0."""


def warn_where_it_is_lost(store: CheckpointStore) -> None:
    """Log a warning where the checkpoint is on a temporary folder."""
    if is_temporary(store.location):
        hint = way_out_of_temporary(begun=newest_planned(store) is not None)
        log.warning("temporary_checkpoint", checkpoint=store.location, expected=KEPT, hint=hint)


def warn_where_two_can_plan(
    spark: SparkSession, store: CheckpointStore, guarantee: Guarantee
) -> None:
    """Log a warning where nothing but the user keeps two drivers from planning one batch."""
    scheme = located(store.location).scheme
    if scheme == HDFS:
        return  # HDFS refuses to rename over a file, on the name node
    if scheme == LOCAL:
        found = "it looks, and then renames"  # seen to let two win in one race of fifty: no proof
    else:
        try:
            raced = race_sparks_logs(spark, store)
        except StoreError as error:
            log.warning("sparks_own_logs_not_raced", checkpoint=store.location, why=str(error))
            return
        if raced.is_exclusive:
            return
        found = sentence_of(raced)
    log.warning(
        "sparks_own_logs_not_exclusive",
        checkpoint=store.location,
        found=found,
        hint=f"with {guarantee!r} two drivers at a time can lose rows or write them twice: see to "
        "it that one runs at a time, or use exactly_once",
    )


def race_sparks_logs(
    spark: SparkSession, store: CheckpointStore, *, rounds: int = ROUNDS
) -> RaceResult:
    """Let two writers at once create the same new file through Spark's file manager.

    Args:
        spark: the session, with the settings of the query.
        store: the same checkpoint, to read the result; the probes are removed.
        rounds: the number of races.

    Raises:
        StoreError: the file manager is not where Spark 4.0 to 4.3 has it, or does not work.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    several = nobody = torn = 0
    run = uuid.uuid4().hex
    try:
        manager, path_of = _manager(spark, store.location)
        with store.left_as_it_was(), ThreadPoolExecutor(RACERS) as pool:
            manager.mkdirs(path_of(EOS))
            try:
                for number in range(rounds):
                    name = f"{EOS}/.probe-{run}-{number}"
                    racer = partial(_raced, manager, path_of(name), Barrier(RACERS))
                    won = list(pool.map(racer, range(RACERS)))
                    several += won.count(True) > 1
                    nobody += won.count(True) == 0
                    torn += won.count(True) == 1 and store.get(name) != content_of(won.index(True))
            finally:
                for each in manager.list(path_of(EOS)):
                    if run in each.getPath().getName():  # Spark leaves what a loser wrote beside
                        manager.delete(each.getPath())
    except (Py4JError, BrokenBarrierError) as error:
        raise StoreError(
            f"{store.location}: Spark's CheckpointFileManager could not be tried: {error}. "
            f"Expected {SPARK} and a location that it can write to."
        ) from error
    return RaceResult(RACERS, rounds, several, nobody, torn)


def _raced(manager: Any, path: Any, gate: Barrier, racer: int) -> bool:
    """Write beside, and take the name when all racers do; return False where it was taken."""
    from py4j.protocol import Py4JJavaError

    stream = manager.createAtomic(path, False)  # noqa: FBT003 - Scala's
    stream.write(content_of(racer))
    gate.wait(_GATE_S)
    try:
        stream.close()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
            return False
        raise
    return True


def _manager(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """Return Spark's manager of the query's logs, and what makes a path below the checkpoint."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - not public
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    hadoop_path = jvm.org.apache.hadoop.fs.Path
    root = hadoop_path(location)
    found = _class_of(jvm, "CheckpointFileManager")
    if found is None:
        raise StoreError(f"{location}: this Spark has no CheckpointFileManager. Expected {SPARK}.")
    return found.create(root, conf), lambda path: hadoop_path(root, path)


def _class_of(jvm: Any, name: str) -> Any | None:
    """Return a class of Spark's checkpoints; None where this Spark has none of that name."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

    for package in _PACKAGES:
        found = jvm
        for part in f"org.apache.spark.sql.execution.streaming.{package}{name}".split("."):
            found = getattr(found, part)
        if isinstance(found, JavaClass):  # py4j takes an unknown name for a package
            return found
    return None


# --- query ----------------------------------------------------------------------------------------


class BeginQuery(Protocol):
    """What makes a plan, and a function for each of its batches, a query that runs."""

    def __call__(
        self, frame: DataFrame, function: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Return the query."""
        ...


@dataclass(frozen=True)
class QuerySettings:
    """The settings of a query and of its checkpoint.

    Attributes:
        checkpoint_location: the checkpoint's absolute location, for Spark and for our own store.
        storage_options: for the object store.
        trigger, output_mode, query_name: Spark's.
        policy: pause, timeout and number of batches that are kept.
        begin: lets Spark run a query that was written elsewhere; None: by ``foreachBatch``.
    """

    checkpoint_location: str
    storage_options: Mapping[str, str] | None
    trigger: Mapping[str, Any]
    policy: CheckpointPolicy
    output_mode: str
    query_name: str | None
    begin: BeginQuery | None = None

    @property
    def interval(self) -> timedelta:
        """The time that the query waits between batches."""
        return trigger_interval(self.trigger)

    def started(
        self, frame: DataFrame, function: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Return the query, which Spark runs from now on, with ``function`` for each batch."""
        with quick_logs(frame.sparkSession, self.checkpoint_location) as made:
            query = self._begun(frame, function)
            made(query)
        return query

    def _begun(
        self, frame: DataFrame, function: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        if self.begin is not None:
            return self.begin(frame, function)
        writer = (
            frame.writeStream.outputMode(self.output_mode)
            .foreachBatch(function)
            .option("checkpointLocation", self.checkpoint_location)
            .trigger(**self.trigger)
        )
        return (writer.queryName(self.query_name) if self.query_name else writer).start()


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting of who writes its logs."""


@contextmanager
def quick_logs(spark: SparkSession, location: str) -> Iterator[Callable[[StreamingQuery], None]]:
    """Let Spark write the logs of a query that is started inside without a process for each step.

    For a path on a disk Spark's own choice starts ``readlink`` four times an entry and ``chmod``
    once. Its other manager ends in the same two calls, a look whether the name is there and
    ``rename``: what a driver that dies leaves is the same, and so is what two drivers at once can
    do. HDFS, where only the first one's rename is atomic, and buckets are left as they are; and so
    is what the user has chosen.

    Yields:
        what makes the logs of the query, by the manager that is chosen inside.
    """
    chosen = None
    if located(location).local is not None and spark.conf.get(MANAGER, None) is None:
        chosen = _class_of(spark.sparkContext._jvm, "FileSystemBasedCheckpointFileManager")  # noqa: SLF001
    if chosen is None:
        yield lambda _query: None
        return
    spark.conf.set(MANAGER, chosen._fqn)  # noqa: SLF001 - py4j has no public name for it
    try:
        yield _make_logs
    finally:
        spark.conf.unset(MANAGER)


def _make_logs(query: StreamingQuery) -> None:
    """Make the logs now, and not when the query's thread first asks for them."""
    running = query._jsq.streamingQuery()  # noqa: SLF001
    running.offsetLog()
    running.commitLog()


_REFUSED_SETTINGS = {
    "spark.sql.streaming.offsetLog.formatVersion": ("2", OFFSET_LOG_2),
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": (
        "true",
        "Spark 4.2.0 goes by the positions of sources all the same, unless it writes offset log 2; "
        + OFFSET_LOG_2,
    ),
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": (
        "true",
        "Spark then starts a query only if its sink has a name, and foreachBatch gives it none",
    ),
}
"""Settings of Spark 4.2: the value that is refused, and why."""
_OUTPUT_MODES = {"append": "Append", "update": "Update", "complete": "Complete"}


def require_startable(rows: DataFrame, settings: QuerySettings) -> None:
    """Refuse a query that Spark would refuse to start.

    Args:
        rows: what the sink is going to write of the streaming query.
        settings: of the query.

    Raises:
        ConfigurationError: Spark has no such output mode, or does not run this query with it; or
            a query of this name is running; or a setting that no start gets past.
    """
    spark, output_mode, query_name = rows.sparkSession, settings.output_mode, settings.query_name
    if output_mode.lower() not in _OUTPUT_MODES:
        raise ConfigurationError(
            f"output_mode {output_mode!r}: expected {', '.join(map(repr, _OUTPUT_MODES))}."
        )
    for name, (value, why) in _REFUSED_SETTINGS.items():
        if str(spark.conf.get(name, None)).lower() == value:
            raise ConfigurationError(
                f"{name} is {value}: {why}.", Remedy(change=f"leave {name} away", start=True)
            )
    if query_name and any(query.name == query_name for query in spark.streams.active):
        raise ConfigurationError(
            f"A query with the name {query_name!r} is running in this Spark session, and goes on. "
            "Stop it first (drain), or choose another query_name."
        )
    if spark.conf.get("spark.sql.streaming.unsupportedOperationCheck", "true") != "false":
        _require_supported(spark, rows, output_mode)


def _require_supported(spark: SparkSession, rows: DataFrame, output_mode: str) -> None:
    """Refuse by the check that ``start()`` makes; its call is the same from Spark 2 to 4.2."""
    from pyspark.errors import AnalysisException

    sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001
    mode = getattr(sql.streaming.OutputMode, _OUTPUT_MODES[output_mode.lower()])()
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public name for it
    try:
        sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        said = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"Spark does not run this query with output_mode {output_mode!r}: {said} Choose "
            "another output_mode, or change the query."
        ) from error

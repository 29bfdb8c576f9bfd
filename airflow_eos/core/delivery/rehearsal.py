"""Rehearsal: a new app version evaluates batches that the old one delivered; it delivers nothing.

An app that finds ``EOS_REHEARSAL`` in its environment begins on a copy of its checkpoint: no claim,
no term, no decision, no transaction, no consumer group. Its tasks count and hash the rows that they
would write, and open no writer. When the last batch is compared the process ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.inputs import SERVERS, input_differences
from airflow_eos.core.checkpoint.offsets import require_same_sources
from airflow_eos.core.checkpoint.pipeline import read_pipeline
from airflow_eos.core.checkpoint.rehearsal import (
    REPORT,
    CheckpointCopy,
    OutputComparison,
    RehearsalReport,
    RehearsalRequest,
    RowDifference,
    RowExample,
    compared,
    rehearsable,
)
from airflow_eos.core.checkpoint.topics import (
    LostInput,
    are_noted,
    lost_in_flight,
    same_topics_watched,
)
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.core.delivery.outputs import OneSink, as_one
from airflow_eos.core.delivery.port import PROGRESS
from airflow_eos.core.delivery.replay import FILLED_IN, read_back
from airflow_eos.core.delivery.source import QueryInput
from airflow_eos.core.delivery.spark_session import absolute, require_startable, stateful
from airflow_eos.core.delivery.task import is_fixed, quoted
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Outcome, encode
from airflow_eos.core.protocol.promise import Promise, together
from airflow_eos.errors import ConfigurationError, EosError, Remedy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from airflow_eos.core.checkpoint.topics import TopicsRead
    from airflow_eos.core.delivery.outputs import Output, Outputs
    from airflow_eos.core.delivery.port import Sink, TaskReport
    from airflow_eos.core.delivery.source import OwnSource
    from airflow_eos.core.delivery.spark_session import QuerySettings
    from airflow_eos.core.protocol.decision import PreparedWork, SourceRead

log = Log(__name__)

_KEY = "key"
_LONG = 200


def rehearse_if_told(
    df: DataFrame | OwnSource,
    sink: Sink | Sequence[Output],
    spark: SparkSession,
    settings: QuerySettings,
) -> None:
    """Where this app is to rehearse, do so on a copy, into nothing, and end the process.

    What a start does before it touches a system is done on the copy.
    """
    told = RehearsalRequest.from_environment()
    if told is None:
        return
    rehearsal = Rehearsal(told, spark, settings)
    read = QueryInput.of(df, rehearsal.store, "exactly_once")
    require_same_sources(rehearsal.store, [each.topics for each in read.sources])
    alone = as_one(sink, "exactly_once").bound(rehearsal.store)
    require_startable(alone.rows(read.frame), settings)
    rehearsal.run(read, alone)


class Rehearsal:
    """One rehearsal, on a copy of the checkpoint that its constructor makes.

    Attributes:
        store: the store of the copy.
    """

    def __init__(
        self, told: RehearsalRequest, spark: SparkSession, settings: QuerySettings
    ) -> None:
        asked, location = absolute(spark, told.checkpoint), settings.checkpoint_location
        if location != asked:
            raise ConfigurationError(
                f"The app is to rehearse on {asked}, and would start on {location}. Nothing was "
                "started.",
                Remedy(change=f"give the app {asked} for its checkpoint, as the old version has"),
            )
        self._told = told
        self._spark = spark
        options = settings.storage_options
        self._original = CheckpointStore.open(location, storage_options=options)
        # A planned batch is run again, and nothing else.
        self._settings = replace(
            settings, checkpoint_location=absolute(spark, told.scratch), trigger={"once": True}
        )
        self.store = CheckpointStore.open(
            self._settings.checkpoint_location, storage_options=options
        )
        self._plan = rehearsable(self._original, told.batches)
        self._copy = CheckpointCopy(self._original, self.store)
        self._kept: Mapping[str, OneSink] = {}
        former = read_pipeline(self._original)
        self._former = [each.name for each in former.participants] if former is not None else []
        self._keeps_state = True
        if self._plan.batches:
            first = self._plan.batches[0]
            self._copy.begin(first)
            self._copy.plan(first)  # whole: a look at a log takes the entry before the newest, too

    def run(self, read: QueryInput, sink: OneSink | Outputs) -> NoReturn:
        """Evaluate and compare all batches, write the report, and end the process.

        ``read``: what the new version reads. The range of a batch that was delivered cannot show
        what it would read besides, or leave out, of what comes.

        Raises:
            SystemExit: 0, whatever was found: the report tells it.
        """
        began = time.monotonic()
        unknown = sorted(self._plan.unknown.items())
        found = [OutputComparison(batch, "", "not known", why=why) for batch, why in unknown]
        error = ""
        with ExitStack() as resources:
            topics = read.topics(self._spark, resources)
            same_topics_watched(self._original, [each.ids for each in topics])
            found += self._of_input(read.reads, topics)
            self._keeps_state = bool(stateful(read.frame))
            self._kept = kept_in(self._told.keep, sink) if self._told.keep else {}
            evaluate = partial(self._evaluated, read.frame, sink)
            is_laid = True
            for batch in self._plan.batches:
                if not is_laid:
                    self._copy.begin(batch)
                self._copy.plan(batch)
                lost = lost_in_flight(self.store, topics)
                if lost.past_retention:
                    is_laid = False
                    found.append(OutputComparison(batch, "", "not known", why=str(lost)))
                    continue
                try:
                    of_batch = evaluate(batch, lost)
                except Exception as failed:
                    log.exception("rehearsal_failed", batch=batch)
                    cause = cause_of(failed)
                    if cause.is_of_what_is_gone:
                        is_laid = False
                        found.append(OutputComparison(batch, "", "not known", why=str(cause)))
                        continue
                    error = f"batch {batch}: {cause}"
                    break
                # The state that it left lacks the rows that are gone, and the next batch reads it.
                is_laid = not lost or all(each.verdict == "same" for each in of_batch)
                found += of_batch
        report = RehearsalReport(
            checkpoint=self._original.location,
            compared=tuple(found),
            copied_bytes=self._copy.copied_bytes,
            seconds=round(time.monotonic() - began, 1),
            error=error,
        )
        self.store.put(REPORT, encode(report))
        sys.exit(0)

    def _of_input(
        self, reads: Sequence[SourceRead], topics: Sequence[TopicsRead]
    ) -> list[OutputComparison]:
        """Compare what the new version reads with what the newest batch was promised to be of."""
        if not self._plan.batches:
            return []
        newest = self._plan.batches[-1]
        differences = input_differences(self._plan.promises[newest].commits[-1].read, reads)
        # Topics of the ids that were noted are of the same cluster, whatever its brokers' names.
        is_one = all(are_noted(self._original, n, each) for n, each in enumerate(topics))
        return [
            OutputComparison(newest, "", "differs" if is_sure else "not known", why=why)
            for is_sure, why in differences
            if not (is_one and topics and SERVERS in why)
        ]

    def _evaluated(
        self, frame: DataFrame, sink: OneSink | Outputs, batch: int, lost: LostInput
    ) -> list[OutputComparison]:
        """Let Spark run the batch in flight in the copy, and no other; return its comparisons."""
        promise = self._plan.promises[batch]
        found: list[OutputComparison] = []
        failed: list[BaseException] = []

        def compare(rows: DataFrame, number: int) -> None:
            try:
                assert number == batch, f"Spark runs batch {number}"  # noqa: S101
                found.extend(self._compared(promise, sink, rows, lost))
            except BaseException as error:
                failed.append(error)  # Spark would bury it in text
                raise

        query = self._settings.started(frame, compare)
        try:
            query.awaitTermination()
        finally:
            if failed:
                raise failed[0]
        if not found:
            raise ConfigurationError(f"Spark did not run batch {batch} again.")
        return found

    def _compared(
        self, promise: Promise, sink: OneSink | Outputs, df: DataFrame, lost: LostInput
    ) -> Iterable[OutputComparison]:
        """Compare all outputs of a batch, which is evaluated once and kept on disk meanwhile."""
        from pyspark import StorageLevel

        with ExitStack() as kept:

            def keep(frame: DataFrame) -> DataFrame:
                held = frame.persist(StorageLevel.DISK_ONLY)
                kept.callback(held.unpersist)
                return held

            rows = keep(sink.rows(df))
            reports = sink.prepare(rows, only=())  # no task opens a writer
            return [
                self._of_output(promise.part(name), sink, name, rows, reports, lost, keep)
                for name in dict.fromkeys((*sink.names, *promise.participants, *self._former))
                if name in sink.names or name != PROGRESS  # it has no rows to compare
            ]

    def _of_output(
        self,
        part: Promise,
        sink: OneSink | Outputs,
        name: str,
        rows: DataFrame,
        reports: Sequence[TaskReport],
        lost: LostInput,
        keep: Callable[[DataFrame], DataFrame],
    ) -> OutputComparison:
        promised = (part.rows, part.fingerprint)
        found = together(report.content for report in reports if report.participant == name)
        counts = (part.batch_id, name, promised, found)
        if name not in sink.names:
            why = "" if part.rows else "the new version has no such output"
            missing = RowDifference(missing=part.rows)
            return OutputComparison(part.batch_id, name, "differs", part.rows, 0, missing, why)
        if name not in self._former and not found[0]:
            why = "the old version has no such output"
            return OutputComparison(part.batch_id, name, "differs", 0, 0, why=why)
        alone = sink.part(name)
        given = alone.rows(rows)
        if name in self._kept:
            marked = of_batch(given, part.batch_id, name)
            self._kept[name].prepare(self._kept[name].rows(marked))
        kind = kind_of(alone)
        elsewhere = getattr(kind, "elsewhere", None)
        if elsewhere is not None and (where := elsewhere(part.of_rows, given.columns)):
            return OutputComparison(
                part.batch_id, name, "differs", promised[0], found[0], why=where
            )
        if promised == found:
            return compared(*counts, None)
        told = compared(*counts, self._difference(part, alone, keep(given), keep))
        if lost and told.verdict == "differs" and not self._is_proven(told):
            return OutputComparison(
                part.batch_id, name, "not known", promised[0], found[0], why=str(lost)
            )
        return told

    def _is_proven(self, told: OutputComparison) -> bool:
        """Whether rows prove a difference: lost input, without state, only takes rows away."""
        if self._keeps_state:
            return False
        found = told.difference
        if found is None:
            return (told.rehearsed or 0) > (told.delivered or 0)
        return bool(found.changed or found.new)

    def _difference(
        self,
        part: Promise,
        alone: OneSink,
        given: DataFrame,
        keep: Callable[[DataFrame], DataFrame],
    ) -> RowDifference | str:
        """Compare with the rows that readers have; return a sentence where those cannot be read."""
        works = delivered(part)
        if works is None:
            return "which of its pieces of work readers have is not known"
        try:
            had = read_back(alone, given, works, keep) if works else given.limit(0)
        except EosError:
            return "this kind of output does not tell which rows came with a batch"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            return f"what readers have of it could not be read ({cause_of(error)})"
        if had is None:
            return "what readers have of it is not in the output any more"
        fixed = is_fixed(alone.sink)
        if not fixed and (columns := other_columns(had, given)):
            return columns
        by_default = getattr(kind_of(alone), "by_default", ())  # what was compared before
        had = had.drop(*(name for name in by_default if name not in given.columns))
        key, examples = self._told.key or (_KEY,), self._told.examples
        try:
            return difference(had, given, key, examples, keep, fixed=fixed)
        except Exception as error:  # noqa: BLE001 - no failure of the new version
            return f"its rows could not be held against each other ({cause_of(error)})"


def kind_of(alone: OneSink) -> Any:
    """Return the sink itself, also where its rows are kept beside it."""
    return getattr(alone.sink, "sink", alone.sink)


def kept_in(topic: str, sink: OneSink | Outputs) -> dict[str, OneSink]:
    """Return sinks that write outputs' rows into the topic, visible at once, by output name.

    Raises:
        ConfigurationError: no output can write to Kafka, or the topic is not empty.
    """
    kinds = {name: kind_of(sink.part(name)) for name in sink.names}
    able = {name: kind for name, kind in kinds.items() if hasattr(kind, "into_empty")}
    if not able:
        raise ConfigurationError(
            f"No output of the app is in Kafka (found {', '.join(kinds)}), so that no rows can be "
            f"kept in topic {topic!r}.",
            Remedy(change="leave --keep out"),
        )
    return {name: OneSink(kind.into_empty(topic), "at_least_once") for name, kind in able.items()}


def of_batch(rows: DataFrame, batch: int, output: str) -> DataFrame:
    """Return the rows to keep in a topic: headers tell the batch and the output of each row."""
    from pyspark.sql import functions as F  # noqa: N812

    headers = F.array(
        *(
            F.struct(F.lit(name).alias("key"), F.lit(said.encode()).alias("value"))
            for name, said in (("eos-batch", str(batch)), ("eos-output", output))
        )
    )
    told = F.concat("headers", headers) if "headers" in rows.columns else headers
    return rows.drop("topic", "partition").withColumn("headers", told)


def delivered(part: Promise) -> tuple[PreparedWork, ...] | None:
    """Return the work of a complete batch that readers have; None where decisions do not tell.

    All of the newest COMMIT was settled, or Spark would not have completed the batch;
    :meth:`~airflow_eos.core.protocol.promise.Promise.known` says what that proves of earlier work.
    """
    seen = part.delivered({work.identity: Outcome.COMMITTED for work in part.newest})
    return seen if sum(work.rows for work in seen) == part.rows else None


# --- difference -----------------------------------------------------------------------------------
# The difference of two multisets of rows, paired by key, by Spark; the driver gets examples.


_NET = "__eos_net"
_MORE, _LESS = "__eos_more", "__eos_less"
_HAD, _HAS = "__eos_had", "__eos_has"


def difference(
    had: DataFrame,
    has: DataFrame,
    key: Sequence[str],
    examples: int,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    *,
    fixed: bool = True,
) -> RowDifference:
    """Return how the rows ``has``, of the new version, differ from ``had``, which readers have.

    Where columns are ``fixed`` (Kafka's), a missing column is null, an empty array equals null, and
    a column that the system fills in where a row leaves it null is compared only where ``has``
    always gives it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    untold = _left_open(has) & set(had.columns) if fixed else set()
    types = {field.name: field.dataType for field in (*had.schema.fields, *has.schema.fields)}
    types = {name: kind for name, kind in types.items() if name not in untold}
    names = sorted(types)

    def side(frame: DataFrame, sign: int) -> DataFrame:
        columns = [_column(frame, name, types[name], fixed=fixed) for name in names]
        return frame.select(*columns, F.lit(sign).alias(_NET))

    both = side(had, -1).unionByName(side(has, 1))
    columns = [quoted(name) for name in names]
    net = both.groupBy(*columns).agg(F.sum(_NET).alias(_NET)).where(F.col(_NET) != 0)
    pairing = [name for name in key if name in names]
    by = [quoted(name) for name in pairing]
    row = F.struct(*columns)
    more, less = F.greatest(F.col(_NET), F.lit(0)), F.greatest(-F.col(_NET), F.lit(0))
    by_key = keep(
        net.groupBy(*(by or columns)).agg(
            F.sum(more).alias(_MORE),
            F.sum(less).alias(_LESS),
            F.min(F.when(F.col(_NET) < 0, row)).alias(_HAD),
            F.min(F.when(F.col(_NET) > 0, row)).alias(_HAS),
        )
    )
    pairs = F.least(_MORE, _LESS) if by else F.lit(0)
    for name in by:  # a row without a key is no other version of a row
        pairs = F.when(F.col(name).isNotNull(), pairs).otherwise(F.lit(0))
    counts = by_key.agg(F.sum(pairs), F.sum(_MORE), F.sum(_LESS)).first()
    changed, new, missing = (int(count or 0) for count in counts or (0, 0, 0))
    # Without a key no column tells the pairs: Spark takes a number for the place of a column.
    order = (pairs.desc(), *by) if by else columns
    shown = by_key.orderBy(*order).limit(examples).collect()
    return RowDifference(
        changed,
        missing - changed,
        new - changed,
        tuple(_example(each, pairing) for each in shown),
        tuple(sorted(untold)),
    )


def _left_open(has: DataFrame) -> set[str]:
    """Return columns that the system fills in and the new version never, or not always, gives."""
    from pyspark.sql import functions as F  # noqa: N812

    given = [name for name in FILLED_IN if name in has.columns]
    nulls = has.agg(*[F.count_if(F.col(name).isNull()) for name in given]).first() if given else ()
    left = {name for name, count in zip(given, nulls or (), strict=True) if count}
    return left | (set(FILLED_IN) - set(given))


def other_columns(had: DataFrame, has: DataFrame) -> str:
    """Return the columns, or types of columns, in which readers and the new version differ.

    Asked before rows are compared: 1.5 that is brought into the type of 1 is the same.
    """
    before, after = (
        {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for frame in (had, has)
    )
    told = [
        f"{name} is {before.get(name, 'not there')}, and would be {after.get(name, 'gone')}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
    return f"its columns are others: {'; '.join(told)}" if told else ""


def _column(frame: DataFrame, name: str, kind: Any, *, fixed: bool) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType

    if name not in frame.columns:
        return F.lit(None).cast(kind).alias(name)
    column = F.col(quoted(name)).cast(kind)
    if fixed and isinstance(kind, ArrayType):
        column = F.when(F.size(column) > 0, column)
    return column.alias(name)


def _example(found: Row, pairing: Sequence[str]) -> RowExample:
    had, has = found[_HAD], found[_HAS]
    key = ", ".join(_text(found[name]) for name in pairing)
    if had is None:
        return RowExample("new", key, rehearsed=_told(has.asDict(), pairing))
    if has is None:
        return RowExample("missing", key, delivered=_told(had.asDict(), pairing))
    before, after = had.asDict(), has.asDict()
    same = [name for name in before if before[name] == after[name]]
    return RowExample("changed", key, _told(before, same), _told(after, same))


def _told(row: Mapping[str, Any], but: Sequence[str]) -> str:
    told = {name: value for name, value in row.items() if name not in but and value is not None}
    return ", ".join(f"{name}={_text(value)}" for name, value in told.items())[:_LONG]


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()[:_LONG]
        except UnicodeDecodeError:
            return bytes(value[: _LONG // 2]).hex()
    return str(value)[:_LONG]

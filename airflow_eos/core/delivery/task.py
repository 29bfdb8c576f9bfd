"""A task of a batch: it sends rows to a writer for each participant and reports to the driver."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from airflow_eos.core.delivery.port import DistributingSink, TaskReport, TaskWriter, innermost
from airflow_eos.core.delivery.workers import tune_process
from airflow_eos.core.failpoints import failpoint
from airflow_eos.errors import ConfigurationError, DeliveryError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from airflow_eos.core.delivery.port import Sink
    from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
    from airflow_eos.core.protocol.decision import Guarantee, PreparedWork


def quoted(name: str, row: str = "") -> str:
    """Return column ``name`` quoted, after its prefix ``row`` (``""``, or ``"`orders`."``)."""
    escaped = name.replace("`", "``")
    return f"{row}`{escaped}`"


def selected(names: Iterable[str], row: str = "") -> list[str]:
    """Return the SQL that selects each column of ``row`` unchanged: ``expression AS `name```."""
    return [f"{quoted(name, row)} AS {quoted(name)}" for name in names]


def in_arrow(schema: StructType) -> pa.Schema:
    """Return the columns' Arrow schema; instants are in UTC.

    Spark 4.2 has to be told the time zone; 4.0 and 4.1 use UTC and have no argument for it.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    is_asked = "timezone" in signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"timezone": "UTC"} if is_asked else {}
    return to_arrow_schema(schema, **options)


# --- fingerprint ----------------------------------------------------------------------------------
# The content of a task's rows as one number that does not depend on their order.
#
# A 64-bit hash a row is made in the JVM (``xxhash64``, Spark's ``XxHash64`` expression, chained
# over the columns' names and types and over what is in them). On the Arrow side the hashes are
# summed modulo 2**64, once as they are and once mixed (the finaliser of splitmix64): 128 bits, the
# same for the same multiset of rows however they are ordered, and additive over tasks, so a whole
# batch can be compared even when its rows are cut
# into other tasks. Two sums, since one alone is the same for {a + 1, b - 1} as for {a, b}.


HASH_COLUMN = "__eos_hash"
_MASK = (1 << 64) - 1


def with_row_hashes(rows: DataFrame, *, fixed: bool = False) -> DataFrame:
    """Add the column ``HASH_COLUMN``, over all columns of ``rows``; see :func:`row_hash`."""
    return rows.selectExpr("*", f"{row_hash(rows.schema, fixed=fixed)} AS {HASH_COLUMN}")


def row_hash(schema: StructType, row: str = "", *, fixed: bool = False) -> str:
    """Return the SQL of a row's hash: of its columns' names, types and values.

    Spark hashes 1.25 as it hashes 125, and ignores a column's name: so names and types are added.

    Args:
        schema: the schema of the row.
        row: the prefix of each of its columns, see :meth:`Sink.columns`.
        fixed: whether the system gives the columns their meaning, one for each name.
    """
    if fixed:
        # xxhash64 passes over a null as if the column were not there: hash the nulls as well,
        # or (null, "a") and ("a", null) would be one row.
        # Also where no null can be: a batch and a streaming query need not agree on that.
        columns = [quoted(name, row) for name in schema.fieldNames()]
        return f"xxhash64({', '.join(f'{column}, isnull({column})' for column in columns)})"
    whole = [_hashed(quoted(field.name, row), field.dataType) for field in schema.fields]
    return f"xxhash64({', '.join([f'{columns_number(schema)}L', *whole])})"


def columns_number(schema: StructType) -> int:
    """Return the columns' names and types as 64 bits, never the number that SQL cannot write."""
    told = msgspec.json.encode([(f.name, f.dataType.simpleString()) for f in schema.fields])
    return int.from_bytes(hashlib.sha256(told).digest()[:8]) >> 1


def _hashed(value: str, kind: DataType, depth: int = 0) -> str:
    """Return the SQL that hashes a value with the nulls in it, which xxhash64 passes over."""
    from pyspark.sql.types import ArrayType, StringType, StructType

    whole = value
    if isinstance(kind, ArrayType):
        each = f"__eos_{depth}"
        whole = (
            f"transform({value}, {each} -> xxhash64({_hashed(each, kind.elementType, depth + 1)}))"
        )
    elif isinstance(kind, StructType):
        fields = [
            _hashed(f"{value}.{quoted(field.name)}", field.dataType, depth) for field in kind.fields
        ]
        whole = ", ".join(fields) or value
    elif isinstance(kind, StringType) and "collate" in kind.simpleString():
        whole = f"cast({value} AS binary)"  # a collation may make "a" equal to "A"
    return f"{whole}, isnull({value})"


def is_fixed(sink: Sink) -> bool:
    """Whether the columns of ``sink`` have one fixed meaning each; see :func:`row_hash`."""
    return getattr(innermost(sink), "fixed_columns", False)


_TYPE = r"(?:^|[:<]){}(?:$|[,>])"
_UNSENDABLE = {
    re.compile("map<"): "Spark cannot hash the columns {}, which hold maps. Turn maps into arrays "
    "of entries (map_entries).",
    re.compile(_TYPE.format("variant")): "Spark cannot hash the columns {}, which hold variants. "
    "Turn variants into texts (to_json).",
    re.compile(_TYPE.format("interval")): "Spark cannot bring the columns {} to a task: they hold "
    "intervals of months, days and seconds at once (make_interval). Turn them into texts (cast).",
}
"""How Spark writes a type that no kind can take as it is, and what to do."""


def require_hashable(schema: StructType) -> None:
    """Refuse columns that Spark cannot hash, or cannot bring to a task.

    Raises:
        ConfigurationError: a column holds a map, a variant or an interval of everything at once.
    """
    for kind, says in _UNSENDABLE.items():
        found = [each.name for each in schema.fields if kind.search(each.dataType.simpleString())]
        if found:
            raise ConfigurationError(says.format(", ".join(found)))


def own_columns(schema: StructType, row: str = "") -> list[str]:
    """Return all columns of ``row`` unchanged, as ``Sink.columns`` says.

    Raises:
        ConfigurationError: names are not unique, or see :func:`require_hashable`.
    """
    names = [name.lower() for name in schema.fieldNames()]
    if HASH_COLUMN in names or len(set(names)) != len(names):
        raise ConfigurationError(
            f"Columns {schema.fieldNames()}: expected each name once, and none called "
            f"{HASH_COLUMN}."
        )
    require_hashable(schema)
    return selected(schema.fieldNames(), row)


class Fingerprint:
    """A running sum of row hashes; ``hex()`` is 32 hex digits."""

    def __init__(self) -> None:
        self._sums = [0, 0]

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch that carries the hash column."""
        hashes = batch.column(HASH_COLUMN).to_numpy(zero_copy_only=False).view(np.uint64)
        for at, words in enumerate((hashes, mixed(hashes))):
            self._sums[at] = (self._sums[at] + int(words.sum(dtype=np.uint64))) & _MASK

    def hex(self) -> str:
        """Return the 128 bits as text."""
        return f"{self._sums[0]:016x}{self._sums[1]:016x}"


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's finaliser of each word: each bit of a word changes half of its result's.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, mix64.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# --- task -----------------------------------------------------------------------------------------


Opened = Callable[[int, int], TaskWriter]
"""(task, attempt of the task) → its writer; pickled into every task."""


def outlet(
    sink: Sink, guarantee: Guarantee, column: str | None = None, *, warms: bool = False
) -> TaskOutput:
    """Return the output of a task: rows are prepared, or visible at once with a weaker guarantee.

    Also at once where the sink is alone and told so (``staged=False``): repeating it is harmless.
    """
    prepared = guarantee == "exactly_once" and is_staged(sink)
    opened = partial(sink.opened, transactional=prepared)
    return TaskOutput(sink.name, opened, column, getattr(sink, "warm", None) if warms else None)


def is_staged(sink: Sink) -> bool:
    """Whether readers see the sink's rows only after the decision; True unless the sink denies."""
    return getattr(sink, "staged", True)


def distributes(sink: Sink) -> bool:
    """Whether the sink asks Spark to put its rows together before the tasks."""
    return _distributing(sink) is not None


def _distributing(sink: Sink) -> DistributingSink | None:
    inner = innermost(sink)
    return inner if isinstance(inner, DistributingSink) and inner.distribute != "none" else None


def distributed(sink: Sink, rows: DataFrame) -> DataFrame:
    """Return ``rows``, and those that the sink wants in one task in one, if it asks for that.

    The number of tasks is said, so that Spark does not choose another where rows are replayed.
    """
    if (inner := _distributing(sink)) is None:
        return rows
    by = inner.distribution()
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    return rows.repartition(tasks, *by) if by else rows


def require_alone(sinks: Sequence[Sink]) -> None:
    """Refuse outputs that go with a query of their own.

    One shows rows before the decision that is to show those of all; one moves rows between tasks,
    and a row of the input is in one task for all outputs.

    Raises:
        ConfigurationError: with the output's name.
    """
    moved = [sink.name for sink in sinks if distributes(sink)]
    if moved:
        raise ConfigurationError(
            f"Output {' and '.join(map(repr, moved))}: distribute='hash' goes with a sink that is "
            "given alone, not as an Output. Leave it out and repartition the query's rows, or give "
            "that sink a query of its own."
        )
    early = [sink.name for sink in sinks if not is_staged(sink)]
    if early and len(sinks) > 1:
        raise ConfigurationError(
            f"Output {' and '.join(map(repr, early))}: staged=False writes in the tasks, before "
            f"the decision, and goes with a sink that is alone; found {len(sinks)} outputs. Leave "
            "it out, or give that output a query of its own."
        )


def reports_of(
    hashed: DataFrame,
    outlets: Collection[TaskOutput],
    *,
    only: Collection[int] | None,
    visibility_markers: VisibilityMarkers | None = None,
) -> DataFrame:
    """Return the reports of each task; reading them makes the tasks write."""
    names = tuple(hashed.columns)
    task = SinkTask(
        tuple(outlets), None if only is None else frozenset(only), visibility_markers, names
    )
    # By number: mapInArrow looks each column up by its name as SQL, where a dot is a field.
    numbered = hashed.toDF(*(f"_{number}" for number in range(len(names))))
    return numbered.mapInArrow(task, "report binary")


def collected(tasks: DataFrame, participants: Collection[str]) -> list[TaskReport]:
    """Run ``tasks``; return their reports in the order of the tasks, one for each participant.

    Only Spark knows how many tasks there are: the reports that came cannot tell that the last ones
    are missing. The plan that ran is asked, afterwards: where Spark plans as it goes (the width of
    a shuffle) the number is settled by then, and nothing is evaluated for the answer.

    Raises:
        DeliveryError: there is not one report for each task and participant.
    """
    began_ms = time.time_ns() // 1_000_000
    told, ran = _told(tasks)
    ended_ms = time.time_ns() // 1_000_000
    came_in = [msgspec.json.decode(each, type=TaskReport) for each in told]
    reports = [by_our_clock(report, began_ms, ended_ms) for report in came_in]
    came = Counter(report.participant for report in reports)
    if came != Counter(dict.fromkeys(participants, ran)):
        raise DeliveryError(
            f"Spark ran {ran} tasks, and {dict(came)} reported what they wrote; expected one "
            "report each. Nothing was decided; the batch runs again."
        )
    return sorted(reports, key=lambda report: report.task)


_FEW = 64
"""Tasks whose reports are asked for one by one."""


def _told(tasks: DataFrame) -> tuple[list[bytes], int]:
    """Run the tasks; return what they report, and how many there were.

    The frame that ``foreachBatch`` gives is one node, the rows of the query's own plan. To collect
    it, Spark would analyse, optimise, plan and describe it for each batch, as a query of its own:
    so the node alone is planned, and run as a part of the batch. Its rows come one by one from the
    JVM, which many tasks would wait for longer than for a plan.
    """
    execution = tasks._jdf.queryExecution()  # noqa: SLF001 - no public name for any of it
    node = execution.analyzed()
    ran = int(node.rdd().getNumPartitions()) if node.nodeName() == "LogicalRDD" else 0
    if 0 < ran <= _FEW:
        planner = tasks.sparkSession._jsparkSession.sessionState().planner()  # noqa: SLF001
        rows = planner.plan(node).next().executeCollect()
        return [bytes(row.getBinary(0)) for row in rows], ran
    found = [bytes(row.report) for row in tasks.collect()]
    # DataFrame.rdd is public, but plans a conversion of rows that nobody needs.
    return found, int(execution.toRdd().getNumPartitions())


def by_our_clock(report: TaskReport, began_ms: int, ended_ms: int) -> TaskReport:
    """Return the report, its work dated by this machine's clock and not by the task's.

    The work was opened after the tasks began, and the task reported before they ended: where the
    task's dates contradict that, its clock is ahead or behind by at least so much, and the date is
    corrected. Work that nothing ends by itself is dated by its own system.
    """
    work = report.work
    if work is None or work.timeout_ms is None:
        return report
    least_ms, most_ms = report.reported_at_ms - ended_ms, work.opened_at_ms - began_ms
    ahead_ms = min(max(0, least_ms), most_ms)
    dated = msgspec.structs.replace(work, opened_at_ms=work.opened_at_ms - ahead_ms)
    return msgspec.structs.replace(report, work=dated)


@dataclass(frozen=True)
class TaskOutput:
    """The output of a task for one participant.

    Attributes:
        participant: the participant's name.
        opened: gives the writer.
        column: holds this participant's rows as structs, or arrays of structs, each with its hash
            as the last field; None where the whole batch is its rows.
        warm: does all in a worker that rows need but open work and send them; called by a task that
            does not write, with its first rows. None: nothing is warmed.
    """

    participant: str
    opened: Opened
    column: str | None = None
    warm: Callable[[pa.RecordBatch], None] | None = None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return this participant's rows of a batch, in the order of the input."""
        return batch if self.column is None else _flat(batch.column(self.column))


@dataclass(frozen=True)
class SinkTask:
    """The function that Spark runs for each partition of a batch.

    Attributes:
        outlets: one output for each participant.
        only: the tasks that write (all when None); the others drain their rows.
        visibility_markers: where a task marks that it has begun, at most once: a task that runs
            again, or beside another copy of it, drains its rows as well.
        names: of the columns, which Spark brings under numbers; empty: under their own names.
    """

    outlets: tuple[TaskOutput, ...]
    only: frozenset[int] | None = None
    visibility_markers: VisibilityMarkers | None = None
    names: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the rows of one partition, and yield its reports."""
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:  # pragma: no cover - Spark sets it for every task
            raise RuntimeError("A sink's task runs inside Spark only")
        number = context.partitionId()
        task = self if self._is_first(context) else replace(self, only=frozenset())
        if self.names:
            batches = (rows.rename_columns(list(self.names)) for rows in batches)
        reports = task.run(number, context.attemptNumber(), batches)
        encoded = [msgspec.json.encode(report) for report in reports]
        yield pa.RecordBatch.from_pydict({"report": encoded})

    def _is_first(self, context: TaskContext) -> bool:
        """Whether no run of the task has begun, by marks: a repeated stage counts attempts anew."""
        if self.visibility_markers is None:
            return True
        batch = context.getLocalProperty("streaming.sql.batchId")  # MicroBatchExecution
        return self.visibility_markers.is_first(int(str(batch)), context.partitionId())

    def run(
        self, task: int, task_attempt: int, batches: Iterator[pa.RecordBatch]
    ) -> tuple[TaskReport, ...]:
        """Write the rows of one task, leave its work open, and return its reports."""
        writes = self.only is None or task in self.only
        flows = [_Flow(outlet) for outlet in self.outlets]
        with ExitStack() as undo:
            # A killed task ends here too (GeneratorExit). No decision names this work yet.
            if writes:
                for flow in flows:
                    undo.callback(flow.abort)
                    flow.open(task, task_attempt)
            for batch in batches:  # read all the same: Spark's state needs that
                for flow in flows:
                    flow.take(batch)
            # Who sends by itself is waited for last, and the others prepare meanwhile.
            sends = {flow: len(flows) > 1 and flow.finish() for flow in flows}
            reported = {flow: flow.report(task) for flow in sorted(flows, key=sends.__getitem__)}
            reports = tuple(reported[flow] for flow in flows)
            undo.pop_all()
        if writes:
            failpoint("task-prepared")
        if writes and any(report.rows for report in reports):
            tune_process()
        return reports


class _Flow:
    """The rows of one task on their way to one participant."""

    def __init__(self, outlet: TaskOutput) -> None:
        self._outlet = outlet
        self._warm = outlet.warm
        self._writer: TaskWriter | None = None
        self._fingerprint = Fingerprint()
        self._rows = 0
        self._work: PreparedWork | None = None
        self._is_over = False

    def open(self, task: int, task_attempt: int) -> None:
        self._writer = self._outlet.opened(task, task_attempt)

    def abort(self) -> None:
        """Abort the work, prepared or not: no decision names it, a next attempt may meet its locks.

        Rows that were made visible at once stay.
        """
        if self._writer is not None and (self._work is not None or not self._is_over):
            self._writer.abort()

    def take(self, batch: pa.RecordBatch) -> None:
        rows = self._outlet.rows(batch)
        if not rows.num_rows:
            return
        self._fingerprint.add(rows)
        self._rows += rows.num_rows
        if self._writer is not None:
            self._writer.write(rows.drop_columns(HASH_COLUMN))
            failpoint("task-wrote")
        elif self._warm is not None:
            self._warm(rows.drop_columns(HASH_COLUMN))
            self._warm = None

    def finish(self) -> bool:
        """Say that no row comes any more; return whether the writer sends by itself from now on."""
        finish = getattr(self._writer, "finish", None)
        if finish is not None:
            finish()
        return finish is not None

    def report(self, task: int) -> TaskReport:
        fingerprint = self._fingerprint.hex()
        if self._writer is not None:
            self._work = self._writer.prepare(fingerprint)
        self._is_over = True
        return TaskReport(
            task,
            self._rows,
            fingerprint,
            self._work,
            self._outlet.participant,
            time.time_ns() // 1_000_000,
        )


def _flat(column: pa.Array) -> pa.RecordBatch:
    """Return the structs of a column, or of its lists, as rows; a null gives no row."""
    import pyarrow as pa

    structs = column if pa.types.is_struct(column.type) else column.flatten()
    return pa.RecordBatch.from_struct_array(structs.drop_null() if structs.null_count else structs)

"""Several sinks behind one decision: each input row is evaluated once, for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from airflow_eos.core.arguments import Having, take_fields
from airflow_eos.core.delivery.port import BatchSink, TaskReport
from airflow_eos.core.delivery.spill import SpillingSink, require_perishable
from airflow_eos.core.delivery.task import (
    HASH_COLUMN,
    SinkTask,
    collected,
    distributed,
    is_fixed,
    outlet,
    quoted,
    reports_of,
    require_alone,
    row_hash,
    selected,
    with_row_hashes,
)
from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
from airflow_eos.core.protocol.decision import check_name
from airflow_eos.core.protocol.participant_group import reach_all
from airflow_eos.errors import ConfigurationError, SupersededError

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.delivery.port import Sink
    from airflow_eos.core.protocol.decision import Guarantee, PreparedWork
    from airflow_eos.core.protocol.participant import Participant

    Chosen = str | Column | Sequence[str | Column]


@dataclass(frozen=True)
class OneSink:
    """One sink as a :class:`~airflow_eos.core.delivery.port.BatchSink`.

    Attributes:
        sink: where the rows go.
        guarantee: see :func:`~airflow_eos.core.delivery.task.outlet`.
        visibility_markers: where tasks mark that they have begun (at most once).
        typed: whether rows have the sink's types already, as a part of several outputs.
        fused: for a source that reads in Arrow: runs a task over what the source reads, as a part
            of the streaming query. Batches that are replayed are Spark rows like any others.
    """

    sink: Sink
    guarantee: Guarantee = "exactly_once"
    visibility_markers: VisibilityMarkers | None = None
    typed: bool = False
    fused: Callable[[SinkTask], DataFrame] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the only sink."""
        return (self.sink.name,)

    @property
    def keeping(self) -> tuple[str, ...]:
        """Empty: an ``Output`` says what is kept beside a sink, and it may be the only output."""
        return ()

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        self.sink.check(spark)

    def bound(self, store: CheckpointStore) -> OneSink:
        """See :meth:`Sink.bound`."""
        visibility_markers = VisibilityMarkers.of(store, self.guarantee)
        return replace(self, sink=self.sink.bound(store), visibility_markers=visibility_markers)

    def connect(self, interval: timedelta) -> Participant:
        """See :meth:`Sink.connect`."""
        return self.sink.connect(interval)

    def streamed(self, df: DataFrame) -> DataFrame:
        """Return ``df`` itself, whose rows a replay reads twice."""
        return df

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the rows in the sink's columns."""
        # As SQL text: each column object would be several calls to the JVM, for every batch.
        return df if self.typed else df.selectExpr(*self.sink.columns(df.schema))

    def tasks(
        self, rows: DataFrame, *, only: Collection[int] | None = None, warms: bool = False
    ) -> DataFrame:
        """See :meth:`BatchSink.tasks`; ``warms``: tasks that do not write warm their workers."""
        outlets = [outlet(self.sink, self.guarantee, warms=warms)]
        if self.fused is not None and rows.isStreaming:
            return self.fused(SinkTask(tuple(outlets), visibility_markers=self.visibility_markers))
        hashed = with_row_hashes(distributed(self.sink, rows), fixed=is_fixed(self.sink))
        return reports_of(hashed, outlets, only=only, visibility_markers=self.visibility_markers)

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`."""
        return collected(self.tasks(rows, only=only), self.names)

    def part(self, name: str) -> OneSink:
        """Return this sink itself, for rows in the sink's types."""
        del name
        return replace(self, typed=True)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`BatchSink.delivered`."""
        return self.sink.delivered(spark, works)


_ROW = "r"
_WIDE = {"Aggregate", "Window", "Generate"}  # of Spark's logical plan


@dataclass(frozen=True)
class Output:
    """One of several targets that the rows of a query go to.

    Attributes:
        name: the participant's name in the decisions of the pipeline.
        sink: writes the rows.
        rows: the part of an input row that goes there, as SQL text or columns, or a function that
            gives one of these for the query's DataFrame. A list is the columns of one row. One
            column is a struct (a row; null: none) or an array of structs (as many rows). None: all
            columns. No aggregate: the input is evaluated once, so an output is narrow.
        keep_rows: for a system that ends prepared work by itself: keep the rows in the checkpoint
            until readers have them. Lost rows are then written again as they were, also where the
            query would give others.
    """

    name: str
    sink: Annotated[Sink, Having(what="a sink, such as KafkaSink", name="bound")]
    rows: Chosen | Callable[[DataFrame], Chosen] | None = None
    keep_rows: bool = False

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        if self.sink.name != self.name:
            object.__setattr__(self, "sink", replace(self.sink, name=self.name))  # type: ignore[type-var]
        if not _are_rows(self.rows):
            raise ConfigurationError(
                f"rows of output {self.name!r}: expected columns, SQL text, or a function that "
                f"gives one of these for a DataFrame; found {self.rows!r:.100}."
            )
        if self.keep_rows:
            require_perishable(self.sink)

    def bound(self, store: CheckpointStore) -> Output:
        """See :meth:`Sink.bound`."""
        sink = self.sink.bound(store)
        return replace(self, sink=SpillingSink(sink, store) if self.keep_rows else sink)


@dataclass(frozen=True)
class Outputs:
    """Several outputs as one ``BatchSink``: a column for each."""

    outputs: tuple[Output, ...]
    guarantee: Guarantee = "exactly_once"
    visibility_markers: VisibilityMarkers | None = None

    def __post_init__(self) -> None:
        names = [output.name for output in self.outputs]
        # Spark's columns, some disks and some databases ignore case.
        if not names or len({name.casefold() for name in names}) != len(names):
            raise ConfigurationError(
                f"Outputs {names}: expected one at least, and each name once, in capitals or not; "
                "a name says which prepared work is whose."
            )
        require_alone([output.sink for output in self.outputs])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs, in the order in which they were given."""
        return tuple(output.name for output in self.outputs)

    @property
    def keeping(self) -> tuple[str, ...]:
        """The names of the outputs whose rows the checkpoint keeps until readers have them."""
        return tuple(output.name for output in self.outputs if output.keep_rows)

    def check(self, spark: SparkSession) -> None:
        """Check each output's sink; see :meth:`Sink.check`."""
        for output in self.outputs:
            output.sink.check(spark)

    def bound(self, store: CheckpointStore) -> Outputs:
        """Bind each output's sink; see :meth:`Sink.bound`."""
        bound = tuple(each.bound(store) for each in self.outputs)
        visibility_markers = VisibilityMarkers.of(store, self.guarantee)
        return replace(self, outputs=bound, visibility_markers=visibility_markers)

    def connect(self, interval: timedelta) -> Participant:
        """Connect all sinks as one participant, or none; see :meth:`Sink.connect`."""
        return reach_all(partial(output.sink.connect, interval) for output in self.outputs)

    def streamed(self, df: DataFrame) -> DataFrame:
        """Return ``df`` itself, whose rows a replay reads twice."""
        return df

    def rows(self, df: DataFrame) -> DataFrame:
        """Return a column for each output: its rows in the sink's types, each with its hash."""
        chosen = df.select(*[_chosen(output, df).alias(output.name) for output in self.outputs])
        if not _is_narrow(df, chosen):
            _refuse_wide(self.outputs, df)
        typed = self._made(chosen, lambda output, row, at: output.sink.columns(row, at))
        return self._made(typed, _hashed)

    def _made(
        self, df: DataFrame, fields: Callable[[Output, StructType, str], Sequence[str]]
    ) -> DataFrame:
        """Make each row of each output a struct of ``fields``; a null gives none.

        ``fields`` is given the output, the type of a row, and the prefix of the row's columns.
        """
        kinds = {field.name: field.dataType for field in df.schema.fields}
        made = []
        for each in self.outputs:
            row, many = _row_type(each.name, kinds[each.name])
            column = f"`{each.name}`"
            at = f"{_ROW}." if many else f"{column}."
            struct = f"struct({', '.join(fields(each, row, at))})"
            present = f"filter({column}, {_ROW} -> {_ROW} IS NOT NULL)"
            made.append(
                f"transform({present}, {_ROW} -> {struct}) AS {column}"
                if many
                else f"IF({column} IS NULL, NULL, {struct}) AS {column}"
            )
        return df.selectExpr(*made)

    def tasks(
        self, rows: DataFrame, *, only: Collection[int] | None = None, warms: bool = False
    ) -> DataFrame:
        """See :meth:`BatchSink.tasks`; ``warms``: tasks that do not write warm their workers."""
        outlets = [
            outlet(each.sink, self.guarantee, column=each.name, warms=warms)
            for each in self.outputs
        ]
        return reports_of(rows, outlets, only=only, visibility_markers=self.visibility_markers)

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """See :meth:`BatchSink.prepare`."""
        return collected(self.tasks(rows, only=only), self.names)

    def part(self, name: str) -> OutputPart:
        """Return one output alone."""
        sink = next(each for each in self.outputs if each.name == name).sink
        return OutputPart(sink, self.guarantee)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`BatchSink.delivered`."""
        return self.part(works[0].participant).delivered(spark, works)


@dataclass(frozen=True)
class OutputPart(OneSink):
    """One of several outputs alone, so that just its rows are written again."""

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the output's rows from the column of :meth:`Outputs.rows`, in input order."""
        name = self.sink.name
        row_type, many = _row_type(name, df.schema[name].dataType)
        flat = (
            df.selectExpr(f"inline(`{name}`)")
            if many
            else df.where(f"`{name}` IS NOT NULL").selectExpr(f"`{name}`.*")
        )
        return flat.selectExpr(*[quoted(n) for n in row_type.fieldNames() if n != HASH_COLUMN])


def _are_rows(given: object) -> bool:
    """Whether ``rows`` of an output can be what a user gives."""
    if isinstance(given, Sequence):
        return bool(given)
    return given is None or callable(given) or type(given).__name__ == "Column"


def _chosen(output: Output, df: DataFrame) -> Column:
    """Return the output's rows as one column: structs, or arrays of structs."""
    from pyspark.sql import Column
    from pyspark.sql import functions as F  # noqa: N812

    rows = output.rows(df) if callable(output.rows) else output.rows
    if rows is None:
        rows = [quoted(name) for name in df.columns]
    if isinstance(rows, Column):
        return rows
    if isinstance(rows, str):
        return F.expr(rows)
    return F.struct(*[each if isinstance(each, Column) else F.expr(each) for each in rows])


def _is_narrow(df: DataFrame, chosen: DataFrame) -> bool:
    """Whether each row of ``chosen`` is of one row of ``df``, with all its outputs.

    An aggregate would run silently over all rows in the output modes complete and update, and
    ``explode`` of one output would repeat the rows of the others.
    """
    input_plan = df._jdf.queryExecution().analyzed()  # noqa: SLF001
    plan = chosen._jdf.queryExecution().analyzed()  # noqa: SLF001
    while not plan.fastEquals(input_plan):
        if plan.nodeName() in _WIDE:
            return False
        if plan.children().isEmpty():
            break
        plan = plan.children().head()
    return True


def _refuse_wide(outputs: Sequence[Output], df: DataFrame) -> None:
    wide = [each.name for each in outputs if not _is_narrow(df, df.select(_chosen(each, df)))]
    raise ConfigurationError(
        f"Output {' and '.join(map(repr, wide))}: its rows have an aggregate, a window function or "
        "a generator such as explode. Expected columns of one row of the input, which is evaluated "
        "once for all outputs: aggregate before (df.groupBy(…)), and give an array of structs "
        "where a row becomes many."
    )


def _row_type(name: str, found: object) -> tuple[StructType, bool]:
    """Return the type of a row, and whether one input row may have many such rows."""
    from pyspark.sql.types import ArrayType, StructType

    row = found.elementType if isinstance(found, ArrayType) else found
    if not isinstance(row, StructType):
        raise ConfigurationError(
            f"Output {name!r}: its rows are of type {getattr(found, 'simpleString', str)()}; "
            "expected a struct, an array of structs, or a list of columns."
        )
    return row, isinstance(found, ArrayType)


def _hashed(output: Output, row: StructType, at: str) -> list[str]:
    """Return the columns of a row and its hash, as :func:`with_row_hashes` makes of a DataFrame."""
    hashed = f"{row_hash(row, at, fixed=is_fixed(output.sink))} AS {HASH_COLUMN}"
    return [*selected(row.fieldNames(), at), hashed]


def as_one(sink: Sink | Sequence[Output], guarantee: Guarantee) -> OneSink | Outputs:
    """Return one sink, or several outputs as one."""
    if isinstance(sink, Sequence):
        return Outputs(tuple(sink), guarantee)
    return OneSink(sink, guarantee)


# --- a sink around another ------------------------------------------------------------------------
# A sink around another sink, which delegates what it does not define itself.


@dataclass(frozen=True)
class WrappedSink:
    """The base of a ``BatchSink`` around another, but ``prepare``.

    Attributes:
        sink: the inner sink.
    """

    sink: BatchSink

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the participants of ``sink``."""
        return self.sink.names

    def streamed(self, df: DataFrame) -> DataFrame:
        """Return what ``sink`` computes; see :meth:`BatchSink.streamed`."""
        return self.sink.streamed(df)

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the rows as ``sink`` wants them."""
        return self.sink.rows(df)

    def tasks(self, rows: DataFrame, *, only: Collection[int] | None = None) -> DataFrame:
        """Return the reports of the tasks of ``sink``."""
        return self.sink.tasks(rows, only=only)

    def part(self, name: str) -> BatchSink:
        """Return the part of ``sink`` for one participant."""
        return self.sink.part(name)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """Return the delivered rows, as ``sink`` reads them."""
        return self.sink.delivered(spark, works)


# --- a sink in the query's plan -------------------------------------------------------------------
# A sink whose tasks are a part of the streaming query, so that no row leaves its plan.


@dataclass(frozen=True)
class InPlanSink(WrappedSink):
    """A sink whose tasks are a part of the streaming query's plan.

    A query of its own over the rows that ``foreachBatch`` gets would be planned again for each
    batch, and copy the rows once more. It could read the rows again, though, which a replay needs:
    where a promise is waiting to be kept, the query runs with ``sink`` alone.

    Attributes:
        analysed: what :meth:`streamed` returns, where Spark analysed it before; see :meth:`of`.
    """

    analysed: DataFrame | None = None

    @classmethod
    def of(cls, sink: BatchSink, df: DataFrame) -> InPlanSink:
        """Let Spark analyse the plan over ``df`` now, which takes it 0.1 s."""
        return cls(sink, cls(sink).streamed(df))

    def streamed(self, df: DataFrame) -> DataFrame:
        """Return the reports of the tasks that write the rows; see :meth:`BatchSink.streamed`."""
        if self.analysed is not None:
            return self.analysed
        return self.sink.tasks(self.sink.rows(df))

    def rows(self, df: DataFrame) -> DataFrame:
        """Return ``df``, whose rows have the sink's types already; see :meth:`BatchSink.rows`."""
        return df

    def prepare(self, rows: DataFrame, *, only: Collection[int] | None = None) -> list[TaskReport]:
        """Collect the reports of the tasks; see :meth:`BatchSink.prepare`.

        Raises:
            SupersededError: only some tasks should write.
        """
        if only is not None:
            raise SupersededError(
                "The batch was promised by another driver after this query had started, which "
                "cannot replay it. Nothing is lost. Keep one of the two drivers, and start the "
                "query again: it keeps the promise."
            )
        return collected(rows, self.names)

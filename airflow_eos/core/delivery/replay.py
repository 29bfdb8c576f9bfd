"""Replay of a promise: the rows of a promised batch that were lost are written again.

:mod:`airflow_eos.core.protocol.promise` tells what was promised and what is missing; here the batch
is evaluated once more, and its rows are compared with those that are delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from airflow_eos.core.checkpoint import DecisionLog, read_state
from airflow_eos.core.checkpoint.topics import LostInput
from airflow_eos.core.delivery.port import BatchSink, TaskReport
from airflow_eos.core.delivery.spill import kept_rows
from airflow_eos.core.delivery.task import quoted
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.core.protocol.participant import ANEW
from airflow_eos.core.protocol.promise import Outcomes, Promise, together
from airflow_eos.errors import (
    DecisionNeededError,
    DeliveryError,
    InputError,
    InputLostError,
    Remedy,
    TransactionError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from airflow_eos.core.checkpoint import CheckpointStore
    from airflow_eos.core.checkpoint.decisions import PerishableRows
    from airflow_eos.core.checkpoint.rulings import Acceptance

log = Log(__name__)


def promise_in_flight(store: CheckpointStore) -> bool:
    """Whether the batch in flight was promised: the next run begins by keeping that promise."""
    batch = read_state(store).in_flight
    return batch is not None and Promise.of(DecisionLog(store).of_batch(batch)) is not None


@dataclass(frozen=True, slots=True)
class Replay:
    """The rows of a batch that are written again for one participant.

    Attributes:
        participant: the participant's name.
        sink: writes the rows of this participant alone.
        rows: the batch, or just the rows that are missing.
        only: the numbers of the tasks that write (None: all).
    """

    participant: str
    sink: BatchSink
    rows: DataFrame
    only: list[int] | None


@dataclass(frozen=True)
class ReplayChecks:
    """The questions about state and input asked before a promised batch is evaluated once more.

    Attributes:
        state: returns the query's operators that keep state, for which Spark needs each batch.
        lost: returns what the topics tell of rows of the batch in flight that are gone.
    """

    state: Callable[[], Sequence[str]] = lambda: ("not told",)
    lost: Callable[[], LostInput] = LostInput

    def lost_of(self, promise: Promise, owing: Mapping[str, int], *, accepted: bool) -> LostInput:
        """Return what is gone of the batch's input; refuse a batch that its source would refuse.

        Args:
            promise: the promise of the batch.
            owing: the rows that participants lack and only the input has, by participant.
            accepted: whether a person let the batch go on as it is.

        Raises:
            InputLostError: with the way on; alike for both kinds of source.
        """
        lost = self.lost()
        if not lost.past_retention or (lost.skipped and not lost.absent):
            return lost
        left_out = {"failOnDataLoss": "false"}
        found = f"Batch {promise.batch_id} cannot be evaluated again: {lost}. "
        if lost.absent:
            return self._absent(found, promise, owing, lost, accepted=accepted)
        if owing and not accepted:
            accept = promise.accepting("the rows that are lost, which the next start counts")
            raise InputLostError(
                f"{found}It was promised, and readers lack rows of it. Nothing was made visible. "
                "What is left can be delivered, with a source that leaves out what is gone, for "
                "one start.",
                replace(accept, settings=left_out),
            )
        whose = ", ".join(self.state())
        what = f"for the state of the query ({whose})" if whose else "for what is left of it"
        raise InputLostError(
            f"{found}It is evaluated {what}, by a source that leaves out what is gone, for one "
            "start.",
            Remedy(
                settings=left_out,
                start=True,
                costs="what the rows that are gone would have added to the state" if whose else "",
            ),
        )

    def _absent(
        self,
        found: str,
        promise: Promise,
        owing: Mapping[str, int],
        lost: LostInput,
        *,
        accepted: bool,
    ) -> LostInput:
        """Refuse a batch with an input partition that is read no more: no source gives its rows."""
        if self.state():
            raise InputLostError(
                f"{found}The state of the query ({', '.join(self.state())}) needs it, and a "
                "partition of its input is not there, or is not read any more.",
                Remedy(change="let the query read it again, where it is there", start=True),
                ANEW,
            )
        if owing and not accepted:
            raise InputLostError(
                f"{found}It was promised, readers lack rows of it, and a partition of its input is "
                "not there, or is not read any more. Nothing was made visible.",
                Remedy(change="let the query read it again, where it is there", start=True),
                promise.accepting(f"{sum(owing.values())} rows"),
            )
        return lost


@dataclass(frozen=True, slots=True)
class UnkeptPromise:
    """A promise that is not kept, and what is known of its work and rows.

    Attributes:
        promise: the promise of the batch.
        outcomes: the outcomes of all its work with rows.
        lacking: the number of rows that each participant lacks.
        accepted: whether a person let the batch go on as it is: what is left of its input is
            written then, if anything, and need not be what was promised.
        kept: the rows kept beside work; None: nothing is ever kept.
        reading: asked before the batch is evaluated.
    """

    promise: Promise
    outcomes: Outcomes
    lacking: Mapping[str, int]
    accepted: bool = False
    kept: PerishableRows | None = None
    reading: ReplayChecks = ReplayChecks()

    def keys(self, name: str) -> list[str]:
        """Return the keys of the kept rows that ``name`` lacks; [] unless all of them are kept."""
        if self.kept is None or self.promise.part(name).untold(self.outcomes):
            return []
        part = self.promise.part(name)
        return keys_of_missing(part, self.outcomes, self.kept.keys(name, self.promise.batch_id))


@contextmanager
def replays(sink: BatchSink, df: DataFrame, owing: UnkeptPromise) -> Iterator[list[Replay]]:
    """Yield the rows to write again, one :class:`Replay` for each participant that lacks rows.

    The batch is evaluated once and kept on disk meanwhile: a second evaluation would spoil the
    state of a stateful query. A participant whose rows are kept in the checkpoint gets those
    instead, whatever the evaluation gives; a batch that is kept whole is evaluated for state alone.
    """
    from pyspark import StorageLevel

    with ExitStack() as kept_on_disk:

        def keep(frame: DataFrame) -> DataFrame:
            kept = frame.persist(StorageLevel.DISK_ONLY)
            kept_on_disk.callback(kept.unpersist)
            return kept

        rows = sink.rows(df)
        names = [each for each in sink.names if each in owing.lacking]
        keys = {name: owing.keys(name) for name in names}
        reports: Sequence[TaskReport] = ()
        lost = LostInput()
        if owing.reading.state() or not all(keys.values()):
            lacking = {name: owing.lacking[name] for name in names if not keys[name]}
            lost = owing.reading.lost_of(owing.promise, lacking, accepted=owing.accepted)
            if lost.absent:
                names = [name for name in names if keys[name]]
            else:
                rows = keep(rows)
                reports = sink.prepare(rows, only=())
        tasks = {
            name: [report for report in reports if report.participant == name]
            for name in names
            if not keys[name]
        }
        left = {
            name: partial(_what_is_left, sink.part(name), name, rows, owing, of_name, keep)
            for name, of_name in tasks.items()
            if not _is_whole(owing.promise.part(name), of_name)
        }
        found: list[Replay | None] = []
        for name in names:
            part = sink.part(name)
            if keys[name]:
                found.append(_of_kept(part, name, rows, owing, keys[name]))
                continue
            if owing.accepted and name in left:
                found.append(left[name]()[0])
                continue
            owing.promise.part(name).check_whole(
                (task.content for task in tasks[name]),
                str(lost),
                partial(_given_up, left.values()),
            )
            found.append(_replay(part, name, rows, owing, tasks[name], keep))
        yield [each for each in found if each is not None]


def _is_whole(part: Promise, tasks: Sequence[TaskReport]) -> bool:
    return together(task.content for task in tasks) == (part.rows, part.fingerprint)


def _of_kept(
    sink: BatchSink, name: str, evaluated: DataFrame, owing: UnkeptPromise, keys: Sequence[str]
) -> Replay:
    """Return a replay of the very rows that were promised, as kept in the checkpoint."""
    batch, kept = owing.promise.batch_id, owing.kept
    assert kept is not None  # noqa: S101 - it gave the keys
    log.info("replayed_as_kept", batch=batch, participant=name, works=len(keys))
    return Replay(name, sink, kept_rows(sink.rows(evaluated), kept, name, batch, keys), None)


def keys_of_missing(part: Promise, outcomes: Outcomes, kept: Collection[str]) -> list[str]:
    """Return the keys under which all missing rows of a participant are kept, in task order.

    A lost replay of a driver that kept none (``keep_rows`` was off) is made of its promise's rows.

    Returns:
        The keys; an empty list where some missing rows are not kept.
    """
    alike = {work.content: work.key for work in part.works if work.key in kept}
    keys = [w.key if w.key in kept else alike.get(w.content) for w in part.owed(outcomes)]
    return [key for key in keys if key is not None] if None not in keys else []


def _replay(
    sink: BatchSink,
    name: str,
    evaluated: DataFrame,
    owing: UnkeptPromise,
    tasks: Sequence[TaskReport],
    keep: Callable[[DataFrame], DataFrame],
) -> Replay | None:
    """Return a replay of whole tasks where contents pair up, else of the rows that no reader has.

    None where a person accepted the batch and nobody can tell which rows no reader has.
    """
    part, rows = owing.promise.part(name), sink.rows(evaluated)
    untold, delivered = part.untold(owing.outcomes), part.delivered(owing.outcomes)
    lost = [work for work in part.owed(owing.outcomes) if work not in untold]
    paired = tasks_like(tasks, lost) if untold else undelivered_tasks(tasks, delivered)
    if paired is not None:
        return Replay(name, sink, rows, paired) if paired else None
    seen = None if untold else _seen(sink, evaluated, delivered, keep)
    if seen is not None:
        return Replay(name, sink, undelivered(rows, seen, tasks=len(tasks)), None)
    if owing.accepted:
        return None
    costs = f"{sum(work.rows for work in lost)} rows"
    why = (
        f"nobody can tell what became of {len(untold)} earlier pieces of work, first "
        f"{untold[0].identity}"
        if untold
        else "what readers have of it cannot be read back from there"
    )
    raise DecisionNeededError(
        f"Batch {part.batch_id}: {costs} for {name!r} were lost, and which of the batch's rows "
        f"they are cannot be told any more: other tasks cut it now, as with another parallelism "
        f"than it was promised with, and {why}. Nothing was made visible.",
        part.accepting(costs),
    )


def read_back(
    sink: BatchSink,
    evaluated: DataFrame,
    delivered: Sequence[PreparedWork],
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame | None:
    """Return the rows that readers have, kept on disk; None where the output lost some of them."""
    try:
        seen = keep(sink.delivered(evaluated.sparkSession, delivered))
        return seen if seen.count() == sum(work.rows for work in delivered) else None
    except Exception as error:
        # A task's error arrives as text: Spark hands on no class of ours.
        said = f"{type(error).__name__}: {error}"
        if any(gone in said for gone in _GONE):
            return None
        raise


_GONE = (InputError.__name__, TransactionError.__name__, "PATH_NOT_FOUND")  # the last is a lake's


def _seen(*asked: Any) -> DataFrame | None:
    """Read back as :func:`read_back`; None also if the output cannot tell a batch's rows.

    A table cannot, nor a callable. A person who accepted the batch would be told to do so again.
    """
    try:
        return read_back(*asked)
    except DeliveryError:
        return None


def _given_up(left: Iterable[Callable[[], tuple[Replay | None, int]]]) -> str:
    """Say how many rows are given up by accepting the batch, over all outputs that lack some."""
    return f"{sum(rows for _, rows in (each() for each in left))} rows"


def _what_is_left(
    sink: BatchSink,
    name: str,
    evaluated: DataFrame,
    owing: UnkeptPromise,
    tasks: Sequence[TaskReport],
    keep: Callable[[DataFrame], DataFrame],
) -> tuple[Replay | None, int]:
    """Return what the input still has and no reader has, of a batch that a person accepted.

    Only where fewer rows come back than were promised, as where a topic was compacted; as many
    rows of other content are another query's. Nothing is written either where nobody can tell what
    readers have, or where more would come than they lack: rows of the same input would come twice.

    Returns:
        The replay (None: nothing is written), and how many rows readers do without.
    """
    part, rows = owing.promise.part(name), sink.rows(evaluated)
    found = sum(task.rows for task in tasks)
    delivered = part.delivered(owing.outcomes)
    lacking = part.rows - sum(work.rows for work in delivered)
    if not 0 < found < part.rows or part.untold(owing.outcomes):
        return None, lacking
    if not delivered:
        return Replay(name, sink, rows, None), lacking - found
    seen = _seen(sink, evaluated, delivered, keep)
    if seen is None:
        return None, lacking
    left = keep(undelivered(rows, seen, tasks=len(tasks)))
    count = left.count()
    if not 0 < count <= lacking:
        return None, lacking
    return Replay(name, sink, left, None), lacking - count


def tasks_like(tasks: Sequence[TaskReport], lost: Sequence[PreparedWork]) -> list[int] | None:
    """Return tasks that pair with the lost work by content; None where a lost work has no task."""
    wanted = Counter(work.content for work in lost)
    found = []
    for task in tasks:
        if wanted[task.content] > 0:
            wanted[task.content] -= 1
            found.append(task.task)
    return None if +wanted else found


def undelivered_tasks(
    tasks: Sequence[TaskReport], delivered: Sequence[PreparedWork]
) -> list[int] | None:
    """Return tasks whose content nobody has delivered; None where contents do not pair up."""
    done = Counter(t.content for t in delivered)
    open_tasks = []
    for task in tasks:
        if done[task.content] > 0:
            done[task.content] -= 1
        elif task.rows:
            open_tasks.append(task.task)
    return None if done.total() else open_tasks


def rows_owed(promise: Promise, outcomes: Outcomes, accepted: Acceptance | None) -> dict[str, int]:
    """Return the number of rows that may be written, by participant.

    Where a person accepted the batch as it is: as many as no reader has, but none of a participant
    some of whose given-up work may have begun.

    Raises:
        DecisionNeededError: nobody can tell what became of some work that is owed.
    """
    parts = {name: promise.part(name) for name in promise.participants}
    if accepted is None:
        missing = {name: part.missing_rows(outcomes) for name, part in parts.items()}
    else:
        begun = {each.participant for each in accepted.given_up}
        missing = {
            name: part.rows - sum(work.rows for work in part.delivered(outcomes))
            for name, part in parts.items()
            if name not in begun
        }
    return {name: rows for name, rows in missing.items() if rows}


def say_given_up(
    promise: Promise, outcomes: Outcomes, accepted: Acceptance, replayed: Sequence[PreparedWork]
) -> None:
    """Log how many rows of an accepted batch readers do without, to the row."""
    seen = (*promise.delivered(outcomes), *replayed)
    rows = promise.rows - sum(work.rows for work in seen)
    if rows:
        log.error(
            "rows_given_up",
            batch=promise.batch_id,
            rows=rows,
            accepted_by=accepted.ruled_by,
            accepted_at_ms=accepted.ruled_at_ms,
        )


# --- difference -----------------------------------------------------------------------------------
# The rows of a batch that readers lack: a multiset difference that keeps the order.
#
# Needed where other tasks cut the batch than those that promised it. Equal rows cannot be told
# apart, so the earliest of them, in the order of the input, count as delivered: where readers have
# the beginning of what a task wrote, the remaining rows follow after it. The remaining rows go back
# to the tasks and places that they had, so the rows of a key that one task reads are written in the
# order of the input.
#
# Everything is compared by its content and done by Spark, which spills to disk; the driver holds no
# rows.


FILLED_IN = ("partition", "timestamp")
"""Columns that Kafka fills in where a row has null: a null says nothing of the delivered value."""
_DELIVERED, _TASK, _PLACE = "__eos_delivered", "__eos_task", "__eos_place"


def undelivered(rows: DataFrame, delivered: DataFrame, *, tasks: int) -> DataFrame:
    """Return ``rows`` less ``delivered``, as multisets, in at most ``tasks`` tasks.

    Both are read more than once: keep them. A column of ``FILLED_IN`` is compared between rows
    that both have it. Rows that both have all such columns are paired first; a row that left a
    column open may then pair with another row than its own, which differs in just that column.
    """
    both = _placed(rows).unionByName(_like(delivered, rows))
    filled_in = [name for name in FILLED_IN if name in rows.columns]
    always = [quoted(name) for name in rows.columns if name not in filled_in]
    left = both
    for here, there in _pairs(both, filled_in):
        compared = [*always, *sorted(here & there)]
        takes_part = F.when(F.col(_DELIVERED), _gives(there, filled_in)).otherwise(
            _gives(here, filled_in)
        )
        left = _unpaired(left, compared, takes_part)
    # Not a range: Spark samples the bounds of a range, which would do all this once more.
    return (
        left.where(~F.col(_DELIVERED))
        .repartition(tasks, _TASK)
        .sortWithinPartitions(_PLACE)
        .select(*map(quoted, rows.columns))
    )


def _placed(rows: DataFrame) -> DataFrame:
    """Add to each row its task and a number that grows with its place in the task."""
    return rows.select(
        "*",
        F.lit(False).alias(_DELIVERED),  # noqa: FBT003
        F.spark_partition_id().alias(_TASK),
        F.monotonically_increasing_id().alias(_PLACE),
    )


def _like(delivered: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the delivered rows in the columns and types of ``rows``."""
    return delivered.select(
        *[F.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in rows.schema.fields],
        F.lit(True).alias(_DELIVERED),  # noqa: FBT003
        F.lit(0).alias(_TASK),
        F.lit(0).cast("long").alias(_PLACE),
    )


def _pairs(
    both: DataFrame, filled_in: list[str]
) -> Iterable[tuple[frozenset[str], frozenset[str]]]:
    """Return which ``filled_in`` columns batch and delivered rows have, most alike pairs first."""
    if not filled_in:
        return [(frozenset(), frozenset())]
    has = [F.col(name).isNotNull().alias(name) for name in filled_in]
    found: dict[bool, set[frozenset[str]]] = {True: set(), False: set()}
    for row in both.select(_DELIVERED, *has).distinct().collect():
        found[row[_DELIVERED]].add(frozenset(name for name in filled_in if row[name]))
    pairs = product(found[False], found[True])
    return sorted(pairs, key=lambda pair: (-len(pair[0] & pair[1]), *map(sorted, pair)))


def _gives(names: frozenset[str], filled_in: list[str]) -> Column:
    """Return the condition that a row has these of ``filled_in`` and no others."""
    given = F.lit(True)  # noqa: FBT003
    for name in filled_in:
        column = F.col(name)
        given = given & (column.isNotNull() if name in names else column.isNull())
    return given


def _unpaired(both: DataFrame, compared: list[str], takes_part: Column) -> DataFrame:
    """Return ``both`` less the rows that pair one to one; rows that take no part stay."""
    content: list[Column | str] = [takes_part, *compared]
    same = Window.partitionBy(*content)
    side = Window.partitionBy(*content, _DELIVERED).orderBy(_PLACE)
    delivered = F.count_if(F.col(_DELIVERED)).over(same)
    others = F.when(F.col(_DELIVERED), F.count("*").over(same) - delivered).otherwise(delivered)
    counted = both.withColumns({"__eos_nth": F.row_number().over(side), "__eos_others": others})
    alone = F.col("__eos_nth") > F.col("__eos_others")
    return counted.where(~takes_part | alone).drop("__eos_nth", "__eos_others")

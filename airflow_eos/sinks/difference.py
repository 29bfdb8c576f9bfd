"""The rows of a batch that readers do not have: a multiset difference that keeps the order.

Needed where other tasks cut the batch than those that promised it. Equal rows cannot be told
apart, so the earliest of them, in the order of the input, count as delivered: where readers have
the beginning of what a task wrote, what is left goes on after it. The rows that are left are
brought back into the tasks and the places that they had, so the rows of a key that one task
reads are written in the order of the input.

Everything is compared by its content and done by Spark, which spills to disk; the driver holds no
rows.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

FILLED_IN = ("partition", "timestamp")
"""Kafka fills these in where a row leaves them null, so a null says nothing of what is there."""
_DELIVERED, _TASK, _PLACE = "__eos_delivered", "__eos_task", "__eos_place"


def undelivered(rows: DataFrame, delivered: DataFrame, *, tasks: int) -> DataFrame:
    """``rows`` less ``delivered``, as multisets, in at most ``tasks`` tasks.

    Both are read more than once: keep them. A column of ``FILLED_IN`` is compared between rows
    that both have it. Rows that both have all of them are paired first; what then pairs with a
    row that left something open may have been another one, which differs in just that.
    """
    both = _placed(rows).unionByName(_like(delivered, rows))
    filled_in = [name for name in FILLED_IN if name in rows.columns]
    always = [name for name in rows.columns if name not in filled_in]
    left = both
    for here, there in _pairs(both, filled_in):
        compared = [*always, *sorted(here & there)]
        takes_part = F.when(F.col(_DELIVERED), _gives(there, filled_in)).otherwise(
            _gives(here, filled_in)
        )
        left = _unpaired(left, compared, takes_part)
    # Not a range: its bounds are sampled, which would do all this once more.
    return (
        left.where(~F.col(_DELIVERED))
        .repartition(tasks, _TASK)
        .sortWithinPartitions(_PLACE)
        .select(*rows.columns)
    )


def _placed(rows: DataFrame) -> DataFrame:
    """Each row with its task and a number that grows with its place in there."""
    return rows.select(
        "*",
        F.lit(False).alias(_DELIVERED),  # noqa: FBT003
        F.spark_partition_id().alias(_TASK),
        F.monotonically_increasing_id().alias(_PLACE),
    )


def _like(delivered: DataFrame, rows: DataFrame) -> DataFrame:
    """The delivered rows in the columns and types of ``rows``."""
    return delivered.select(
        *[F.col(field.name).cast(field.dataType) for field in rows.schema.fields],
        F.lit(True).alias(_DELIVERED),  # noqa: FBT003
        F.lit(0).alias(_TASK),
        F.lit(0).cast("long").alias(_PLACE),
    )


def _pairs(
    both: DataFrame, filled_in: list[str]
) -> Iterable[tuple[frozenset[str], frozenset[str]]]:
    """What rows of the batch and delivered rows may have of ``filled_in``; the most alike first."""
    if not filled_in:
        return [(frozenset(), frozenset())]
    has = [F.col(name).isNotNull().alias(name) for name in filled_in]
    found: dict[bool, set[frozenset[str]]] = {True: set(), False: set()}
    for row in both.select(_DELIVERED, *has).distinct().collect():
        found[row[_DELIVERED]].add(frozenset(name for name in filled_in if row[name]))
    pairs = product(found[False], found[True])
    return sorted(pairs, key=lambda pair: (-len(pair[0] & pair[1]), *map(sorted, pair)))


def _gives(names: frozenset[str], filled_in: list[str]) -> Column:
    """Whether a row has these of ``filled_in`` and no others."""
    given = F.lit(True)  # noqa: FBT003
    for name in filled_in:
        column = F.col(name)
        given = given & (column.isNotNull() if name in names else column.isNull())
    return given


def _unpaired(both: DataFrame, compared: list[str], takes_part: Column) -> DataFrame:
    """``both`` less the rows that pair one to one; those that take no part stay."""
    content: list[Column | str] = [takes_part, *compared]
    same = Window.partitionBy(*content)
    side = Window.partitionBy(*content, _DELIVERED).orderBy(_PLACE)
    delivered = F.count_if(F.col(_DELIVERED)).over(same)
    others = F.when(F.col(_DELIVERED), F.count("*").over(same) - delivered).otherwise(delivered)
    counted = both.withColumns({"__eos_nth": F.row_number().over(side), "__eos_others": others})
    alone = F.col("__eos_nth") > F.col("__eos_others")
    return counted.where(~takes_part | alone).drop("__eos_nth", "__eos_others")

"""Never "every row exactly once" unless every row was judged; what is twice is twice."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.ops.audit.audit import (
    NO_ORDER,
    Sources,
    _order,
    of_order,
    unjudged,
    without_meaning,
)
from airflow_eos.ops.audit.compare import compare
from airflow_eos.ops.audit.rows import NO_KEY, PartitionEnds, _MessageColumns
from tests.unit.ops.audit.test_compare import in_a_line, rows

NOTHING_SAID = Sources()


def cut(topic, low):
    """Its partition 0 without the rows before ``low``."""
    return replace(topic, ends={0: PartitionEnds(low, 100, 100)})


def judged(source, output, *, sources=NOTHING_SAID, moved=()):
    """The counts that mean something, and what is not known."""
    inputs = source if isinstance(source, list) else [source]
    compared = compare(inputs, [output], read=sources.read, skipped=sources.skipped)
    empty = without_meaning(inputs, [output], compared)
    kinds = ("lost", "duplicated", "unexpected", "reordered")
    counts = {k: getattr(compared, k).count for k in kinds if k not in empty}
    unknown = unjudged(
        inputs, [output], compared, sources=sources, moved=moved, expression="value.id"
    )
    return {k: n for k, n in counts.items() if n}, " | ".join(each.why for each in unknown)


def later(ids, first):
    return [(each, 1, 0, first + n) for n, each in enumerate(ids)]


def test_all_of_it_is_exact():
    assert judged(rows(in_a_line([1, 2])), rows(in_a_line([1, 2]))) == ({}, "")


def unended(topic, end):
    """Its partition 0 with transactions that are open between its one row and ``end``."""
    return replace(topic, ends={0: PartitionEnds(0, 1, end)})


UNKNOWN = {
    "rows twice are told whatever the input still has": (
        cut(rows(later([3, 4], 2), "in"), 2), rows(in_a_line([1, 1, 2, 2, 3, 4])),
        {"duplicated": 2}, "partition 0 before 2.*whether they ever went in",
    ),
    "rows twice are told where all of the input is gone": (
        cut(rows([], "in"), 5), rows(in_a_line([1, 1, 2])), {"duplicated": 1}, "has no rows",
    ),
    "an input past retention is not exact even where what is left is": (
        cut(rows(later([3, 4], 2), "in"), 2), rows(in_a_line([1, 2, 3, 4])),
        {}, "in has lost its oldest rows",
    ),
    "behind one of its key it is lost though the output is past retention": (
        rows(in_a_line([1, 2, 3, 4])), cut(rows(later([2, 4], 10), "out"), 10),
        {"lost": 1}, "may have had them",  # 3 would be behind 2, and 1 before it
    ),
    "of a key that the output does not have any more": (
        rows([(1, 1, 0, 0), (2, 2, 0, 1), (3, 1, 0, 2)]), cut(rows([(3, 1, 0, 10)], "out"), 10),
        {}, "may have had them",
    ),
    "what is missing may be in a transaction that is open": (
        rows(in_a_line([1, 2])), unended(rows(in_a_line([1])), 5), {}, "may have had them",
    ),
    "an open transaction of the input": (
        unended(rows(in_a_line([1]), "in"), 3), rows(in_a_line([1])),
        {}, "in has transactions that are open",
    ),
    "an aggregation is told from a broken pipeline": (
        rows(in_a_line([1, 2, 3])), rows(in_a_line([7, 7])), {}, "aggregates",
    ),
    "of rows that share an id nobody knows which came": (
        rows(in_a_line([1, 1, 2, 3])), rows(in_a_line([1, 1, 2, 3])),
        {}, "2 rows of the input share their 'value.id'",
    ),
    # As of all of them where ``order_by`` is misspelt: none is ever found out of order.
    "the order of rows without a key": (
        replace(rows(in_a_line([1, 2, 3], key=NO_KEY), "in"), keyless=3),
        rows(in_a_line([3, 2, 1], key=NO_KEY)), {}, "no 'key': their order is not judged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_can_be_told_is_counted_and_what_cannot_is_said(what):
    source, output, expected, says = UNKNOWN[what]
    counts, unknown = judged(source, output)
    assert counts == expected
    assert re.search(says, unknown)


def test_what_a_person_said_is_stepped_over_is_announced_and_not_lost():
    """``accept --skip-input``: of one partition, from the first to the last of them."""
    source, output = rows(later([1, 2, 3, 4, 5], 0), "in"), rows(in_a_line([1, 5]))
    skipped = [("in", 0, 1, 3), ("in", 1, 3, 9), ("other", 0, 0, 9)]
    sources = Sources(read={("in", 0): (0, 5)}, skipped=skipped)
    assert judged(source, output, sources=sources) == ({"lost": 1}, ""), "4, in another partition"
    compared = compare([source], [output], read=sources.read, skipped=skipped)
    assert compared.given_up == 2
    assert compared.whole_until == {"in": {0: 3}}
    assert compared.again == 1, "5 is behind it"


@pytest.mark.parametrize("compacted", [True, None], ids=["compacted", "not told"])
def test_a_compacted_topic_is_not_judged(compacted):
    source = replace(rows(in_a_line([1, 2]), "in"), compacted=compacted)
    output = rows(in_a_line([1, 2, 9]), "out")
    counts, unknown = judged(source, output)
    assert counts == {}
    assert "in is compacted" in unknown
    counts, _ = judged(rows(in_a_line([1, 2, 3])), replace(output, compacted=compacted))
    assert counts == {"unexpected": 1}, "3 may have been compacted away; 9 never went in"


@pytest.mark.parametrize(
    ("source", "output", "says"),
    [([], [], "no rows"), ([], [1], "no rows"), ([1], [], "has delivered cannot be told")],
    ids=["both", "input", "output"],
)
def test_an_empty_topic_is_not_known(source, output, says):
    counts, unknown = judged(rows(in_a_line(source), "in"), rows(in_a_line(output), "out"))
    assert "lost" not in counts
    assert says in unknown


def test_an_aggregation_by_the_same_id_is_told_from_a_broken_pipeline():
    source = rows(in_a_line([1, 1, 1, 2, 2, 2]))
    counts, unknown = judged(source, rows(in_a_line([1, 2])))
    assert counts == {}
    assert "aggregated or deduplicated" in unknown
    counts, _ = judged(source, rows(in_a_line([1, 1])))
    assert counts == {"lost": 4}, "2 is not there at all"
    counts, _ = judged(rows(in_a_line([1, 1, 2, 3, 4])), rows(in_a_line([1, 2, 3, 4])))
    assert counts == {"lost": 1}, "the id names a row: most are there once"


def test_rows_that_the_query_has_not_come_to_are_not_lost():
    sources = Sources(read={("in", 0): (1, 3)})
    source = rows(in_a_line([1, 2, 3, 4]), "in")
    counts, unknown = judged(source, rows(in_a_line([2])), sources=sources)
    assert counts == {"lost": 1}, "3 alone was read and is not there"
    assert "not delivered yet" in unknown
    elsewhere = Sources(read={("another", 0): (0, 3)}, others=["another"])
    counts, unknown = judged(source, rows(in_a_line([2])), sources=elsewhere)
    assert counts == {"lost": 3}
    assert "another as well" in unknown


def test_a_topic_made_again_and_an_input_that_moves_are_said():
    source, output = rows(in_a_line([1]), "in"), rows(in_a_line([1]))
    read = {("in", 0): (0, 9)}
    _, unknown = judged(source, output, sources=Sources(read=read, remade=["in"]), moved=["in"])
    assert "made again" in unknown
    assert "changed while" in unknown


def test_several_inputs_are_one():
    inputs = [rows(in_a_line([1, 2]), "a"), rows(in_a_line([3]), "b")]
    assert judged(inputs, rows(in_a_line([1, 3, 2]))) == ({}, "")
    counts, _ = judged(inputs, rows(in_a_line([1, 2])))
    assert counts == {"lost": 1}


@pytest.mark.parametrize("side", ["in", "out"])
def test_the_order_of_a_key_that_is_in_several_partitions_is_not_judged(side):
    one, several = in_a_line([1, 2, 3]), [(1, 1, 0, 0), (2, 1, 1, 0), (3, 1, 0, 1)]
    source, output = (several, one) if side == "in" else (one, several)
    counts, unknown = judged(rows(source, "in"), rows(output, "out"))
    assert counts == {}
    assert "rows of one 'key' are in several partitions" in unknown


def test_keys_that_stay_in_their_partitions_and_are_routed_to_several_topics_are_in_order():
    entries = [(1, 1, 0, 0), (2, 2, 1, 0), (3, 1, 0, 1), (4, 2, 1, 1)]
    source, outputs = rows(entries, "in"), [rows(entries[:2], "out"), rows(entries[2:], "dead")]
    assert compare([source], outputs).spread == 0
    assert compare([source, rows([(5, 1, 1, 0)], "other")], outputs).spread == 0, "each by itself"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)), max_size=9))
def test_rows_of_spread_keys_are_counted_as_an_obvious_count_counts_them(placed):
    """Each a key (0: none), the partition where it was, and where it came out."""
    source = rows([(n, key, p, n) for n, (key, p, _) in enumerate(placed)], "in")
    output = rows([(n, key, p, n) for n, (key, _, p) in enumerate(placed)], "out")

    def partitions(of, which):
        alike = [each for each in placed if each[0] == of[0] and (which == 1 or each[1] == of[1])]
        return {each[which] for each in alike}

    spread = [e for e in placed if e[0] and any(len(partitions(e, at)) > 1 for at in (1, 2))]
    assert compare([source], [output]).spread == len(spread)


def test_no_order_is_judged_where_nobody_asks_for_one():
    source = replace(rows(in_a_line([1, 2], key=NO_KEY), "in"), keyless=2)
    compared = compare([source], [rows(in_a_line([2, 1], key=NO_KEY))])
    assert not any(of_order(compared, NO_ORDER))
    assert _order(0, compared, NO_ORDER) == "not asked"
    assert _order(0, compared, "key") == "not judged"
    assert _order(1, compared, "key") == "broken"


def test_a_row_that_has_no_id_has_no_key_either_and_is_no_row_of_unknown_order():
    columns = _MessageColumns(array("q"), array("q"), array("i"), array("q"))
    said: list[tuple[bytes | None, bytes | None]] = [(b"1", b"k"), (None, None), (b"2", None)]
    for name, key in said:
        columns.add(cast("Any", Row()), constant(name), constant(key))
    assert (columns.unidentified, columns.keyless) == (1, 1)


def constant(value: bytes | None) -> Callable[[Any], bytes | None]:
    return lambda _: value


class Row:
    """A message of which only its place counts."""

    def value(self):
        return b""

    def partition(self):
        return 0

    def offset(self):
        return 0

"""Never "every row exactly once" unless every row was judged; what is twice is twice."""

from __future__ import annotations

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


def test_rows_twice_are_told_whatever_the_input_still_has():
    source = cut(rows(later([3, 4], 2), "in"), 2)
    counts, unknown = judged(source, rows(in_a_line([1, 1, 2, 2, 3, 4])))
    assert counts == {"duplicated": 2}
    assert "partition 0 before 2" in unknown
    assert "whether they ever went in" in unknown


def test_rows_twice_are_told_where_all_of_the_input_is_gone():
    source = cut(rows([], "in"), 5)
    counts, unknown = judged(source, rows(in_a_line([1, 1, 2])))
    assert counts == {"duplicated": 1}
    assert "has no rows" in unknown


def test_an_input_past_retention_is_not_exact_even_where_what_is_left_is():
    source = cut(rows(later([3, 4], 2), "in"), 2)
    counts, unknown = judged(source, rows(in_a_line([1, 2, 3, 4])))
    assert counts == {}
    assert "in has lost its oldest rows" in unknown


def test_a_row_behind_one_of_its_key_is_lost_though_the_output_is_past_retention():
    output = cut(rows(later([2, 4], 10), "out"), 10)
    counts, unknown = judged(rows(in_a_line([1, 2, 3, 4])), output)
    assert counts == {"lost": 1}, "3 would be behind 2"
    assert "may have had them" in unknown, "1 would be before 2"


def test_a_row_of_a_key_that_the_output_does_not_have_any_more_is_not_known():
    source = rows([(1, 1, 0, 0), (2, 2, 0, 1), (3, 1, 0, 2)])
    output = cut(rows([(3, 1, 0, 10)], "out"), 10)
    counts, unknown = judged(source, output)
    assert counts == {}
    assert "may have had them" in unknown


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


def test_what_is_missing_may_be_in_a_transaction_that_is_open():
    output = replace(rows(in_a_line([1])), ends={0: PartitionEnds(0, 1, 5)})
    counts, unknown = judged(rows(in_a_line([1, 2])), output)
    assert counts == {}
    assert "may have had them" in unknown


def test_an_open_transaction_of_the_input_is_not_judged():
    source = replace(rows(in_a_line([1]), "in"), ends={0: PartitionEnds(0, 1, 3)})
    counts, unknown = judged(source, rows(in_a_line([1])))
    assert counts == {}
    assert "in has transactions that are open" in unknown


@pytest.mark.parametrize(
    ("source", "output", "says"),
    [([], [], "no rows"), ([], [1], "no rows"), ([1], [], "has delivered cannot be told")],
    ids=["both", "input", "output"],
)
def test_an_empty_topic_is_not_known(source, output, says):
    counts, unknown = judged(rows(in_a_line(source), "in"), rows(in_a_line(output), "out"))
    assert "lost" not in counts
    assert says in unknown


def test_an_aggregation_is_told_from_a_broken_pipeline():
    counts, unknown = judged(rows(in_a_line([1, 2, 3])), rows(in_a_line([7, 7])))
    assert counts == {}
    assert "aggregates" in unknown


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


def test_rows_that_share_an_id_are_counted_and_which_of_them_came_is_not_known():
    counts, unknown = judged(rows(in_a_line([1, 1, 2, 3])), rows(in_a_line([1, 1, 2, 3])))
    assert counts == {}
    assert "2 rows of the input share their 'value.id'" in unknown


def test_the_order_of_rows_without_a_key_is_not_judged():
    """As of all of them where ``order_by`` is misspelt: none of them is ever found out of order."""
    source = replace(rows(in_a_line([1, 2, 3], key=NO_KEY), "in"), keyless=3)
    counts, unknown = judged(source, rows(in_a_line([3, 2, 1], key=NO_KEY)))
    assert counts == {}
    assert "no 'key': their order is not judged" in unknown


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

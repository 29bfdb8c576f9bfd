"""The audit's arithmetic, against a slow and obvious count of the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.errors import ConfigurationError
from airflow_eos.ops.audit.audit import audit, visible_undecided
from airflow_eos.ops.audit.compare import compare
from airflow_eos.ops.audit.rows import PartitionEnds, TopicRows
from tests.unit.core.recovery.facts_of import commit, prepared, sealed


def rows(entries, topic="t"):
    """Entries are (id, key, partition, offset)."""
    ids, keys, partitions, offsets = zip(*entries, strict=True) if entries else ((), (), (), ())
    return TopicRows(
        topic=topic,
        ids=np.array(ids, np.int64),
        keys=np.array(keys, np.int64),
        partitions=np.array(partitions, np.int32),
        offsets=np.array(offsets, np.int64),
        unidentified=0,
        ends={p: PartitionEnds(0, 100, 100) for p in set(partitions)},
    )


def counted(source, *outputs):
    found = compare([source], outputs)
    return (found.lost.count, found.duplicated.count, found.unexpected.count, found.reordered.count)


def in_a_line(ids, key=1, partition=0):
    return [(each, key, partition, offset) for offset, each in enumerate(ids)]


LINE = in_a_line
CLEAN = (0, 0, 0, 0)
COUNTED = {
    "the same is clean": (LINE([1, 2, 3]), [LINE([1, 2, 3])], CLEAN),
    "a dead letter that is in the output too is a duplicate": (
        LINE([1]), [LINE([1]), LINE([1])], (0, 1, 0, 0),
    ),
    "a dead letter alone is not lost": (LINE([1, 2]), [LINE([1]), LINE([2])], CLEAN),
    "twice in and twice out is no duplicate": (LINE([1, 1]), [LINE([1, 1])], CLEAN),
    "unexpected is what never went in": (LINE([1]), [LINE([1, 9])], (0, 0, 1, 0)),
    "order between keys is nobody's promise": (
        [(1, 1, 0, 0), (2, 2, 0, 1)], [[(2, 2, 0, 0), (1, 1, 0, 1)]], CLEAN,
    ),
    "order between input partitions is nobody's promise": (
        [(1, 1, 0, 5), (2, 1, 1, 0)], [[(1, 1, 0, 0), (2, 1, 0, 1)]], CLEAN,
    ),
    "rows without a key have no order": (LINE([1, 2], key=0), [LINE([2, 1], key=0)], CLEAN),
    "a duplicate is not told as reordered too": (LINE([1, 2]), [LINE([1, 2, 1])], (0, 1, 0, 0)),
    "nothing in, nothing out": ([], [[]], CLEAN),
    "an empty output": (LINE([1]), [[]], (1, 0, 0, 0)),
    "an empty input": ([], [LINE([1])], (0, 0, 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("what", COUNTED)
def test_lost_duplicated_unexpected_and_reordered_are_counted(what):
    source, outputs, expected = COUNTED[what]
    assert counted(rows(source), *map(rows, outputs)) == expected


def test_lost_says_where_it_was_read_from():
    found = compare([rows(in_a_line([1, 2, 3]), "in")], [rows(in_a_line([1, 3]))])

    assert found.lost.count == 1
    assert [(p.topic, p.partition, p.offset) for p in found.lost.first] == [("in", 0, 1)]


def test_duplicated_says_where_all_copies_are():
    found = compare([rows(in_a_line([1, 2]))], [rows(in_a_line([1, 2, 1]), "out")])

    assert found.duplicated.count == 1
    (place,) = found.duplicated.first
    assert (place.offset, place.detail) == (2, "also at out/0@0")


def test_reordered_within_a_key():
    found = compare([rows(in_a_line([1, 2, 3]))], [rows(in_a_line([1, 3, 2]))])

    assert found.reordered.count == 1
    assert found.reordered.first[0].offset == 2


ENTRY = st.tuples(st.integers(1, 8), st.integers(1, 2), st.integers(0, 1))


@settings(deadline=None)  # a busy machine
@given(st.lists(ENTRY), st.lists(ENTRY))
def test_counts_equal_an_obvious_recount(given_in, given_out):
    source = rows([(i, k, p, n) for n, (i, k, p) in enumerate(given_in)])
    output = rows([(i, k, p, n) for n, (i, k, p) in enumerate(given_out)])

    went_in, came_out = Counter(source.ids.tolist()), Counter(output.ids.tolist())
    lost = sum((went_in - came_out).values())
    surplus = came_out - went_in
    strangers = {each: n for each, n in came_out.items() if each not in went_in}
    unexpected = sum(strangers.values())
    # Of a row that came from nowhere, the second copy is one too many all the same.
    twice = sum(surplus.values()) - len(strangers)
    assert counted(source, output)[:3] == (lost, twice, unexpected)


def named(first, last, attempt=1):
    written = {"topic": "t", "partition": 0, "first": first, "last": last}
    work = msgspec.structs.replace(prepared(), detail={"written": [written]})
    return commit(work, attempt=attempt)


def test_visible_outside_every_decided_range():
    output = rows([(n, 1, 0, n) for n in range(30)])

    found = visible_undecided([output], [named(10, 14), named(20, 29, 2), sealed(3)])

    assert found.count == 5
    assert [place.offset for place in found.first] == [15, 16, 17, 18, 19]


def test_before_the_oldest_retained_decision_nothing_is_claimed():
    output = rows([(n, 1, 0, n) for n in range(10)])

    assert visible_undecided([output], [named(5, 9)]).count == 0


def test_a_partition_without_decisions_is_not_judged():
    assert visible_undecided([rows([(1, 1, 3, 0)])], [named(5, 9)]).count == 0


def test_decisions_that_say_nothing_of_these_topics_are_no_answer():
    """Those of another pipeline's checkpoint: no row was held against them."""
    assert visible_undecided([rows([(1, 1, 0, 0)], topic="another")], [named(5, 9)]) is None
    assert visible_undecided([rows([(1, 1, 0, 0)])], [sealed(3)]) is None


NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("inputs", "output", "letters"),
    [("a", "a", None), (["a", "b"], "b", None), ("a", "c", "a")],
    ids=["itself", "one of them", "dead letters"],
)
def test_a_topic_that_is_held_against_itself_is_refused(inputs, output, letters):
    """It was exact, whatever the app had done."""
    with pytest.raises(ConfigurationError, match="its own counterpart"):
        audit(NOBODY, inputs, output, dead_letter_topic=letters)


def test_a_place_where_no_query_began_says_nothing_of_one(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no Spark checkpoint"):
        audit(NOBODY, "a", "b", checkpoint=str(tmp_path / "typed wrong"))


two_partitions = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1)), max_size=20).map(
    lambda drawn: [(each, 1, partition, at) for at, (each, partition) in enumerate(drawn)]
)


@settings(deadline=None)  # a busy machine
@given(two_partitions, st.lists(st.integers(1, 9), max_size=20))
def test_who_goes_on_from_where_all_is_out_loses_nothing_and_brings_again_what_is_said(went, came):
    found = compare([rows(went, "in")], [rows(in_a_line(came), "out")])
    assert found.whole_until is not None
    until = found.whole_until.get("in", {})
    behind = [each for each, _, partition, offset in went if offset >= until[partition]]
    given_ids, out = Counter(each for each, *_ in went), Counter(came)
    lacking = given_ids - out
    assert lacking - Counter(behind) == Counter(), "lost"
    assert len(behind) - lacking.total() == found.again
    first = [
        min((at for e, _, p, at in went if p == n and e in lacking), default=100) for n in until
    ]
    assert list(until.values()) == first, "and no earlier than it must"


def test_an_output_that_has_lost_rows_does_not_say_where_all_is_out():
    out = replace(rows(in_a_line([1, 2]), "out"), ends={0: PartitionEnds(1, 100, 100)})
    assert compare([rows(in_a_line([1, 2, 3]), "in")], [out]).whole_until is None

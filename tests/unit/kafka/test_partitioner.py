"""The partitioner against kafka-python's murmur2; the Java producer is asked in the integration."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from airflow_eos.errors import RowError
from airflow_eos.kafka.producer.partitioner import (
    Partitioner,
    explicit_partitions,
    murmur2,
    murmur2_of,
)
from airflow_eos.kafka.records.columns import views_of

KEYS = st.lists(
    st.binary(max_size=40) | st.sampled_from([b"x" * 1024, b"y" * 1025, b"z" * 3001]), max_size=30
)


def views(keys, kind=None):
    return views_of(pa.array(keys, kind or pa.binary()), "key")


@settings(deadline=None)
@given(KEYS, st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
def test_murmur2_of_a_column_is_murmur2_of_each_key(keys, kind):
    assert murmur2(views(keys, kind)).tolist() == [
        murmur2_of_kafka_python(key) & 0xFFFFFFFF for key in keys
    ]


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_the_definition_is_the_one_of_kafka_python(key):
    assert murmur2_of(key) == murmur2_of_kafka_python(key) & 0xFFFFFFFF


@pytest.mark.parametrize("length", range(13, 30))
def test_a_key_at_the_very_end_of_its_buffer(length):
    keys = [b"a" * 15, bytes(range(256 - length, 256))]
    column = pa.Array.from_buffers(
        pa.binary(),
        2,
        [None, pa.py_buffer(np.array([0, 15, 15 + length], "i4")), pa.py_buffer(b"".join(keys))],
    )

    assert murmur2(views_of(column, "key")).tolist() == [murmur2_of(key) for key in keys]


def test_keys_in_several_buffers():
    keys = [random.Random(i).randbytes(10 + i) for i in range(40)]
    pieces = [pa.array(keys[i : i + 10], pa.binary_view()) for i in range(0, 40, 10)]
    column = pa.concat_arrays(pieces)

    assert len(column.buffers()) > 3
    assert murmur2(views_of(column, "key")).tolist() == [murmur2_of(key) for key in keys]


def test_an_empty_key_is_a_key():
    chosen = Partitioner("t", 7).choose(views([b"", None, b""]))

    assert chosen[0] == chosen[2] == (murmur2_of(b"") & 0x7FFFFFFF) % 7


def test_rows_without_a_key_stay_together_and_take_turns():
    partitioner = Partitioner("t", 3)
    batches = [partitioner.choose(views([None] * 5)) for _ in range(6)]

    assert [len(set(batch.tolist())) for batch in batches] == [1] * 6
    assert sorted(int(batch[0]) for batch in batches) == [0, 0, 1, 1, 2, 2]


def test_rows_without_a_key_do_not_move_those_with_one():
    partitioner = Partitioner("t", 5)
    alone = partitioner.choose(views([b"a", b"b"]))
    mixed = partitioner.choose(views([None, b"a", None, b"b"]))

    assert mixed[[1, 3]].tolist() == alone.tolist()
    assert mixed[0] == mixed[2]


def test_a_row_that_names_its_partition_goes_there():
    explicit = explicit_partitions(pa.array([4, None, 0], pa.int32()))
    partitioner = Partitioner("t", 5)

    chosen = partitioner.choose(views([b"a", b"b", b"c"]), explicit)

    assert chosen.tolist() == [4, (murmur2_of(b"b") & 0x7FFFFFFF) % 5, 0]


def test_a_partition_that_the_topic_lacks_is_refused():
    explicit = explicit_partitions(pa.array([0, 5]))

    with pytest.raises(RowError, match=r"row 1 .* partition 5 of topic 't', which has .* 0 to 4"):
        Partitioner("t", 5).choose(views([b"a", b"b"]), explicit)


def test_a_topic_of_one_partition_refuses_too():
    with pytest.raises(RowError, match="partition 1"):
        Partitioner("t", 1).choose(views([b"a"]), explicit_partitions(pa.array([1])))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([None, -1]), "row 1 is for partition -1"),
        (pa.array(["0"]), "column 'partition' is string"),
    ],
)
def test_what_is_no_partition_is_refused(column, said):
    with pytest.raises(RowError, match=said):
        explicit_partitions(column)


def test_a_column_without_any_partition_says_nothing():
    assert explicit_partitions(pa.nulls(3)) is None

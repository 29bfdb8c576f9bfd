"""Varints of whole columns against kafka-python's, which does one at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.util import encode_varint

from airflow_eos.kafka.records.columns import (
    ZERO,
    ascending,
    concatenated,
    joined,
    lengths,
    nullable_lengths,
    varints,
)

EDGES = [0, 1, 63, 64, 8191, 8192, 65535, 65536, 2**20, 2**27, 2**31 - 1]
INT64 = st.integers(-(2**63), 2**63 - 1)


def one_at_a_time(number):
    out = bytearray()
    encode_varint(number, out.append)
    return bytes(out)


def bytes_of(fields, row):
    out = b""
    for field in fields:
        code, width = (int(np.atleast_1d(part)[row if np.ndim(part) else 0]) for part in field[:2])
        assert width <= field.widest
        out += code.to_bytes(8, "little")[:width]
    return out


@settings(deadline=None)
@given(st.lists(INT64, min_size=1, max_size=20))
def test_any_int64_has_the_bytes_of_kafka_python(numbers):
    fields = varints(np.array(numbers, np.int64))

    assert [bytes_of(fields, i) for i in range(len(numbers))] == list(map(one_at_a_time, numbers))


@settings(deadline=None)
@given(st.lists(st.sampled_from(EDGES) | st.integers(0, 2**31 - 1), min_size=1, max_size=20))
def test_lengths_on_both_sides_of_the_table(numbers):
    field = lengths(np.array(numbers, np.uint64))

    assert [bytes_of([field], i) for i in range(len(numbers))] == list(map(one_at_a_time, numbers))


def test_a_null_has_the_length_minus_one():
    field = nullable_lengths(np.array([0, 0, 7], np.uint64), np.array([True, False, False]))

    assert [bytes_of([field], i) for i in range(3)] == [b"\x01", b"\x00", b"\x0e"]


@pytest.mark.parametrize("count", [1, 64, 65, 8193, 65536, 65537, 70000])
def test_ascending_numbers_beyond_the_table(count):
    field = ascending(count)

    assert bytes_of([field], count - 1) == one_at_a_time(count - 1)
    assert bytes_of([field], 0) == b"\x00"


@settings(deadline=None)
@given(st.lists(st.tuples(INT64, INT64, st.sampled_from(EDGES)), min_size=1, max_size=10))
def test_joined_fields_have_the_same_bytes(rows):
    first, second, third = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    fields = [ZERO, *varints(first), lengths(third.astype(np.uint64)), ZERO, *varints(second)]
    fewer = joined(fields)

    assert len(fewer) <= len(fields)
    assert all(field.widest <= 8 for field in fewer)
    assert [bytes_of(fewer, i) for i in range(len(rows))] == [
        bytes_of(fields, i) for i in range(len(rows))
    ]


def test_concatenated_fields_keep_their_rows():
    field = concatenated([ascending(3), ascending(2)])

    assert [bytes_of([field], i) for i in range(5)] == list(map(one_at_a_time, [0, 1, 2, 0, 1]))

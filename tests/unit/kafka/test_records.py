"""The record batch encoder and its codecs, read back by kafka-python's decoder."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.util import encode_varint

from airflow_eos.arrow.records.columns import (
    ZERO,
    ascending,
    columns_of,
    concatenated,
    content_of,
    interleaved,
    joined,
    lengths,
    nullable_lengths,
    varints,
    views_of,
)
from airflow_eos.arrow.records.encode import encode_runs, record_batch
from airflow_eos.errors import ConfigurationError, RowError
from airflow_eos.kafka.client.codecs import NAMES, codec
from tests.unit.kafka.record_rows import (
    HEADERS,
    NOW_MS,
    STAMP,
    decoded,
    encoded,
    expected,
    record_rows,
)

SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck))


def rows_of(**columns):
    return pa.RecordBatch.from_pydict(columns)


@SLOW
@given(record_rows(), st.sampled_from(NAMES), st.data())
def test_any_arrow_batch_reads_back_equal(rows, name, data):
    inner = data.draw(st.sets(st.integers(1, rows.num_rows)), label="cuts")
    cuts = sorted({0, *inner, rows.num_rows})

    batches = encoded(rows, cuts, name)

    assert [row for batch in batches for row in decoded(batch)] == expected(rows)
    assert [len(decoded(batch)) for batch in batches] == np.diff(cuts).tolist()


@SLOW
@given(record_rows(), st.randoms(use_true_random=False))
def test_rows_taken_in_another_order_read_back_in_it(rows, rng):
    order = list(range(rows.num_rows))
    rng.shuffle(order)
    columns = columns_of(rows, now_ms=NOW_MS).take(np.array(order))

    (run,) = encode_runs(columns, [0, len(order)])

    there = expected(rows)
    assert decoded(record_batch(run, STAMP, 0, codec("none"))) == [there[i] for i in order]


@SLOW
@given(record_rows(), st.data())
def test_a_slice_of_the_columns_is_the_slice_of_the_rows(rows, data):
    start = data.draw(st.integers(0, rows.num_rows - 1))
    stop = data.draw(st.integers(start + 1, rows.num_rows))
    columns = columns_of(rows, now_ms=NOW_MS)

    (run,) = encode_runs(columns.slice(start, stop), [0, stop - start])
    part = columns_of(rows.slice(start, stop - start), now_ms=NOW_MS)
    (same,) = encode_runs(part, [0, stop - start])

    assert bytes(run.body) == bytes(same.body)
    assert int(columns.sizes()[start:stop].sum()) >= len(run.body)


def test_the_header_says_who_wrote_it():
    (batch,) = encoded(rows_of(value=["a", "b"]), [0, 2], sequence=2**31 - 1)
    read = MemoryRecords(batch).next_batch()

    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (4711, 3, 2**31 - 1)
    assert read.is_transactional
    assert not read.is_control_batch
    assert (read.records_count, read.last_offset_delta, read.magic) == (2, 1, 2)
    assert read.size_in_bytes == len(batch)


def test_more_rows_than_the_table_of_varints():
    rows = rows_of(value=pa.array(range(70_000)).cast(pa.string()))

    (batch,) = encoded(rows, [0, 70_000], "lz4")

    assert decoded(batch) == expected(rows)


def test_a_tombstone_differs_from_an_empty_value():
    rows = rows_of(key=["k", "k"], value=pa.array([None, ""], pa.string()))

    assert [value for _, value, _, _ in decoded(encoded(rows, [0, 2])[0])] == [None, b""]


def test_what_a_null_row_hides_is_never_sent():
    hidden = pa.Array.from_buffers(
        pa.binary(),
        2,
        [
            pa.py_buffer(b"\x02"),
            pa.py_buffer(np.array([0, 20, 22], np.int32)),
            pa.py_buffer(b"x" * 20 + b"ok"),
        ],
    )

    assert [v for _, v, _, _ in decoded(encoded(rows_of(value=hidden), [0, 2])[0])] == [None, b"ok"]


def test_headers_hidden_by_a_null_list_are_never_sent():
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.array(
            [{"key": "hidden", "value": b"1"}, {"key": "seen", "value": b"2"}], HEADERS.value_type
        ),
        mask=pa.array([True, False]),
    )
    rows = rows_of(value=["a", "b"], headers=lists)

    assert [h for _, _, _, h in decoded(encoded(rows, [0, 2])[0])] == [[], [("seen", b"2")]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array([b"ab", b"cd", None], pa.binary(2)),
        pa.nulls(3),
    ],
    ids=["dictionary", "fixed size", "null type"],
)
def test_less_usual_types_of_bytes(column):
    rows = rows_of(value=column)

    assert decoded(encoded(rows, [0, 3])[0]) == expected(rows)


def test_two_columns_of_long_values_keep_their_buffers_apart():
    keys = views_of(pa.array(["k" * 20, "short"], pa.string_view()), "key")
    values = views_of(pa.array(["v" * 20, "w" * 30], pa.string_view()), "value")

    assert bytes(content_of(interleaved([keys, values], 2))) == b"k" * 20 + b"v" * 20 + b"short" + (
        b"w" * 30
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"key": ["a"]}, "no column 'value', only 'key'"),
        ({"value": [1]}, "column 'value' is int64: expected binary or string"),
        ({"value": ["a"], "key": [1.5]}, "column 'key' is double"),
        ({"value": ["a"], "timestamp": ["now"]}, "column 'timestamp' is string"),
        ({"value": ["a", "b"], "timestamp": [5, -1]}, "row 1 has the timestamp -1 ms"),
        ({"value": ["a"], "headers": ["x"]}, "column 'headers' is string"),
        (
            {"value": ["a"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
            "a header without a key",
        ),
        ({"value": ["a"], "headers": pa.array([[None]], HEADERS)}, "a header without a key"),
    ],
)
def test_what_kafka_records_cannot_hold_is_refused_by_name(rows, said):
    with pytest.raises(RowError, match=said):
        columns_of(pa.RecordBatch.from_pydict(rows), now_ms=NOW_MS)


# --- Varints of whole columns against kafka-python's, which does one at a time --------------------


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


# --- The codecs; what their bytes mean to Kafka is tested with the real broker --------------------


LONG = memoryview(b"".join(b"row %d of many|" % (i % 1000) for i in range(20_000)))


def test_the_codes_are_those_of_the_attributes():
    assert [codec(name).code for name in NAMES] == [0, 1, 2, 3, 4]


def test_an_unknown_codec_is_refused_with_the_choices():
    with pytest.raises(ConfigurationError, match=r"'brotli' is not known.*none, gzip, snappy, lz4"):
        codec("brotli")


def test_lz4_blocks_are_independent_which_kafka_requires():
    frame = codec("lz4").compress(LONG)

    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0b0010_0000, "flag byte, bit 5: block independence"


def test_snappy_is_framed_as_snappy_java_does():
    out = codec("snappy").compress(LONG)

    assert out[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize("name", NAMES)
def test_incompressible_rows_grow_by_less_than_one_in_128(name):
    noise = memoryview(random.Random(1).randbytes(1_000_000))

    assert len(codec(name).compress(noise)) <= len(noise) + len(noise) // 128 + 64

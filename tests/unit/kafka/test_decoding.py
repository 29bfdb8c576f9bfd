"""Record batches as kafka-python's builder writes them, read by our own decoder."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecordsBuilder

from airflow_eos.errors import KafkaError
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.kafka.records.decode import rows_of
from airflow_eos.kafka.records.encode import NAMES, codec

small = st.one_of(st.none(), st.binary(max_size=300))
rows = st.lists(
    st.tuples(
        small,
        small,
        st.lists(st.tuples(st.text(max_size=5), small), max_size=3),
        st.integers(0, 1 << 42),
    ),
    min_size=1,
    max_size=20,
)


def built(given_rows, compression=0, **whose):
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=compression, batch_size=1 << 22, **whose
    )
    for key, value, headers, stamp in given_rows:
        builder.append(timestamp=stamp, key=key, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())


@settings(deadline=None)
@given(rows, st.sampled_from([0, 1]))
def test_what_was_written_is_read(expected, compression):
    (batch,) = batch_headers(built(expected, compression))
    found = [(r.key, r.value, r.headers, r.timestamp_ms) for r in rows_of(batch)]
    assert found == [(k, v, h, t) for k, v, h, t in expected]
    assert [r.offset for r in rows_of(batch)] == list(range(len(expected)))


def test_the_header_says_whose_it_is():
    data = built(
        [(None, b"v", [], 1)] * 3,
        transactional=True,
        producer_id=77,
        producer_epoch=5,
        base_sequence=0,
    )
    (batch,) = batch_headers(data)
    assert (batch.producer_id, batch.producer_epoch) == (77, 5)
    assert (batch.base_offset, batch.last_offset, batch.records) == (0, 2, 3)
    assert not batch.is_control


def test_an_incomplete_last_batch_is_left_out():
    data = built([(None, b"v" * 50, [], 1)])
    assert len(list(batch_headers(data + data[:-1]))) == 1
    assert list(batch_headers(data[:40])) == []
    assert list(batch_headers(None)) == []


@pytest.mark.parametrize("length", [-12, -1, 0, 48, (1 << 31) - 1, -(1 << 31)])
def test_a_garbled_length_ends_the_answer_and_is_no_endless_loop(length):
    """It lies before what the CRC is of."""
    good = built([(None, b"v", [], 1)])
    bad = bytearray(good)
    bad[8:12] = struct.pack(">i", length)
    assert len(list(itertools.islice(batch_headers(good + bytes(bad) + good), 3))) == 1


@pytest.mark.parametrize("cut", [10, 1])
def test_a_garbled_batch_is_an_error_and_no_rows(cut):
    data = bytearray(built([(b"key", b"value" * 10, [], 1)]))
    data[61 : 61 + cut] = b"\xff" * cut
    (batch,) = batch_headers(bytes(data))
    with pytest.raises(KafkaError, match="offset 0"):
        list(rows_of(batch))


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_of_the_writer_is_read(name):
    expected = [(b"k%d" % i, b"v" * i, [("h", None)], i) for i in range(2000)]
    (plain,) = batch_headers(built(expected))
    chosen = codec(name)
    packed = replace(
        plain, attributes=chosen.code, payload=memoryview(bytes(chosen.compress(plain.payload)))
    )
    assert list(rows_of(packed)) == list(rows_of(plain))


def test_snappy_as_librdkafka_writes_it():
    (plain,) = batch_headers(built([(b"k", b"v" * 100, [], 1)]))
    packed = bytes(cramjam.snappy.compress_raw(bytes(plain.payload)))
    assert list(rows_of(replace(plain, attributes=2, payload=memoryview(packed)))) == list(
        rows_of(plain)
    )

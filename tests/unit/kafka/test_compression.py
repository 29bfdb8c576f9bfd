"""The codecs; what their bytes mean to Kafka is tested with the real broker."""

import random

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.kafka.records.encode import NAMES, codec

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

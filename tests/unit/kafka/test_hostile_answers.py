"""A fetch answer that lies in what its CRC covers: rows, or a refusal, and never memory."""

from __future__ import annotations

import ast
import resource
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import crc32c
import pytest

from airflow_eos.errors import InputError
from airflow_eos.kafka.client.reading import OffsetSpan, _visible, _whole
from airflow_eos.kafka.records import decode as decoding
from airflow_eos.kafka.records import encode as compression
from airflow_eos.kafka.records import kernels as loops
from airflow_eos.kafka.records.decode import tables
from airflow_eos.kafka.records.encode import NAMES
from airflow_eos.kafka.records.numpy_kernels import MOST_HEADERS

SPAN = OffsetSpan("t", 3, 0, 1 << 40)
MIB = 1 << 20


def test_of_300_mutated_answers_each_is_rows_or_a_refusal_that_says_where():
    """With Numba's bounds checks on; ``python -m tests.hostile`` is 10,000 of them."""
    pytest.importorskip("numba")
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", "300", "7"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = ast.literal_eval(done.stdout)
    assert said["rows"] > 30
    assert said["refused"] > 150
    assert said["rows"] + said["refused"] == 300


def varint(number: int) -> bytes:
    zigzag, out = (number << 1 ^ number >> 63) & (1 << 64) - 1, bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def record(
    delta: int = 0, *, elapsed: int = 0, value: bytes = b"v", headers: int = 0, tail: bytes = b""
) -> bytes:
    body = b"\0" + varint(elapsed) + varint(delta) + varint(-1) + varint(len(value)) + value
    body += varint(headers) + tail
    return varint(len(body)) + body


def batch(
    payload: bytes,
    count: int,
    *,
    base: int = 0,
    last: int | None = None,
    codec: int = 0,
    at: int = 0,
) -> bytes:
    said = count - 1 if last is None else last
    after = struct.pack(">hiqqqhii", codec, said, at, at, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", base, 9 + len(after), -1, 2, crc32c.crc32c(after)) + after


def rows(
    records: bytes, way: str = "numpy", columns: tuple[str, ...] = ("value", "offset", "headers")
) -> int:
    answer = SimpleNamespace(records=records, aborted_transactions=None)
    batches = _visible(SPAN, 0, _whole(SPAN, 0, answer)[0], answer)
    return sum(table.num_rows for table in tables(batches, SPAN))


NULLS = b"\x00\x01"  # a header: an empty name, no value
ALL = (1 << 63) - 1
LIES = {
    "counts of records that add up": batch(b"", -199, last=0) + batch(record() * 200, 200, base=1),
    "records that the bytes cannot hold": batch(record(), (1 << 31) - 1),
    "more records than offsets": batch(record(0) + record(1), 2, last=0),
    "a last offset before the first": batch(record(), 1, last=-1 << 31),
    "a batch that begins within the one before": b"".join(
        (batch(record(0) + record(1), 2), batch(record(), 1, base=1))
    ),
    "counts of headers that wrap around": batch(
        record(0, headers=ALL) + record(1, headers=ALL) + record(2, headers=3, tail=NULLS * 3), 3
    ),
    "a negative count of headers": batch(record(headers=-1), 1),
    "more headers than a record may have": batch(
        record(headers=MOST_HEADERS + 1, tail=bytes(2 * MOST_HEADERS + 2)), 1
    ),
    "headers that end before their record": batch(record(headers=1, tail=NULLS * 2), 1),
    "bytes behind a record's fields": batch(record(tail=b"xx"), 1),
    "offsets that go backwards": batch(record(1) + record(0), 2),
    "an offset twice": batch(record(0) + record(0), 2),
    "an offset behind its batch": batch(record(9), 1),
    "a time that goes around": batch(record(elapsed=ALL), 1, at=5),
}


@pytest.mark.parametrize("way", ["numpy", "compiled"])
@pytest.mark.parametrize("lie", LIES)
def test_what_a_batch_says_of_itself_is_held_against_its_bytes(monkeypatch, way, lie):
    if way == "compiled":
        pytest.importorskip("numba")
        loops.warm(wait=True)
    else:
        monkeypatch.setattr(loops, "_loaded", [])
    with pytest.raises(InputError, match=r"offset \d+ of partition 3 of topic 't'"):
        rows(LIES[lie])


@pytest.mark.parametrize("way", ["numpy", "compiled"])
def test_headers_of_zeros_are_read_in_parts_and_cost_no_more_for_being_many(monkeypatch, way):
    """25 kB of zstd can be 130 million headers of one batch, of hundreds of bytes each."""
    if way == "compiled":
        pytest.importorskip("numba")
        loops.warm(wait=True)
    else:
        monkeypatch.setattr(loops, "_loaded", [])
    monkeypatch.setattr(decoding, "_HEADERS_AT_ONCE", 1000)
    counts = [0, 700, 700, 0, 1, 3000, 2]
    made = b"".join(record(n, headers=h, tail=bytes(2 * h)) for n, h in enumerate(counts))
    answer = SimpleNamespace(records=batch(made, len(counts)), aborted_transactions=None)
    batches = _visible(SPAN, 0, _whole(SPAN, 0, answer)[0], answer)
    found = list(tables(batches, SPAN))
    assert [len(each) for rows in found for each in rows["headers"].to_pylist()] == counts
    assert [n for rows in found for n in rows["offset"].to_pylist()] == list(range(len(counts)))
    assert max(sum(map(len, rows["headers"].to_pylist())) for rows in found) <= 4000
    assert len(found) == 3


def test_more_records_than_one_batch_may_have_are_refused_before_they_are_walked(monkeypatch):
    """30 kB of zstd can be 38 million records of nothing, which take gigabytes to walk."""
    monkeypatch.setattr(decoding, "MOST_RECORDS", 4)
    with pytest.raises(InputError, match=r"says that it has 5 records: at most 4 are read"):
        rows(batch(b"".join(map(record, range(5))), 5))
    four = batch(b"".join(map(record, range(4))), 4)
    assert rows(four + four.replace(bytes(8), struct.pack(">q", 4), 1)) == 8


def test_no_array_is_made_by_a_number_of_records_that_the_bytes_cannot_hold():
    """137 GB of columns for one record, where the system promises more memory than it has."""
    lie = batch(record(), (1 << 31) - 1)
    with pytest.raises(InputError, match=r"2147483647 records: at most 1 are read of its 8 bytes"):
        rows(lie)


def bomb(codec: int, mib: int) -> bytes:
    content = record(value=b"\0" * (mib * MIB))
    return batch(
        bytes(compression.codec(NAMES[codec]).compress(memoryview(content))), 1, codec=codec
    )


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_small_batch_that_is_large_decompressed_is_refused_with_its_place(monkeypatch, codec):
    """By any producer of the input: the broker's limit is of what is compressed."""
    monkeypatch.setattr(decoding, "MOST_BYTES", 16 * MIB)
    made = bomb(codec, 160)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"offset 0 of partition 3 of topic 't'.*16 MiB") as told:
        rows(made)
    again, step = told.value.remedies
    assert again.commands == step.commands
    assert step.commands == ("airflow-eos accept CHECKPOINT --skip-input t:3:0-0 --yes",)
    assert (step.start, "1 at most" in step.costs) == (True, True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_the_most_of_one_batch_is_what_the_docs_say():
    page = (Path(__file__).parents[3] / "docs" / "arrow-source.md").read_text()
    assert f"{decoding.MOST_BYTES // MIB} MiB" in page


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_small_batches_that_are_large_together_are_read_one_after_the_other(monkeypatch, codec):
    monkeypatch.setattr(decoding, "MOST_BYTES", 2 * MIB)
    monkeypatch.setattr("airflow_eos.kafka.records.decode.MOST_BYTES", 2 * MIB)
    one = bomb(codec, 1)
    several = b"".join(struct.pack(">q", base) + one[8:] for base in range(5))
    answer = SimpleNamespace(records=several, aborted_transactions=None)
    found = tables(_visible(SPAN, 0, _whole(SPAN, 0, answer)[0], answer), SPAN, ("value",))
    assert [each.num_rows for each in found] == [1] * 5

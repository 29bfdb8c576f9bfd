"""``python -m tests.hostile [ANSWERS] [SEED]``: mutated fetch answers, each with its CRC right.

Each is read by the compiled loops, by numpy and by the plain decoder: they give the same rows, or
refuse it by an InputError that names topic, partition and offset. Numba's bounds checks are on,
so a loop that goes beyond its arrays ends by IndexError, and not in silence.
``RESULT.md`` is what 10,000 gave.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["NUMBA_BOUNDSCHECK"] = "1"  # before Numba is imported, and not in the cache of others
os.environ["NUMBA_CACHE_DIR"] = str(Path(".build/numba-bounds").absolute())

import crc32c
from kafka.record import MemoryRecordsBuilder

from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.decode import tables
from airflow_eos.errors import InputError
from airflow_eos.kafka.client.codecs import NAMES, codec
from airflow_eos.kafka.client.reading import OffsetSpan, _visible, _whole
from airflow_eos.kafka.client.records import rows_of

SPAN = OffsetSpan("t", 3, 0, 1 << 40)
HEADER = 61
_FIELDS = {"length": (8, "i"), "attributes": (21, "h"), "last": (23, "i"), "base time": (27, "q"),
           "max time": (35, "q"), "records": (57, "i"), "base": (0, "q")}  # fmt: skip
_EXTREMES = (0, 1, -1, 2, -2, 127, -128, 1 << 15, -(1 << 31), (1 << 31) - 1, 1 << 20, -(1 << 20))


def answer(chance: random.Random) -> bytes:
    """One to three batches, of which something is not as it should be, by ``chance``."""
    found, at = [], 0
    for _ in range(chance.randint(1, 3)):
        count = chance.choice((1, 2, 7, 60))
        payload, name = _records(chance, count), chance.choice(NAMES)
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            payload = _mutated(chance, payload)
        packed = bytes(codec(name).compress(memoryview(payload)))
        if chance.random() < 0.15:
            packed = _mutated(chance, packed)
        header = bytearray(HEADER)
        fields = (at, 49 + len(packed), 0, 2, 0, codec(name).code, count - 1, 5, 9, -1, -1, -1)
        struct.pack_into(">qiibIhiqqqhii", header, 0, *fields, count)
        if chance.random() < 0.4:
            place, kind = _FIELDS[chance.choice(tuple(_FIELDS))]
            size = struct.calcsize(kind) * 8
            value = chance.choice((*_EXTREMES, chance.getrandbits(size - 1)))
            struct.pack_into(
                f">{kind}", header, place, max(-(1 << size - 1), min(value, (1 << size - 1) - 1))
            )
        crc = crc32c.crc32c(bytes(header[21:]) + packed)
        struct.pack_into(">I", header, 17, crc)
        found.append(bytes(header) + packed)
        at += chance.choice((count, count, count + 3, 0))
    whole = b"".join(found)
    return whole if chance.random() < 0.95 else whole[: chance.randrange(len(whole))]


def _records(chance: random.Random, count: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 22)
    for row in range(count):
        headers = [
            (f"h{n}", chance.choice((None, b"x" * n))) for n in range(chance.choice((0, 0, 1, 3)))
        ]
        key, value = (chance.choice((None, b"", bytes(chance.randrange(200)))) for _ in range(2))
        builder.append(timestamp=1000 + row, key=key, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())[HEADER:]


def _mutated(chance: random.Random, data: bytes) -> bytes:
    """One byte other, some put in or left out, or a number of many bytes in place of one."""
    out, at = bytearray(data), chance.randrange(len(data) + 1)
    match chance.randrange(5):
        case 0:
            out[at : at + 1] = bytes(
                [chance.choice((0, 1, 2, 0x7E, 0x7F, 0x80, 0xFF, chance.randrange(256)))]
            )
        case 1:
            del out[at : at + chance.randint(1, 4)]
        case 2:
            out[at:at] = chance.randbytes(chance.randint(1, 4))
        case 3:
            out[at : at + 1] = b"\xff" * chance.randint(1, 9) + b"\x01"
        case 4:
            out[at : at + 1] = b"\x80" * chance.randint(1, 10)
    return bytes(out)


def read(records: bytes) -> tuple[str, Any]:
    """How it was read, and its rows or the refusal.

    Compiled loops and numpy are of one mind; the plain decoder looks at less, and never reads other
    rows.
    """
    compiled, numpy, plain = (_read(records, way) for way in ("compiled", "numpy", "plain"))
    alike = compiled[0] == numpy[0] and (compiled[0] == "refused" or compiled == numpy)
    if not alike or (compiled[0] == plain[0] == "rows" and compiled != plain):
        raise AssertionError(f"not one answer: {compiled}, {numpy}, {plain}")
    return compiled


def _read(records: bytes, way: str) -> tuple[str, Any]:
    given = SimpleNamespace(records=records, aborted_transactions=None)
    loaded = list(loops._loaded)
    try:
        batches = _visible(SPAN, 0, _whole(SPAN, 0, given)[0], given)
        if way == "plain":
            rows = [
                (row.offset, row.timestamp, row.key, row.value, [v for _, v in row.headers])
                for batch in batches
                for row in rows_of(batch, str(SPAN))
            ]
            return "rows", rows
        if way == "numpy":
            loops._loaded.clear()
        return "rows", [row for table in tables(batches, SPAN) for row in _plain(table)]
    except InputError as error:
        if str(SPAN) not in str(error) or "ffset" not in str(error):
            raise AssertionError(f"it does not say where: {error}") from error
        return "refused", str(error)
    finally:
        loops._loaded[:] = loaded


def _plain(table: Any) -> list[tuple[Any, ...]]:
    table.validate(full=True)
    columns = [table.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
    times = table.column("timestamp").cast("int64").to_pylist()
    return [
        (offset, time // 1000, key, value, [each["value"] for each in headers])
        for offset, key, value, headers, time in zip(*columns, times, strict=True)
    ]


def main(count: int, seed: int) -> Counter[str]:
    """How many were read and how many refused.

    Raises:
        AssertionError: with the answer that was read otherwise, or refused by another error.
    """
    import numba

    from airflow_eos.arrow.records import numba_kernels as compiled

    if numba.config.BOUNDSCHECK != 1:  # type: ignore[attr-defined]
        raise RuntimeError("Numba's bounds checks are not on.")
    reading: Any = SimpleNamespace(  # those of writers take most of a minute to compile so
        scan=compiled.scan, scan_headers=compiled.scan_headers, gather=compiled.gather
    )
    loops._loaded[:] = [reading]
    said: Counter[str] = Counter()
    for number in range(count):
        records = answer(random.Random(f"{seed}-{number}"))
        try:
            said[read(records)[0]] += 1
        except BaseException as error:
            raise AssertionError(f"answer {seed}-{number}: {records.hex()}") from error
    return said


if __name__ == "__main__":
    asked = [int(each) for each in sys.argv[1:]]
    sys.stdout.write(str(dict(main(*(asked + [10_000, 1][len(asked) :])))) + "\n")

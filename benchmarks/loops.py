"""CPU of each step of a row in the loops of ``ArrowKafkaSource``: numpy and Arrow, or compiled.

CPU of the thread, the least of all rounds, for rows of ``benchmarks.rows`` in answers as a broker
gives them. No broker and no Spark: ``benchmarks.arrow`` has the CPU with both.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from airflow_eos.arrow.producer.writer import Ratios, batches_of
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.decode import binary, tables, unpacked
from airflow_eos.arrow.records.encode import Stamp, encode_runs, record_batch
from airflow_eos.arrow.source.columns import row_hashes
from airflow_eos.core.delivery.workers import tune_process
from airflow_eos.kafka.client.codecs import codec, decompressed
from airflow_eos.kafka.client.fetch import batch_headers
from airflow_eos.kafka.client.reading import OffsetSpan
from airflow_eos.kafka.destination import Topic
from benchmarks import rows
from benchmarks.plot import Chart
from benchmarks.report import Result, Table

_ROWS = 40_000
_ROUNDS = 30
_BATCH_ROWS = 20_000
_PARTITIONS = 4
_LIMIT = 1_048_588
_STAMP = Stamp(1, 0, transactional=True)
_WAYS = ("numpy and Arrow", "compiled")
Step = Callable[[], Any]


def run(arguments: argparse.Namespace) -> Result:
    """Time all steps with numpy and Arrow, then compiled, in each round."""
    count, rounds = arguments.rows or _ROWS, arguments.rounds or _ROUNDS
    tune_process()  # as a worker does; else freed memory is zeroed again
    loops.warm(wait=True)
    if not loops.are_loaded():
        raise SystemExit("the compiled loops did not load: install the extra 'fast'")
    least: dict[str, dict[str, float]] = {}
    compiled = list(loops._loaded)  # noqa: SLF001 - nobody else goes both ways
    given = list(rows.batches(count, _BATCH_ROWS))
    for _ in range(rounds):
        for way in _WAYS:
            loops._loaded[:] = compiled if way == "compiled" else []  # noqa: SLF001
            for name, step in _steps(given):
                took = _took(step) / count * 1e9
                its = least.setdefault(name, {})
                its[way] = min(its.get(way, took), took)
    return _result(count, rounds, least)


def _took(step: Step) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def _steps(given: list[pa.RecordBatch]) -> Iterator[tuple[str, Step]]:
    answer = _answer(given)
    batches = list(batch_headers(answer))
    span = OffsetSpan("t", 0, 0, 1 << 62)
    [packed] = unpacked(batches, span)
    spans = loops.spans_of(packed)
    fields = [(spans.keys, spans.key_lengths), (spans.values, spans.value_lengths)]
    decoded = [each for batch in batches for each in tables([batch], span, ("key", "value"))]
    yield "CRC of the fetched batch", lambda: [batch.trouble for batch in batches]
    yield "lz4 decompression", lambda: [decompressed(batch) for batch in batches]
    yield "where the fields are", lambda: loops.spans_of(packed)
    yield "key and value into Arrow", lambda: [binary(packed.data, *each) for each in fields]
    yield (
        "row hashes (`xxhash64`, as Spark's)",
        lambda: [row_hashes(each.columns, each.num_rows) for each in decoded],
    )
    yield "encoding for the sink, CRC and header included", lambda: _encoded(decoded)


def _answer(given: list[pa.RecordBatch]) -> bytes:
    """Encode the rows as record batches of a log, with lz4."""
    lz4, found, offset = codec("lz4"), [], 0
    for each in given:
        (one,) = encode_runs(columns_of(each, now_ms=1), [0, each.num_rows])
        found.append(struct.pack(">q", offset) + record_batch(one, _STAMP, 0, lz4)[8:])
        offset += each.num_rows
    return b"".join(found)


def _encoded(decoded: list[pa.RecordBatch]) -> None:
    """Encode for the sink, without compression, which is C either way."""
    topic = Topic("t", _PARTITIONS, _LIMIT)
    topics: Any = SimpleNamespace(look_up=lambda _: topic)
    none = codec("none")
    to: Any = SimpleNamespace(topic="t", topics=topics, codec=none, require_sendable=lambda _: None)
    builder = batches_of(decoded, to)
    sender: Any = SimpleNamespace(sequence=lambda *_: 0, add=lambda *_: None)
    ratios = Ratios()
    ratios.learn({"t": 0.3})  # else record batches would be smaller than in a stream
    beside: Any = SimpleNamespace(submit=_submitted)
    for _ in builder.batches(sender, _STAMP, ratios, beside):
        pass


def _submitted(_compress: Any, body: Any) -> Future[Any]:
    """Return a body as if it had been compressed to a third."""
    done: Future[Any] = Future()
    done.set_result(body[: len(body) // 3])
    return done


def _result(count: int, rounds: int, least: dict[str, dict[str, float]]) -> Result:
    total = {way: sum(each[way] for each in least.values()) for way in _WAYS}
    table = Table(
        f"CPU of a row in ns, {count:,} rows, the least of {rounds} rounds",
        ("step", *_WAYS),
        [(name, *(f"{each[way]:.0f}" for way in _WAYS)) for name, each in least.items()],
    )
    return Result(
        "loops",
        {"rows": count, "rounds": rounds, "partitions": _PARTITIONS},
        {"ns": least},
        {"numpy_over_compiled": total[_WAYS[0]] / total[_WAYS[1]]},
        [Chart("CPU of a row", "ns", {name: dict(each) for name, each in least.items()})],
        [table],
    )

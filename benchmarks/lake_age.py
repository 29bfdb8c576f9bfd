"""What a small batch costs in a lake table of few, many and very many snapshots.

Beside each is the plain append of the library, which keeps no promise: load the table, append. It
has a table of its own of the same age, and the two are measured in turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    DecisionLog,
    PipelineIdentity,
    Verdict,
    claim,
)
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.kinds.delta.sink import DeltaSink
from airflow_eos.kinds.iceberg.sink import IcebergSink
from benchmarks.plot import Chart
from benchmarks.prepared import decision_on
from benchmarks.report import Result, Table
from benchmarks.stage import refuse
from tests.support.servers.iceberg import EmbeddedIcebergRest
from tests.support.servers.s3 import EmbeddedS3

_AGES = (10, 1_000, 10_000)
_BATCHES = 7
_WARM = 2
_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_ROWS = pa.record_batch({"id": range(200), "text": ["a text of some length"] * 200}, _SCHEMA)


@dataclass(frozen=True)
class Cost:
    """Of one batch, in ms: CPU of this process, and by the clock."""

    cpu: float
    wall: float


Costs = dict[str, dict[int, list[Cost]]]
"""Variant → age → costs."""


def run(arguments: argparse.Namespace) -> Result:
    """Measure batches of ours and plain appends at each age, of each catalog in turns."""
    batches = (arguments.rounds or _BATCHES - _WARM) + _WARM
    ages = tuple(map(int, arguments.only.split(","))) if arguments.only else _AGES
    found: Costs = defaultdict(dict)
    with ExitStack() as after:
        folder = Path(tempfile.mkdtemp(prefix="eos-lake-age-"))
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        for name, of_age in (*_iceberg(after, folder), ("Delta", _delta(folder))):
            for age in ages if name != "Delta" else ages[:1]:
                sink, plain = of_age(age)
                store = CheckpointStore.open(folder / uuid.uuid4().hex)
                few = batches if age < _AGES[-1] else _WARM + 1  # it takes 10 s each
                turns = zip_longest(_ours(sink, store, batches), _plain(plain, few))
                ours, appends = zip(*list(turns)[_WARM:], strict=True)
                found[f"{name}, ours"][age] = list(ours)
                found[f"{name}, plain append"][age] = [each for each in appends if each]
                for way in ("ours", "plain append"):
                    print(f"{name}, {way}", age, _told(found[f"{name}, {way}"][age]), flush=True)
    return _result(found)


OfAge = Callable[[int], tuple[Any, Callable[[], None]]]


def _iceberg(after: ExitStack, folder: Path) -> Iterator[tuple[str, OfAge]]:
    local = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
    yield "Iceberg, SQL on a disk", lambda age: _aged(local, f"file://{folder}/{age}", age)
    bucket = after.enter_context(EmbeddedS3())
    server = after.enter_context(EmbeddedIcebergRest(bucket))
    options = bucket.storage_options
    by_rest = {
        "type": "rest",
        "uri": server.uri,
        "s3.endpoint": options["aws_endpoint"],
        "s3.region": options["aws_region"],
    }
    yield (
        "Iceberg, REST in a bucket",
        lambda age: _aged(by_rest, f"{bucket.url}/{age}", age),
    )


def _aged(
    properties: dict[str, str], location: str, age: int
) -> tuple[IcebergSink, Callable[[], None]]:
    """Make two tables of that many snapshots."""
    ours, theirs = f"bench.ours_{age}", f"bench.plain_{age}"
    for name in (ours, theirs):
        _make(properties, f"{location}/{name}", name, age)

    def append() -> None:
        with closing(load_catalog("default", **properties)) as catalog:
            catalog.load_table(theirs).append(pa.Table.from_batches([_ROWS]))

    return IcebergSink(ours, properties, application_id="bench"), append


def _make(properties: dict[str, str], location: str, name: str, age: int) -> None:
    """Make a table of that many snapshots, whose metadata file is written by hand."""
    with closing(load_catalog("default", **properties)) as catalog:
        catalog.create_namespace_if_not_exists("bench")
        young = catalog.create_table("bench.young", _SCHEMA, location=location)
        for _ in range(2):
            young.append(pa.Table.from_batches([_ROWS]))
        written = young.io.new_input(young.metadata_location)
        told = json.loads(written.open().read())
        old = f"{location}/metadata/00002-{uuid.uuid4()}.metadata.json"
        with young.io.new_output(old).create() as out:
            out.write(json.dumps(_with_snapshots(told, age)).encode())
        catalog.drop_table("bench.young")
        catalog.register_table(name, old)


def _with_snapshots(told: dict[str, Any], age: int) -> dict[str, Any]:
    first, head = told["snapshots"]
    summary = first["summary"] | {f"eos.bench/{'0' * 32}/kafka/1": "1"}
    former = [
        first
        | {
            "snapshot-id": 10**18 + number,
            "sequence-number": number + 1,
            "timestamp-ms": first["timestamp-ms"] - age + number,
            "parent-snapshot-id": 10**18 + number - 1,
            "summary": summary,
        }
        for number in range(age - 1)
    ]
    log = [{name: each[name] for name in ("snapshot-id", "timestamp-ms")} for each in former]
    return told | {
        "snapshots": [*former, head | {"sequence-number": age}],
        "snapshot-log": [*log, told["snapshot-log"][-1]],
        "last-sequence-number": age,
    }


def _delta(folder: Path) -> OfAge:
    def of_age(age: int) -> tuple[DeltaSink, Callable[[], None]]:
        ours, theirs = str(folder / "delta"), str(folder / "delta-plain")
        for table in (ours, theirs):
            for _ in range(age):
                write_deltalake(table, pa.Table.from_batches([_ROWS]), mode="append")
        sink = DeltaSink(ours, application_id="bench")
        return sink, lambda: write_deltalake(
            DeltaTable(theirs), pa.Table.from_batches([_ROWS]), mode="append"
        )

    return of_age


def _ours(sink: Any, store: CheckpointStore, batches: int) -> Iterator[Cost]:
    """Yield the costs of batches, from the look before the first row to the settled decision."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    columns = StructType([StructField("id", LongType()), StructField("text", StringType())])
    with closing(sink.bound(store).connect(timedelta(seconds=1))) as participant:
        claim(
            store,
            PipelineIdentity(
                id=uuid.uuid4().hex,
                participants=participant.members,
                created_at_ms=0,
                created_by="benchmark",
            ),
        )
        bound = sink.bound(store)
        for batch in range(batches):
            with _measured() as found:
                bound.columns(columns)
                writer = bound.opened(0, 0)
                writer.write(_ROWS)
                work = writer.prepare("0" * 32)
                participant.require_decidable([work])
                decision = decision_on(batch, 1, Verdict.COMMIT, (work,))
                DecisionLog(store).record(decision)
                outcomes = set(participant.commit([work]).values())
            refuse(f"outcome of batch {batch}", outcomes, {Outcome.COMMITTED})
            yield found[0]


def _plain(append: Callable[[], None], batches: int) -> Iterator[Cost]:
    for _ in range(batches):
        with _measured() as found:
            append()
        yield found[0]


@contextmanager
def _measured() -> Iterator[list[Cost]]:
    found: list[Cost] = []
    started = (time.process_time(), time.perf_counter())
    yield found
    cpu, wall = time.process_time() - started[0], time.perf_counter() - started[1]
    found.append(Cost(cpu * 1000, wall * 1000))


def _told(costs: list[Cost]) -> str:
    return f"CPU {_median(costs, 'cpu'):.0f} ms, {_median(costs, 'wall'):.0f} ms"


def _median(costs: list[Cost], what: str) -> float:
    return float(statistics.median(getattr(each, what) for each in costs))


def _result(found: Costs) -> Result:
    title = f"A batch of {len(_ROWS)} rows in one task, by the snapshots of its table"
    rows = [
        (name, *(_told(ages[age]) if age in ages else "" for age in _AGES))
        for name, ages in found.items()
    ]
    ratios: dict[str, float] = {}
    for name, ages in found.items():
        table = name.removesuffix(", ours")
        key = table.lower().replace(",", "").replace(" ", "_")
        for what in ("cpu", "wall"):
            if name.endswith(", ours") and _AGES[0] in ages:
                plain = found[f"{table}, plain append"][_AGES[0]]
                ours = ages[_AGES[0]]
                ratios[f"{key}_{what}_over_plain"] = _median(ours, what) / _median(plain, what)
            for age in _AGES[1:]:
                if age in ages and _AGES[0] in ages:
                    ratios[f"{key}_{what}_at_{age}_over_{_AGES[0]}"] = _median(
                        ages[age], what
                    ) / _median(ages[_AGES[0]], what)
    bars = {
        f"{name} at {age}": {"CPU": _median(costs, "cpu")}
        for name, ages in found.items()
        for age, costs in ages.items()
    }
    raw = {
        n: {a: [vars(c) for c in costs] for a, costs in ages.items()} for n, ages in found.items()
    }
    return Result(
        name="lake_age",
        settings={"ages": _AGES, "rows": len(_ROWS)},
        raw=raw,
        ratios=ratios,
        charts=[Chart(title, "ms", bars, logarithmic=True)],
        tables=[Table(title, ("way", *(f"{age:,}" for age in _AGES)), rows)],
    )

"""Whoever reads the folder as a whole finds the rows that are decided, and no other object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.kinds.files.sink import LINE_COLUMN
from airflow_eos.sinks import FileSink
from tests.integration.files.staged import Stage

Reader = Callable[[Path, str, bool], int]


def duckdb_below(storage: Path, form: str, _partitioned: bool) -> int:
    return duckdb_reads(f"{storage}/**/*.{form}", form)


def duckdb_by_glob(storage: Path, form: str, partitioned: bool) -> int:
    return duckdb_reads(f"{storage}/{'day=*/' if partitioned else ''}*.{form}", form)


def duckdb_reads(pattern: str, form: str) -> int:
    import duckdb

    with duckdb.connect() as connection:
        query = f"SELECT count(*) FROM read_{form}('{pattern}')"
        found = connection.execute(query).fetchone()
    assert found is not None
    return int(found[0])


def polars_below(storage: Path, form: str, _partitioned: bool) -> int:
    return polars_reads(f"{storage}/**/*.{form}", form)


def polars_reads(what: str, form: str) -> int:
    import polars as pl

    scan = pl.scan_parquet if form == "parquet" else pl.scan_ndjson
    return int(scan(what).select(pl.len()).collect().item())


def polars_folder(storage: Path, form: str, partitioned: bool) -> int:
    """Partitions of JSON are Polars' to refuse: it reads a folder of them by a pattern alone."""
    if form == "json" and partitioned:
        return polars_below(storage, form, partitioned)
    return polars_reads(str(storage), form)


def arrow(storage: Path, form: str, _partitioned: bool) -> int:
    return int(ds.dataset(str(storage), format=form, partitioning="hive").count_rows())


def pandas(storage: Path, form: str, partitioned: bool) -> int:
    import pandas as pd

    if form == "json":
        return arrow(storage, form, partitioned)
    return len(pd.read_parquet(storage))


READERS: dict[str, Reader] = {
    "duckdb, all below": duckdb_below,
    "duckdb, by its glob": duckdb_by_glob,
    "polars, all below": polars_below,
    "polars, the folder": polars_folder,
    "pyarrow, the folder": arrow,
    "pandas, the folder": pandas,
}
BY_LISTING = [reader for reader in READERS if reader != "polars, the folder"]
"""Polars takes whatever is in a folder for data: also the log that Spark reads by."""


@pytest.fixture(params=["parquet", "json"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["flat", "by day"])
def partitioned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["listing", "manifest"])
def read(
    request: pytest.FixtureRequest,
    folder: Any,
    form: str,
    partitioned: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    where, options = folder
    by = ("day",) if partitioned else ()
    sink = FileSink(where, form, by, publish=request.param, name="orders", storage_options=options)  # type: ignore[arg-type]
    stage = Stage(sink, tmp_path_factory.mktemp("checkpoint"))
    stage.sink = sink.bound(stage.store)
    return stage


def on_disk(stage: Stage, request: pytest.FixtureRequest) -> Path:
    """The folder, or the objects of the bucket as the server has them."""
    if stage.sink.folder.startswith("/"):
        return Path(stage.sink.folder)
    url = urlsplit(stage.sink.folder)
    return Path(request.getfixturevalue("s3").data) / unquote(url.path).strip("/")


def prepare(sink: FileSink, count: int, task: int = 0) -> Any:
    writer = sink.opened(task, 0)
    days = ["1" if each % 2 else "2" for each in range(count)]
    rows: dict[str, list[Any]] = {"n": list(range(count))}
    if sink.format == "json":
        rows = {LINE_COLUMN: [msgspec.json.encode({"n": each}).decode() for each in range(count)]}
    writer.write(
        pa.RecordBatch.from_pydict({**rows, **({"day": days} if sink.partition_by else {})})
    )
    work = writer.prepare("0" * 32)
    assert work is not None
    return work


def test_no_reader_of_the_folder_sees_what_is_not_decided(
    read: Stage, form: str, partitioned: bool, request: pytest.FixtureRequest
):
    participant = read.participant
    done = prepare(read.sink, 100)
    read.decide(done)
    assert participant.commit([done]) == {done.identity: Outcome.COMMITTED}
    prepare(read.sink, 40, task=1)  # whose driver was killed
    promised = prepare(read.sink, 7)
    storage = on_disk(read, request)
    names = BY_LISTING if read.by_batches else list(READERS)

    def told() -> dict[str, int]:
        return {name: READERS[name](storage, form, partitioned) for name in names}

    assert told() == dict.fromkeys(names, 100)
    files = [path for path in storage.rglob("*") if path.is_file()]
    seen = [path for path in files if "_spark_metadata" not in path.parts]
    assert len(seen) == (2 if partitioned else 1)
    read.decide(promised, batch=1)
    assert told() == dict.fromkeys(names, 100)
    participant.commit([promised])
    assert told() == dict.fromkeys(names, 107)
    recovery = read.recovery
    recovery.abort([each.identity for each in recovery.open()])
    assert told() == dict.fromkeys(names, 107)
    assert recovery.open() == ()


def test_no_reader_of_the_folder_above_takes_what_is_prepared_for_data(
    read: Stage, form: str, partitioned: bool, request: pytest.FixtureRequest
):
    """All below it, by an ending or by the rule of names that begin with an underscore."""
    participant = read.participant
    done = prepare(read.sink, 100)
    read.decide(done)
    participant.commit([done])
    prepare(read.sink, 40, task=1)
    storage = on_disk(read, request).parent
    for name in ("duckdb, all below", "polars, all below", "pyarrow, the folder"):
        if name.startswith("pyarrow") and not read.sink.folder.startswith("/"):
            continue  # the server keeps folders of its own there
        assert READERS[name](storage, form, partitioned) == 100, name


def test_two_sinks_in_one_folder_see_each_their_own_work(folder: Any, tmp_path: Path):
    where, options = folder
    first = FileSink(where, "parquet", name="orders", storage_options=options)
    second = replace(first, name="totals")
    stages = [Stage(sink, tmp_path / sink.name) for sink in (first, second)]
    works = [prepare(stage.sink, 10 + at) for at, stage in enumerate(stages)]
    for stage, work in zip(stages, works, strict=True):
        participant = stage.sink.connect(timedelta())
        assert [each.key for each in participant.open()] == [work.key]
        stage.decide(work)
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
        assert participant.open() == ()


@pytest.mark.long
def test_spark_reads_the_decided_rows_of_both_forms(spark, tmp_path: Path):
    for publish in ("listing", "manifest"):
        for by in ((), ("day",)):
            where = tmp_path / publish / "-".join(("out", *by))
            sink = FileSink(str(where), "parquet", by, publish=publish, name="orders")
            stage = Stage(sink, tmp_path / f"checkpoint-{publish}-{len(by)}")
            stage.sink = sink.bound(stage.store)
            done = prepare(stage.sink, 100)
            stage.decide(done)
            stage.participant.commit([done])
            prepare(stage.sink, 40, task=1)
            assert spark.read.parquet(str(where)).count() == 100

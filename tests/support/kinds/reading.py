"""Cuts of the bookings, read again and again: by clients that stay open, in processes of their own.

What a reader finds is asked for at each look: which offsets, rows, files and snapshot are in the
cut. Of a file, which nobody changes once it is seen, the rows are kept in memory.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import psycopg
import pyarrow.parquet as pq

from airflow_eos import cuts
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.cuts import CutLog
from tests.support.kinds.books import Books, in_arrow, unbalanced
from tests.support.kinds.mysql import connect
from tests.support.kinds.one import Iceberg
from tests.support.kinds.place import Place, Row, Rows
from tests.support.pipeline import wait_until

READERS = 2


class OpenReader:
    """Reads all outputs of ``BookingsEverywhere`` up to a cut; its connections stay open."""

    def __init__(self, at: Place, opened: ExitStack) -> None:
        self._at = at
        self._postgres = opened.enter_context(
            psycopg.connect(at.servers["postgres"], autocommit=True)
        )
        self._mysql = opened.enter_context(closing(connect(at.servers["mariadb"])))
        self._catalog = opened.enter_context(closing(Iceberg()._catalog(at)))

    def read_at(self, cut: cuts.Cut) -> Books:
        from deltalake import DeltaTable

        at = self._at
        topic = cuts.rows(cut, "debits", at.kafka or {})
        values = (value.decode() for each in topic for value in each["value"].to_pylist())
        asked = f"SELECT posting, side FROM {at.tag} WHERE "
        with self._mysql.cursor() as cursor:
            cursor.execute(asked + cuts.condition(cut, "mysql"))
            mysql = Counter(cursor.fetchall())
        places = {name: each.at or {} for name, each in cut.positions.items()}
        delta = DeltaTable(str(at.out / "delta"), version=places["delta"]["version"])
        table = self._catalog.load_table("db.rows")
        iceberg = table.scan(snapshot_id=places["iceberg"]["snapshot"])
        return {
            "debits": Counter((value, "debit") for value in values),
            "credits": Counter(self._postgres.execute(asked + cuts.condition(cut, "credits"))),
            "files": in_kept(cuts.files(cut, "files")),
            "mysql": mysql,
            "log": in_kept(cuts.files(cut, "log")),
            "delta": in_kept(delta.file_uris()),
            "iceberg": in_kept(each.file.file_path for each in iceberg.plan_files()),
        }


def in_kept(paths: Iterable[str]) -> Rows:
    return Counter(row for path in paths for row in rows_of(unquote(urlsplit(path).path)))


@cache
def rows_of(path: str) -> tuple[Row, ...]:
    return tuple(in_arrow(pq.ParquetFile(Path(path)).read()).elements())


@dataclass
class Seen:
    """What a reader has found.

    Attributes:
        looks: how many cuts it has read, every output of each.
        batches: whose cuts.
        wrong: what was out of balance, or another than when it was read first, by batch.
        failed: how it ended, where it did not end in order.
    """

    looks: int = 0
    batches: set[int] = field(default_factory=set)
    wrong: list[tuple[int, object]] = field(default_factory=list)
    failed: str = ""


def read_until(over: Any, looks: Any, told: Any, at: Place, checkpoint: str) -> None:
    """Take every cut that is there, the newest first, and each again and again."""
    seen, first = Seen(), dict[int, int]()
    log = CutLog(CheckpointStore.open(checkpoint))
    try:
        with ExitStack() as opened:
            reader = OpenReader(at, opened)
            while not over.is_set():
                for batch in sorted({0: 0, **log.listed()}, reverse=True):
                    cut = log.of_batch(batch)
                    if cut is None or over.is_set():
                        continue
                    books = reader.read_at(cut)
                    seen.looks += 1
                    with looks:
                        looks.value += 1
                    if found := unbalanced(books):
                        seen.wrong.append((batch, found))
                    digest = hash(tuple(frozenset(rows.items()) for rows in books.values()))
                    if first.setdefault(batch, digest) != digest:
                        seen.wrong.append((batch, "it has changed"))
    except Exception:  # noqa: BLE001 - told where it ends
        seen.failed = traceback.format_exc()
    seen.batches = set(first)
    told.put(seen)


class Readers:
    """Processes that read cuts until they are ended; a driver in this one waits for none."""

    def __init__(self, at: Place, checkpoint: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._over, self._told = context.Event(), context.Queue()
        self._looks = context.Value("q", 0)
        given = (self._over, self._looks, self._told, at, checkpoint)
        self._processes = [
            context.Process(target=read_until, args=given, daemon=True) for _ in range(READERS)
        ]
        for each in self._processes:
            each.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.terminate()

    @property
    def looks(self) -> int:
        """How many cuts all have read by now."""
        return int(self._looks.value)

    @property
    def are_alive(self) -> bool:
        return all(each.is_alive() for each in self._processes)

    def look_at_all_of(self, newest: int) -> None:
        """Until the quicker one has read each cut once more, from its listing on."""
        enough = self.looks + 2 * READERS * (newest + 2)
        wait_until(lambda: self.looks >= enough or not self.are_alive, what="a look at all cuts")

    def end(self) -> list[Seen]:
        """What each has found."""
        self._over.set()
        return [self._told.get(timeout=120) for _ in self._processes]

"""Readers of what is delivered besides Kafka: one beside the app, and one at the end."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import psycopg
import pyarrow.parquet as pq
from psycopg import sql

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.kinds.files.names import beside
from tests.chaos.journal import Journal
from tests.chaos.outputs import table_of
from tests.chaos.readers import decisions
from tests.chaos.settings import FILES, POSTGRES
from tests.chaos.spark_data import ends_of
from tests.chaos.spark_loop import read_end

Row = tuple[str, str, str]  # key, value, run
_POLL_S = 0.05
_BACK_WITHIN_S = 60.0
_OURS = "-c statement_timeout=0 -c lock_timeout=0 -c default_transaction_read_only=off"
"""What a history imposes on the role is not meant for readers."""


class Table:
    """The table of a history, and what is prepared for it."""

    def __init__(self, dsn: str, prefix: str) -> None:
        self._dsn = dsn
        self._prefix = prefix
        self._name = sql.Identifier(table_of(prefix))
        self._asking: psycopg.Connection[tuple[Any, ...]] | None = None

    def make(self) -> None:
        statement = sql.SQL("CREATE TABLE {} (key bytea, value bytea, run text)")
        self._ask(sql.SQL("DROP TABLE IF EXISTS {}").format(self._name))
        self._ask(statement.format(self._name))

    def rows(self) -> list[Row]:
        found = self._ask(sql.SQL("SELECT key, value, run FROM {}").format(self._name))
        return [(bytes(key).decode(), bytes(value).decode(), run) for key, value, run in found]

    def open(self) -> list[str]:
        asked = sql.SQL("SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, {})")
        return [gid for (gid,) in self._ask(asked.format(sql.Literal(f"{self._prefix}.")))]

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()

    def _ask(self, statement: sql.Composed) -> list[Any]:
        """Until it answers: other histories, or this one, have the server killed."""
        deadline = time.monotonic() + _BACK_WITHIN_S
        while True:
            try:
                if self._asking is None or self._asking.closed:
                    self._asking = psycopg.connect(
                        self._dsn,
                        autocommit=True,
                        options=_OURS,
                        prepare_threshold=None,  # the app may add a column meanwhile
                    )
                found = self._asking.execute(statement)
                return found.fetchall() if found.description else []
            except psycopg.OperationalError:
                self.close()
                self._asking = None
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


class Folder:
    """The files of a history, and what is prepared beside them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, list[Row]] = {}

    def make(self) -> None:
        self._folder.mkdir()

    def rows(self) -> list[Row]:
        there = sorted(self._folder.glob("*.parquet"))
        for file in there:
            if file not in self._read:
                table = pq.read_table(file)
                columns = (table[name].to_pylist() for name in ("key", "value", "run"))
                rows = [(k.decode(), v.decode(), run) for k, v, run in zip(*columns, strict=True)]
                self._read[file] = rows
        return [row for file in there for row in self._read[file]]

    def open(self) -> list[str]:
        # An empty folder is nobody's work: its task was killed before it made a file in it.
        there = self._folder.with_name(beside(self._folder.name)).glob("*/work/*")
        return [work.name for work in there if work.is_file() or any(work.iterdir())]

    def close(self) -> None:
        """Nothing is held."""


Place = Table | Folder


def places(folder: Path, prefix: str, dsn: str, outputs: tuple[str, ...]) -> dict[str, Place]:
    """Those of ``outputs`` that are not Kafka."""
    there: dict[str, Place] = {}
    if POSTGRES in outputs:
        there[POSTGRES] = Table(dsn, prefix)
    if FILES in outputs:
        there[FILES] = Folder(folder / "files")
    return there


class Watched:
    """What is visible besides Kafka, looked at again and again; a context manager.

    A row of a run that it has not met is looked up in the decisions, as ``LiveReaders`` does; what
    was visible once must stay, or it is in what the final reader does not have.

    ``fed`` is where each value stands in the input: where rows carry no run (engine spark), one is
    decided if a decision that names its output reaches as far.
    """

    def __init__(
        self,
        there: dict[str, Place],
        journal: Journal,
        checkpoint: CheckpointStore,
        fed: dict[str, tuple[int, int]],
    ) -> None:
        self._fed = fed
        self._there = there
        self._journal = journal
        self._checkpoint = checkpoint
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._known: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        for place in self._there.values():
            place.make()
        if self._there:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._there:
            self._thread.join(_BACK_WITHIN_S + 5)
        if self._failure is not None:
            raise self._failure

    def everything(self) -> dict[str, list[Row]]:
        """What is there at the end; after the reader beside the app has stopped."""
        return {name: place.rows() for name, place in self._there.items()}

    def open(self) -> list[str]:
        """What is prepared and was not ended."""
        return [f"{name}: {key}" for name, place in self._there.items() for key in place.open()]

    def close(self) -> None:
        for place in self._there.values():
            place.close()

    def _run(self) -> None:
        try:
            before: dict[str, Counter[Row]] = {name: Counter() for name in self._there}
            while not self._stop.wait(_POLL_S):
                for name, place in self._there.items():
                    rows = Counter(place.rows())
                    if new := list((rows - before[name]).elements()):
                        self._look_for_decisions(name, new)
                        self._journal.note("there", output=name, reader="live", rows=new)
                    before[name] |= rows
        except BaseException as error:
            self._failure = error
            raise

    def _look_for_decisions(self, name: str, rows: list[Row]) -> None:
        """Of each run that is new; of each row where they carry none."""
        unknown = {row[2] or row[1]: row for row in rows}
        unknown = {run: row for run, row in unknown.items() if (name, run) not in self._known}
        if not unknown:
            return
        decided: set[str] = set()
        reached: Counter[int] = Counter()
        for each in decisions(self._journal.file.parent, self._checkpoint):
            keys = {work["key"] for work in each["elsewhere"] if work["participant"] == name}
            decided |= keys
            for partition, end in ends_of(read_end(each["offsets"])).items() if keys else ():
                reached[partition] = max(reached[partition], end)
        for run, row in unknown.items():
            if not (self._is_named(run, name, decided) if row[2] else self._is_below(run, reached)):
                self._journal.note("ahead", output=name, row=row)
            self._known.add((name, run))

    def _is_named(self, run: str, name: str, decided: set[str]) -> bool:
        file = self._journal.file.parent / "runs" / f"{run}.{name}"
        return file.exists() and json.loads(file.read_bytes()) in decided

    def _is_below(self, value: str, reached: Counter[int]) -> bool:
        """Whether what is decided reaches as far as the row of the input that has this value.

        A count has no row of its own: the judge compares it with the topic.
        """
        partition, offset = self._fed.get(value, (0, -1))
        return offset < reached[partition]

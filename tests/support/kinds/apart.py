"""Kinds for which not all holds that holds for the others: they have tests of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.decisions import PerishableRows
from airflow_eos.sinks import Output, PostgresSink, UpsertSink
from tests.support.kinds.keeping import UpsertToPostgres, UpsertToRedis
from tests.support.kinds.one import Delta
from tests.support.kinds.place import Place, Row, Rows
from tests.support.kinds.several import KafkaAndPostgres, booked
from tests.support.topics import read_topic

_NUMBERED = "concat(decode(value, 'utf-8'), ' ', rand())"
_RANDOM = ["key", f"{_NUMBERED} AS value"]


class RandomAndPostgres(KafkaAndPostgres):
    """Each row to the topic with a number that no second evaluation gives, and to the table."""

    def __init__(self, *, keep_rows: bool) -> None:
        super().__init__()
        self._keep_rows = keep_rows

    def sink(self, at: Place) -> list[Output]:
        database = PostgresSink(at.servers["postgres"], table=at.tag, gid_prefix=at.tag)
        posting = "decode(value, 'utf-8') AS posting"
        return [
            Output("orders", self._kafka.sink(at), rows=_RANDOM, keep_rows=self._keep_rows),
            Output(
                "postings",
                database,
                rows=f"array(struct({posting}, 'from' AS side, -1L AS amount),"
                f" struct({posting}, 'to' AS side, 1L AS amount))",
            ),
        ]

    def read(self, at: Place) -> dict[str, Rows]:
        return {**super().read(at), "orders": without_numbers(self.very(at))}

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        rows = list(fed)
        return {"orders": Counter(rows), "postings": booked(rows)}

    def very(self, at: Place) -> Rows:
        """The rows of the topic with their numbers."""
        return Counter(read_topic(at.servers["kafka"], f"{at.tag}-out"))


class RandomDelta(Delta):
    """Each row to a table, with a number that no second evaluation gives."""

    def sink(self, at: Place) -> list[Output]:  # type: ignore[override]
        rows = ["key", f"cast({_NUMBERED} AS binary) AS value"]
        return [Output("sink", super().sink(at), rows=rows, keep_rows=True)]

    def read(self, at: Place) -> dict[str, Rows]:
        return {"sink": without_numbers(self.very(at))}

    def very(self, at: Place) -> Rows:
        """The rows of the table with their numbers."""
        return super().read(at)["sink"]


def without_numbers(rows: Rows) -> Rows:
    """The rows of the input."""
    return Counter((key, value.partition(" ")[0]) for key, value in rows.elements())


def kept_beside(at: Place, batch: int, name: str = "orders") -> Rows:
    """The rows of a batch that wait in the checkpoint beside prepared work."""
    store = CheckpointStore.open(f"{at.folder}/checkpoint")
    rows = PerishableRows(store)
    found: Rows = Counter()
    for key in rows.keys(name, batch):
        table = pa.ipc.open_stream(rows.read(name, batch, key)).read_all()
        columns = (table[name].cast(pa.string()).to_pylist() for name in ("key", "value"))
        found.update(zip(*columns, strict=True))
    return found


class AtOnceToPostgres(UpsertToPostgres):
    """The tasks write to the table themselves."""

    def sink(self, at: Place) -> UpsertSink:
        return replace(super().sink(at), staged=False)


class AtOnceToRedis(UpsertToRedis):
    """The same, to Redis."""

    def sink(self, at: Place) -> UpsertSink:
        return replace(super().sink(at), staged=False)

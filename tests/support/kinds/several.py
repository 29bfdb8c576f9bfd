"""Several kinds behind one decision, with two sides of each row, as postings have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import psycopg

from airflow_eos.sinks import DeltaSink, FileSink, Output, PostgresSink
from tests.support.kinds.one import Delta, Files, Kafka, noted, waiting_in_postgres
from tests.support.kinds.place import Place, Row, Rows, Rowwise

_AMOUNT = "pmod(xxhash64(value), 1000) + 1"
_POSTING = "decode(value, 'utf-8') AS posting"
_SIDES = """array(struct(concat('from ', decode(key, 'utf-8')) AS key, value),
                  struct(concat('to ', decode(key, 'utf-8')) AS key, value))"""
_POSTINGS = f"""array(struct({_POSTING}, 'from' AS side, -({_AMOUNT}) AS amount),
                      struct({_POSTING}, 'to' AS side, {_AMOUNT} AS amount))"""


def sided(fed: Iterable[Row]) -> list[Row]:
    """Both sides of each row; the side stands before its key."""
    return [(f"{side} {key}", value) for key, value in fed for side in ("from", "to")]


def booked(fed: Iterable[Row]) -> Rows:
    """Both sides of each posting, as the database has them."""
    return Counter((side, value) for _, value in fed for side in ("from", "to"))


class KafkaAndFiles(Rowwise):
    """Each row once to the topic, and twice to the files."""

    servers = ("kafka",)

    def __init__(self) -> None:
        self._kafka, self._files = Kafka(), Files()
        self._files.name = "postings"

    def sink(self, at: Place) -> list[Output]:
        return [
            Output("orders", self._kafka.sink(at)),
            Output("postings", FileSink(str(at.out)), rows=_SIDES),
        ]

    def read(self, at: Place) -> dict[str, Rows]:
        return {"orders": self._kafka.read(at)["sink"], "postings": self._files.read(at)["sink"]}

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        rows = list(fed)
        return {"orders": Counter(rows), "postings": Counter(sided(rows))}

    def left(self, at: Place) -> int:
        return self._kafka.left(at) + self._files.left(at)


class KafkaAndPostgres(Rowwise):
    """The two sides of each posting, to the topic and to the table."""

    servers = ("kafka", "postgres")

    def __init__(self) -> None:
        self._kafka = Kafka()

    def create(self, at: Place) -> None:
        with psycopg.connect(at.servers["postgres"], autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {at.tag} (posting text, side text, amount bigint)")

    def sink(self, at: Place) -> list[Output]:
        database = PostgresSink(at.servers["postgres"], table=at.tag, gid_prefix=at.tag)
        return [
            Output("orders", self._kafka.sink(at), rows=_SIDES),
            Output("postings", database, rows=_POSTINGS),
        ]

    def reach(self, at: Place) -> dict[str, Any]:
        return {"postings": at.servers["postgres"]}

    def read(self, at: Place) -> dict[str, Rows]:
        with psycopg.connect(at.servers["postgres"]) as connection:
            found = connection.execute(f"SELECT side, posting FROM {at.tag}").fetchall()
        return {"orders": self._kafka.read(at)["sink"], "postings": Counter(found)}

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        rows = list(fed)
        return {"orders": Counter(sided(rows)), "postings": booked(rows)}

    def left(self, at: Place) -> int:
        return self._kafka.left(at) + waiting_in_postgres(at)


class KafkaPostgresAndDelta(KafkaAndPostgres):
    """Three witnesses, and one truth."""

    own_places = Delta.own_places

    def __init__(self) -> None:
        super().__init__()
        self._delta = Delta()

    def create(self, at: Place) -> None:
        super().create(at)
        self._delta.create(at)

    def sink(self, at: Place) -> list[Output]:
        lake = DeltaSink(str(at.out), application_id=at.tag)
        return [*super().sink(at), Output("lake", lake)]

    def read(self, at: Place) -> dict[str, Rows]:
        return {**super().read(at), "lake": self._delta.read(at)["sink"]}

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        rows = list(fed)
        return {**super().expected(rows), "lake": Counter(rows)}

    def left(self, at: Place) -> int:
        return super().left(at) + noted(at)

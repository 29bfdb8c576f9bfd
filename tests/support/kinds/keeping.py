"""Kinds whose rows wait in the checkpoint: a callable of a user's, and absolute values by key."""

from __future__ import annotations

import base64
import json
import sqlite3
import urllib.request
from collections import Counter
from contextlib import closing
from typing import Any

import psycopg

from airflow_eos.kinds.upsert.hbase import HBaseUpsert
from airflow_eos.kinds.upsert.mysql import MySqlUpsert
from airflow_eos.kinds.upsert.postgres import PostgresUpsert
from airflow_eos.kinds.upsert.redis import RedisUpsert
from airflow_eos.sinks import UpsertSink, WriteAheadSink
from tests.support.kinds.mysql import connected
from tests.support.kinds.place import Counted, Place, Rows, Rowwise, kept

_PLACES = ("kept-ending@2", "kept-applied@2")
_POST = "tests.integration.kept.endpoint:post"


class WriteAhead(Rowwise):
    servers = ("endpoint",)
    own_places = _PLACES

    def sink(self, at: Place) -> WriteAheadSink:
        return WriteAheadSink(_POST, reach=self._reach(at))

    def reach(self, at: Place) -> dict[str, Any]:
        return {"wal": {"deliver": _POST, "reach": self._reach(at)}}

    def read(self, at: Place) -> dict[str, Rows]:
        file = at.servers["endpoint"].partition(" ")[2]
        with closing(sqlite3.connect(file, timeout=30)) as base:
            found = base.execute(
                "SELECT key, value FROM rows WHERE value LIKE ?", (f"{at.tag}:%",)
            ).fetchall()
        return {"sink": Counter(found)}

    def left(self, at: Place) -> int:
        return kept(at)

    def _reach(self, at: Place) -> dict[str, int]:
        return {"port": int(at.servers["endpoint"].partition(" ")[0])}


class UpsertToPostgres(Counted):
    servers = ("postgres",)
    own_places = _PLACES

    def create(self, at: Place) -> None:
        with psycopg.connect(at.servers["postgres"], autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE {at.tag} (key bytea PRIMARY KEY, value text, eos_version text)"
            )

    def sink(self, at: Place) -> UpsertSink:
        return UpsertSink(PostgresUpsert(at.servers["postgres"], at.tag), key=["key"])

    def reach(self, at: Place) -> dict[str, Any]:
        return {"upsert": at.servers["postgres"]}

    def read(self, at: Place) -> dict[str, Rows]:
        with psycopg.connect(at.servers["postgres"]) as connection:
            found = connection.execute(f"SELECT key, value FROM {at.tag}").fetchall()
        return {"sink": Counter((key.decode(), value) for key, value in found)}

    def left(self, at: Place) -> int:
        return kept(at)


class UpsertToMySql(Counted):
    servers = ("mariadb",)
    own_places = _PLACES

    def create(self, at: Place) -> None:
        with closing(connected(at)) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE {at.tag} (`key` varbinary(40) PRIMARY KEY, value varchar(20), "
                "eos_version varchar(64))"
            )

    def sink(self, at: Place) -> UpsertSink:
        return UpsertSink(MySqlUpsert(at.servers["mariadb"], at.tag), key=["key"])

    def reach(self, at: Place) -> dict[str, Any]:
        return {"upsert": at.servers["mariadb"]}

    def read(self, at: Place) -> dict[str, Rows]:
        with closing(connected(at)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT `key`, value FROM {at.tag}")
            return {"sink": Counter((key.decode(), value) for key, value in cursor.fetchall())}

    def left(self, at: Place) -> int:
        return kept(at)


class UpsertToRedis(Counted):
    servers = ("redis",)
    own_places = _PLACES

    def sink(self, at: Place) -> UpsertSink:
        return UpsertSink(RedisUpsert(at.servers["redis"], f"{at.tag}:"), key=["key"])

    def reach(self, at: Place) -> dict[str, Any]:
        return {"upsert": at.servers["redis"]}

    def read(self, at: Place) -> dict[str, Rows]:
        import redis

        with redis.Redis.from_url(at.servers["redis"], decode_responses=True) as client:
            found = [client.hgetall(key) for key in client.scan_iter(f"{at.tag}:*")]
        return {"sink": Counter((row["key"], row["value"]) for row in found)}

    def left(self, at: Place) -> int:
        return kept(at)


class UpsertToHBase(Counted):
    servers = ("hbase",)
    own_places = _PLACES

    def create(self, at: Place) -> None:
        schema = {"name": at.tag, "ColumnSchema": [{"name": "f"}]}
        self._ask(at, "PUT", "schema", json.dumps(schema).encode())

    def sink(self, at: Place) -> UpsertSink:
        return UpsertSink(HBaseUpsert(at.servers["hbase"], f"{at.tag}/f"), key=["key"])

    def reach(self, at: Place) -> dict[str, Any]:
        return {"upsert": at.servers["hbase"]}

    def read(self, at: Place) -> dict[str, Rows]:
        rows = json.loads(self._ask(at, "GET", "*?column=f:value"))["Row"]
        found = [(row["key"], row["Cell"][0]["$"]) for row in rows]
        text = [[base64.b64decode(each).decode() for each in row] for row in found]
        return {"sink": Counter((key, value) for key, value in text)}

    def left(self, at: Place) -> int:
        return kept(at)

    def _ask(self, at: Place, method: str, path: str, body: bytes | None = None) -> bytes:
        kind = {"Accept": "application/json", "Content-Type": "application/json"}
        url = f"{at.servers['hbase']}/{at.tag}/{path}"
        asked = urllib.request.Request(url, body, kind, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return bytes(answer.read())

"""A table of MySQL or MariaDB, as a reader of it and its owner see it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from airflow_eos.sinks import MySqlSink
from tests.support.kinds.place import Place, Rows, Rowwise, kept


class MySql(Rowwise):
    servers = ("mariadb",)
    own_places = ("moved@2",)
    own_tasks = ("task-kept@2",)

    def create(self, at: Place) -> None:
        with closing(connected(at)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {at.tag} (`key` longblob, value longblob)")

    def sink(self, at: Place) -> MySqlSink:
        return MySqlSink(at.servers["mariadb"], table=at.tag, prefix=at.tag)

    def reach(self, at: Place) -> dict[str, Any]:
        return {"mysql": at.servers["mariadb"]}

    def read(self, at: Place) -> dict[str, Rows]:
        with closing(connected(at)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT `key`, value FROM {at.tag}")
            found = cursor.fetchall()
        return {"sink": Counter((key.decode(), value.decode()) for key, value in found)}

    def left(self, at: Place) -> int:
        return kept(at)


def connected(at: Place) -> Any:
    return connect(at.servers["mariadb"])


def connect(url: str) -> Any:
    import pymysql

    to = urlsplit(url)
    return pymysql.connect(
        host=to.hostname or "",
        port=to.port or 0,
        user=to.username,
        password=to.password or "",
        database=to.path[1:],
        autocommit=True,
    )

"""A connection to MySQL or MariaDB, opened again after errors; and its errors in our words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.participants.sql.mysql_servers import ABOUT, PINNED, TRANSACTIONS, require_witness
from airflow_eos.participants.sql.mysql_url import parts_of
from airflow_eos.participants.upsert import mysql_statements as say
from airflow_eos.participants.upsert.idle import Idle
from airflow_eos.participants.upsert.target import Lacking


class Session:
    """The database of a target.

    Args:
        url: how it is reached.
        table: its name, for people.
        timeout_s: seconds to connect.
    """

    def __init__(self, url: str, table: str, *, timeout_s: float) -> None:
        try:
            import pymysql
        except ModuleNotFoundError as error:
            raise ConfigurationError(str(Lacking("mysql", "PyMySQL"))) from error
        self.errors: Any = pymysql
        self._reach = parts_of(url)
        self._table = table
        self._timeout_s = timeout_s
        self._idle = Idle()
        self._connected: Any = None

    def close(self) -> None:
        """Close the connection, which rolls back what was not committed."""
        if self._connected is not None:
            with contextlib.suppress(self.errors.Error):
                self._connected.close()
            self._connected = None

    def _let_go_if_lost(self) -> None:
        """The server closes what nobody has used for ``wait_timeout``."""
        if self._idle.ends() and self._connected is not None:
            try:
                self._connected.ping(reconnect=False)
            except self.errors.Error:
                self.close()

    def _require_witness(self) -> None:
        """One server that takes writes, and loses none."""
        with self._connected.cursor() as cursor:
            cursor.execute(ABOUT)
            place = f"{self._reach['host']}:{self._reach['port']}/{self._reach['database']}"
            require_witness(dict(cursor.fetchall()), place)

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[Any]:
        """A cursor, on a connection that is opened again after every error.

        Raises:
            DeliveryError: the server refused, or did not answer.
            ConfigurationError: it is a replica, or may lose what it has committed.
        """
        try:
            self._let_go_if_lost()
            if self._connected is None:
                self._connected = self.errors.connect(
                    **self._reach,
                    autocommit=True,
                    charset="utf8mb4",
                    connect_timeout=max(2, int(self._timeout_s)),
                    read_timeout=300,
                    init_command=PINNED.format(locks_s=say.LOCKS_S, mode=say.MODE),
                    client_flag=self.errors.constants.CLIENT.FOUND_ROWS,
                )
                with self._connected.cursor() as cursor:
                    cursor.execute(TRANSACTIONS)
                self._require_witness()
            with self._connected.cursor() as cursor:
                yield cursor
        except BaseException as error:
            self.close()
            if not isinstance(error, self.errors.Error):
                raise
            number = error.args[0] if error.args else "?"  # its text may hold values of rows
            raise DeliveryError(
                f"MySQL refused or did not answer while {doing} ({self._table}): "
                f"{type(error).__name__} {number}. What was written is not known, and writing it "
                "again is harmless: put that right, then start the query again or run a recovery."
            ) from error

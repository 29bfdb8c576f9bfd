"""Somebody who looks at the books without a pause, while those who write them are killed."""

from __future__ import annotations

import threading

import psycopg

from tests.support.pipeline import wait_until


class Auditor(threading.Thread):
    """Looks through a connection of its own, until :meth:`end`.

    That it notices is tried in ``tests/integration/several/test_auditor.py``.

    Args:
        dsn: of the database.
        table: whose ``amount`` adds up to 0, and whose rows come in pairs.

    Attributes:
        looks: how often it has looked.
        rows_seen: how many rows there were at a look.
        unbalanced: sum and number of rows of each look that did not balance.
    """

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__(daemon=True)
        self._look = f"SELECT coalesce(sum(amount), 0), count(*) FROM {table}"
        self.looks = 0
        self.rows_seen: set[int] = set()
        self.unbalanced: list[tuple[int, int]] = []
        self._dsn = dsn
        self._over = threading.Event()
        self._failed: Exception | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._over.is_set():
                    self._look_once(connection)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for a look
            self._failed = error

    def _look_once(self, connection: psycopg.Connection) -> None:
        found = connection.execute(self._look).fetchone()
        assert found is not None
        total, rows = found
        self.looks += 1
        self.rows_seen.add(rows)
        if total != 0 or rows % 2:
            self.unbalanced.append((total, rows))

    def look_on(self, times: int) -> None:
        """Return after so many more looks."""
        enough = self.looks + times
        wait_until(
            lambda: self.looks >= enough or not self.is_alive(),
            timeout=300,
            what=f"{enough:,} looks at the books",
        )
        self._require_well()

    def end(self) -> None:
        """Raises what it stumbled over: who has stopped looking has seen nothing wrong either."""
        self._over.set()
        self.join(30)
        self._require_well()
        assert not self.is_alive(), "it still looks"

    def _require_well(self) -> None:
        if self._failed is not None:
            raise self._failed

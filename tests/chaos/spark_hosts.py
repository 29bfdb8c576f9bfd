"""JVMs that outlive the drivers of a history: one for a driver, another for whoever comes beside.

In one JVM Spark itself would stop the query of the other. A driver that is killed leaves its query
and its tasks behind, as on a cluster; one that is stopped stands still in Python alone.
"""

from __future__ import annotations

import queue
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Self

from tests.support.host import Host
from tests.support.stores import Where

_USES = 15
"""Histories after which a pair is started anew: what dead drivers leave adds up."""


@dataclass
class Pair:
    """The two of one history at a time."""

    one: Host
    other: Host
    uses: int = 0

    def door(self, name: str) -> dict[str, str]:
        """What tells the driver of this name where to go."""
        return self._of(name).door()

    def lose(self, name: str) -> None:
        """End what the driver of this name has left there."""
        self._of(name).rest()

    def rest(self) -> None:
        """End whatever goes on in them."""
        self.one.rest()
        self.other.rest()

    def _of(self, name: str) -> Host:
        return self.one if name.startswith(("driver", "final")) else self.other


class Hosts:
    """A context manager: as many pairs as there are histories at a time."""

    def __init__(self, pairs: int, where: Where) -> None:
        self._pairs = pairs
        self._where = where
        self._free: queue.Queue[Pair] = queue.Queue()
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        for _ in range(self._pairs):
            self._free.put(self._started())
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def take(self) -> Pair:
        return self._free.get()

    def give_back(self, pair: Pair) -> None:
        """Once it rests; one that cannot, or was used often, is replaced."""
        pair.uses += 1
        try:
            pair.rest()
        except (OSError, AssertionError):
            pair.uses = _USES
        if pair.uses >= _USES:
            for host in (pair.one, pair.other):
                host.close()
            pair = self._started()
        self._free.put(pair)

    def _started(self) -> Pair:
        return Pair(self._host(), self._host())

    def _host(self) -> Host:
        made = Host(jars=self._where.jars, conf=self._where.spark_conf)
        return self._resources.enter_context(closing(made))

"""What differs between the kinds of sinks, as the tests see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from airflow_eos.core.delivery.port import Sink
from airflow_eos.sinks import Output

Row = tuple[str, str]
Rows = Counter[Row]


class Place(msgspec.Struct, frozen=True):
    """Where the rows of one pipeline go: a driver is told it, and builds its sink from it.

    Attributes:
        kind: of the table ``KINDS``.
        tag: the name of the pipeline; tables, prefixes and topics of others are named otherwise.
        folder: of this pipeline alone.
        servers: how each server is reached that the kind needs, by its name.
    """

    kind: str
    tag: str
    folder: str
    servers: dict[str, str]

    @property
    def out(self) -> Path:
        return Path(self.folder) / "out"

    @property
    def kafka(self) -> dict[str, str] | None:
        servers = self.servers.get("kafka")
        return {"bootstrap.servers": servers} if servers else None


class Kind(Protocol):
    """One kind of sink, or several behind one decision."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Those that it needs, of ``tests/support/kinds/servers.py``."""
        ...

    @property
    def query(self) -> Literal["map", "count"]:
        """``map``: rows as they are; ``count``: of each key, written with each change."""
        ...

    @property
    def own_places(self) -> tuple[str, ...]:
        """Where its driver can die, beside the places that all kinds have."""
        ...

    @property
    def own_tasks(self) -> tuple[str, ...]:
        """The same of its tasks."""
        ...

    def create(self, at: Place) -> None:
        """Make the tables, or whatever a user makes before the first start."""

    def sink(self, at: Place) -> Sink | list[Output]:
        """As a user writes it."""
        ...

    def reach(self, at: Place) -> dict[str, Any]:
        """What a recovery is told that has neither the app nor Spark."""
        ...

    def read(self, at: Place) -> Mapping[str, Rows]:
        """What a reader of each output finds, by a client that is not ours."""
        ...

    def expected(self, fed: Iterable[Row]) -> Mapping[str, Rows]:
        """What it must find once all of ``fed`` is delivered."""
        ...

    def inputs(self, at: Place, fed: Sequence[Row]) -> Mapping[str, int]:
        """How many rows of the input each output shows by now."""
        ...

    def left(self, at: Place) -> int:
        """Pieces of prepared work that have not ended, by the system's own word."""
        ...

    def beside(self, at: Place) -> AbstractContextManager[None]:
        """What others do with the outputs all the while."""
        ...


class Rowwise:
    """Most kinds: each row comes as it is, to one output."""

    servers: tuple[str, ...] = ()
    query: Literal["map", "count"] = "map"
    own_places: tuple[str, ...] = ()
    own_tasks: tuple[str, ...] = ()

    def create(self, at: Place) -> None:
        pass

    def reach(self, at: Place) -> dict[str, Any]:
        del at
        return {}

    def read(self, at: Place) -> Mapping[str, Rows]:
        raise NotImplementedError

    def beside(self, at: Place) -> AbstractContextManager[None]:
        del at
        return nullcontext()

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        return {"sink": Counter(fed)}

    def inputs(self, at: Place, fed: Sequence[Row]) -> dict[str, int]:
        copies = {name: rows.total() // len(fed) for name, rows in self.expected(fed).items()}
        return {name: rows.total() // copies[name] for name, rows in self.read(at).items()}


class Counted(Rowwise):
    """Kinds that hold a value for each key: the running count of each."""

    query: Literal["map", "count"] = "count"

    def expected(self, fed: Iterable[Row]) -> dict[str, Rows]:
        counts = Counter(key for key, _ in fed)
        return {"sink": Counter((key, str(count)) for key, count in counts.items())}

    def inputs(self, at: Place, fed: Sequence[Row]) -> dict[str, int]:
        del fed
        return {name: sum(int(count) for _, count in rows) for name, rows in self.read(at).items()}


def kept(at: Place) -> int:
    """Rows that wait in the checkpoint."""
    folder = Path(at.folder, "checkpoint", "eos", "kept", "sink", "rows")
    return len(list(folder.iterdir())) if folder.exists() else 0

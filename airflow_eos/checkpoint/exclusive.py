"""Whether a create has one winner on this very store: tried, since a name or a version says little.

One create after another finds a store that knows no condition. A store that looks first and writes
then passes that, and lets several win who come at once: so they race. What is written is removed.
"""

from __future__ import annotations

import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import TYPE_CHECKING, Protocol

from airflow_eos.checkpoint.paths import EOS
from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

RACERS = 8
ROUNDS_AT_A_START = 8
"""64 small writes, below a second on S3. Adobe's s3mock, which looks and then writes, lets several
win in a third of the rounds: 8 rounds let it pass once in thirty starts, the doctor's 40 never."""
_SIZE = 4096


class Creates(Protocol):
    """What is asked of a store: a :class:`~airflow_eos.checkpoint.CheckpointStore`."""

    location: str

    def create(self, path: str, data: bytes, /) -> bool:
        """Whether this call made the object."""

    def get(self, path: str, /) -> bytes | None:
        """What stands there."""

    def delete(self, paths: Iterable[str], /) -> None:
        """Remove them."""


@dataclass(frozen=True, slots=True)
class RaceResult:
    """What became of a race.

    Attributes:
        rounds: how often ``racers`` wanted the same new name at once.
        several: rounds in which more than one was told that he won.
        nobody: rounds in which nobody was.
        torn: rounds after which something else stood there than what the only winner wrote.
    """

    racers: int
    rounds: int
    several: int
    nobody: int
    torn: int

    @property
    def is_exclusive(self) -> bool:
        """One winner in each round, and his content."""
        return not (self.several or self.nobody or self.torn)


def race_create(store: Creates, *, rounds: int, racers: int = RACERS) -> RaceResult:
    """Let ``racers`` threads create the same new object at once, ``rounds`` times.

    Raises:
        StoreError: the store did not answer.
    """
    several = nobody = torn = 0
    run = uuid.uuid4().hex
    with ThreadPoolExecutor(racers) as pool:
        for number in range(rounds):
            path = f"{EOS}/.probe-{run}-{number}"
            gate = Barrier(racers)

            def create(racer: int, path: str = path, gate: Barrier = gate) -> bool:
                gate.wait()
                return store.create(path, _content(racer))

            try:
                won = list(pool.map(create, range(racers)))
                stands = store.get(path)
            finally:
                store.delete([path])
            several += won.count(True) > 1
            nobody += won.count(True) == 0
            torn += won.count(True) == 1 and stands != _content(won.index(True))
    return RaceResult(racers, rounds, several, nobody, torn)


def check_create_if_absent(store: Creates, *, rounds: int) -> None:
    """Prove on the real store that a second create is refused; leaves nothing behind.

    Args:
        store: is asked.
        rounds: of a race after it; 0 where the operating system itself gives the guarantee.

    Raises:
        StoreError: a second create replaced the first, or the store does not work at all.
    """
    path = f"{EOS}/.probe-{uuid.uuid4().hex}"
    first, second = b"first", b"second"
    try:
        if not store.create(path, first):
            raise StoreError(
                f"{store.location}: a new object {path} was written but does not read back. "
                "Use a store that reads its own writes."
            )
        if store.create(path, second) or store.get(path) != first:
            raise _refused(store, "let a second create replace the first one")
    finally:
        with contextlib.suppress(StoreError):  # what went wrong is already on its way
            store.delete([path])
    found = race_create(store, rounds=rounds)
    if not found.is_exclusive:
        raise _refused(store, f"failed a race of {found.racers} creates at once: {told(found)}")


def told(found: RaceResult) -> str:
    """The result for people."""
    counts = {"several won": found.several, "nobody won": found.nobody, "torn": found.torn}
    wrong = ", ".join(f"{name} in {count}" for name, count in counts.items() if count)
    return f"{wrong or 'one winner in each'} of {found.rounds} rounds"


def _refused(store: Creates, found: str) -> StoreError:
    return StoreError(
        f"{store.location} {found}, so two drivers could both decide a batch. Expected 'already "
        "exists' for all but one. Put the checkpoint on a local disk, HDFS, S3, GCS or Azure, or "
        "on an S3-compatible store that honours 'If-None-Match: *' for those who come at once."
    )


def _content(racer: int) -> bytes:
    return f"{racer} ".encode() * (_SIZE // 2)

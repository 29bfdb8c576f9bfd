"""Terms: which driver is the newest one of a checkpoint, with no clock, lease or lock server.

A driver that has passed every refusal takes the term after the newest (``eos/drivers/<n>.json``,
created if absent) and only then reads Spark's logs. A driver that slept, however long, looks before
it lets a task write and before it makes anything visible, and finds that it is superseded.

Sealing the attempt of the batch in flight does not do that alone: Spark purges its logs and we our
decisions, so a sleeper could plan a batch again whose places are empty by then, and win them all.

Why a look is enough although the world moves on behind it: Spark writes the plan of a batch before
the look. If the look misses a newer term, that term was taken later still, and its driver reads the
logs after that; so it finds the batch, and seals its attempt or honours its decision.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from airflow_eos.core.checkpoint.backend import COMMITS, DRIVERS, term_path
from airflow_eos.core.checkpoint.layout import newest_planned, numbers_in
from airflow_eos.core.checkpoint.spark_log import UnknownVersionError, parse_commit
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Stored, encode
from airflow_eos.errors import CheckpointFormatError, OvertakenError, SupersededError

_NEXT = (
    "Nothing of ours was made visible and nothing is lost; what we left open, recovery ends. "
    "Another driver runs this checkpoint: keep one of the two."
)


class Term(Stored, frozen=True, kw_only=True):
    """One run of a query. ``number`` from 1; ``nonce`` tells it from a term of a restored copy."""

    number: int
    nonce: str
    taken_by: str
    taken_at_ms: int


@dataclass(frozen=True, slots=True)
class Tenure:
    """A term that this process has taken, and whether it still is the newest."""

    store: CheckpointStore
    term: Term

    def is_newest(self) -> bool:
        """Whether no driver has started since; before showing or deciding, ask :meth:`require`."""
        return self._superseded() is None

    def require(self, batch_id: int) -> None:
        """Require that this driver is the newest, and the batch the newest one and not complete.

        Costs three small requests and one listing.

        Raises:
            SupersededError: end nothing and delete nothing, since somebody may rely on what stands.
        """
        found = self._superseded()
        if found is not None:
            raise SupersededError(f"{self._who(batch_id)}: {found}. {_NEXT}")
        require_in_flight(self.store, batch_id, self._who(batch_id))

    def _superseded(self) -> str | None:
        """Say why a driver has started since this one; None where nothing tells so.

        A newer term is looked for first, then our own, since terms are pruned in ascending order:
        where the newer one was pruned already, ours went before it.
        """
        newest = newest_term(self.store)
        if newest > self.term.number:
            return f"a driver with term {newest} has started since"
        path = term_path(self.term.number)
        there = self.store.read(path, Term)
        if there != self.term:
            found = "is gone" if there is None else "belongs to another driver now"
            return (
                f"{path} {found}. Newer drivers have come and gone, or an older copy of the "
                "checkpoint was put back"
            )
        return None

    def _who(self, batch_id: int) -> str:
        return f"Batch {batch_id}, driver with term {self.term.number}"


def require_in_flight(store: CheckpointStore, batch_id: int, who: str) -> None:
    """Require that the batch is the newest of a *listing* of ``offsets/``, and not complete.

    A listing, since nothing else helps against places that were purged: after that, Spark's
    ``add`` of an old number answers True again.

    Raises:
        SupersededError: the batch is not the newest, or is complete.
    """
    newest = newest_planned(store)
    if newest != batch_id:
        raise SupersededError(f"{who}: the newest batch planned is {newest} by now. {_NEXT}")
    if _is_complete(store, batch_id):
        raise SupersededError(f"{who}: Spark has committed this batch meanwhile. {_NEXT}")


def _is_complete(store: CheckpointStore, batch_id: int) -> bool:
    """Whether Spark has completed the batch; a file that is not whole does not say so."""
    path = f"{COMMITS}/{batch_id}"
    if store.head(path) is None:
        return False
    try:
        return bool(parse_commit(store.get(path) or b"", path))
    except UnknownVersionError:
        return True
    except CheckpointFormatError:
        return False


def still_in_flight(store: CheckpointStore, batch_id: int) -> bool:
    """Whether the batch is in flight; asked after decisions are read and it is sealed."""
    try:
        require_in_flight(store, batch_id, f"recovery of batch {batch_id}")
    except SupersededError:
        return False
    return True


def take_term(store: CheckpointStore, *, taken_by: str, after: int | None = None) -> Tenure:
    """Take the next term and become the newest driver; refuse before: this stops whoever runs.

    The terms are listed again afterwards: a driver that slept between the look and the create may
    have filled a place that was pruned meanwhile, below a newer term.

    Args:
        after: take only the term after this one: of two drivers that wait for it, one stops nobody.

    Raises:
        OvertakenError: another driver has taken the term after ``after``.
    """
    while True:
        newest = newest_term(store)
        if after is not None and newest != after:
            raise OvertakenError(
                f"A driver with term {newest} has started since {after} was the newest. Nothing "
                f"was begun here: it runs {store.location}, and this one may stand by behind it."
            )
        term = Term(
            number=newest + 1,
            nonce=uuid.uuid4().hex,
            taken_by=taken_by,
            taken_at_ms=time.time_ns() // 1_000_000,
        )
        if store.create(term_path(term.number), encode(term)):
            numbers = numbers_in(store, DRIVERS, "term")
            if numbers and max(numbers) == term.number:
                # In ascending order, so that no driver sees its own term without a newer one.
                store.delete(term_path(number) for number in numbers if number < term.number)
                return Tenure(store, term)


def is_newest(store: CheckpointStore, number: int) -> bool:
    """Whether nobody has taken a later term: two small looks, for callers that ask all the time.

    Whoever takes a term removes those before it, so one that is gone was followed by another.
    """
    return store.head(term_path(number)) is not None and store.head(term_path(number + 1)) is None


def newest_term(store: CheckpointStore) -> int:
    """Return the highest term taken; 0 where no driver that knows terms has run."""
    return max(numbers_in(store, DRIVERS, "term"), default=0)

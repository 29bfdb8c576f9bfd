"""A consistent cut: one place in each output, up to which readers have the same batches; pure.

A place is right if it was told between the last commit of its batch and the first one of the next
batch. ``notes/cuts.md`` has the reasons.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec

from airflow_eos.core.protocol.decision import Evidence, PreparedWork

BATCHES = 10**12
"""How many batches have a stamp in one pipeline; a stamp's last twelve digits are its batch."""
_PIPELINES = 9_000_000


def stamp_of(pipeline: str, batch_id: int) -> int:
    """Return the number of a batch among those of all pipelines: a bigint that grows with it."""
    digest = hashlib.sha256(pipeline.encode()).digest()
    return (int.from_bytes(digest[:8]) % _PIPELINES + 1) * BATCHES + batch_id


def later_than(stamp: int) -> range:
    """Return the stamps of later batches of the same pipeline."""
    return range(stamp + 1, (stamp // BATCHES + 1) * BATCHES)


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a cut in one output.

    Attributes:
        kind: of the output: ``kafka``, ``files``, …
        since: the batch from which on no row of the pipeline was overlooked.
        at: what only the kind reads; empty: no row was delivered there yet. None: there is no
            place, or none is known.
        why: why there is none, for people.
    """

    kind: str
    since: int
    at: dict[str, Any] | None
    why: str = ""


class Cut(Evidence, frozen=True, kw_only=True):
    """The consistent cut after a batch.

    Attributes:
        pipeline: the random id of ``eos/pipeline.json``.
        incomplete: the newest batch up to this one that a person accepted, whose rows may be
            missing for good; None: there was none since cuts are written.
    """

    at_most: ClassVar[int | None] = 1 << 24

    batch_id: int
    pipeline: str
    incomplete: int | None
    positions: dict[str, Position]

    def as_json(self) -> Any:
        """Return the cut as JSON's own types."""
        return msgspec.to_builtins(self)


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a batch whose rows are all committed, as a participant is told it.

    Attributes:
        batch_id, pipeline: as a :class:`Cut` has them.
        works: all work of the participant that decisions of the batch name.
        former: the participant's place after the batch before; None: it is not known.
        require_in_flight: to be called after the system was looked at: raises where a later batch
            may have begun by then.
    """

    batch_id: int
    pipeline: str
    works: Sequence[PreparedWork]
    former: Mapping[str, Any] | None
    require_in_flight: Callable[[], None]


class Seekable(Protocol):
    """A participant in whose system a reader can stay behind the newest batch."""

    def position(self, end: BatchEnd) -> dict[str, Any] | None:
        """Return the place up to which readers have all rows of the batches so far, and no other.

        JSON's own types; empty and None as in :attr:`Position.at`.
        """
        ...

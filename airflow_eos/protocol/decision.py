"""What is decided about an attempt to deliver a batch; decided once, and for ever."""

from __future__ import annotations

import enum
import re

from airflow_eos.protocol.codec import Stored
from airflow_eos.protocol.work import PreparedWork, is_key

_NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Verdict(enum.Enum):
    """What was decided about one attempt to deliver a batch."""

    COMMIT = "commit"
    ABORT = "abort"


class Decision(Stored, frozen=True, kw_only=True):
    """What was decided about attempt ``attempt`` (from 1) of Spark's batch ``batch_id`` (from 0).

    A COMMIT names all work whose rows are promised (none for an empty batch) and the range
    of the source that they were read from: ``offsets`` is the whole content of Spark's
    ``offsets/N`` with which this attempt was *evaluated*. Spark's log may say otherwise, since it
    is not exclusive; then the decision is right. An ABORT names neither and gives a reason.

    ``term`` is that of the driver, None for a recovery. ``decided_by`` tells people who it was;
    ``decided_at_ms`` is milliseconds since the epoch. ``nonce`` is a fresh ``uuid4().hex``: no two
    writers ever write equal bytes, so a writer that lost the reply recognises its own decision.
    In format version 1 there was neither a term nor offsets, and Kafka was the only kind of work.

    Raises:
        ValueError: a field that contradicts this; a stored one gives CheckpointFormatError.
    """

    format_version: int = 2
    batch_id: int
    attempt: int
    verdict: Verdict
    works: tuple[PreparedWork, ...] = ()
    offsets: str | None = None
    reason: str = ""
    term: int | None = None
    decided_by: str
    decided_at_ms: int
    nonce: str

    def __post_init__(self) -> None:
        if self.batch_id < 0 or self.attempt < 1:
            raise ValueError(
                f"batch {self.batch_id}, attempt {self.attempt}: expected from 0 and from 1"
            )
        if _NONCE.fullmatch(self.nonce) is None:
            raise ValueError(f"nonce {self.nonce!r}: expected the 32 hex digits of uuid4().hex")
        is_commit = self.verdict is Verdict.COMMIT
        if not is_commit and (self.works or self.offsets or not self.reason):
            raise ValueError("an ABORT names no work, no offsets and gives a reason")
        if is_commit and self.format_version > 1 and not self.offsets:
            raise ValueError("a COMMIT says which offsets it was evaluated for")
        if not all(is_key(work.key) for work in self.works):
            raise ValueError("a key that is no name: expected letters, digits and ._-")
        if len({work.identity for work in self.works}) != len(self.works):
            raise ValueError("a piece of work is named twice")

"""A transaction as Kafka names it, as frozen values; no I/O.

Beyond the Kafka room it is prepared work, under one key: see :mod:`.work`.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from airflow_eos.errors import ConfigurationError

# As wide as Kafka's protocol has them: what is read from a checkpoint must fit a request.
Int16 = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class TransactionIdentity(msgspec.Struct, frozen=True, order=True):
    """One transaction of one producer: what EndTxn needs, and all that it needs.

    Every transaction starts with InitProducerId, which raises the epoch, so the three values
    name one transaction and never the next one under the same transactional id.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer {self.producer_id}, epoch {self.producer_epoch})"


class OffsetRange(msgspec.Struct, frozen=True, order=True):
    """Offsets ``first`` to ``last``, both included, of one topic partition."""

    topic: str
    partition: Int32
    first: Int64
    last: Int64


class PreparedTransaction(msgspec.Struct, frozen=True):
    """All that another process needs to commit, abort or inspect what one task wrote.

    ``written`` has one range for each topic partition that the transaction wrote to, never
    empty; other producers may have rows inside a range. ``written[0].first`` is the *witness*:
    the offset by which the log itself is asked for the outcome. ``fingerprint`` is an
    order-independent sum of row hashes (32 hex digits); together with ``rows`` it stands for
    the content. Times are milliseconds: ``opened_at_ms`` since the epoch.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    written: tuple[OffsetRange, ...]
    rows: Int64
    fingerprint: str
    opened_at_ms: Int64
    timeout_ms: Int32

    @property
    def identity(self) -> TransactionIdentity:
        """The id, producer id and epoch by which the broker knows this transaction."""
        return TransactionIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def witness(self) -> OffsetRange:
        """The range whose first offset tells the outcome."""
        return self.written[0]

    @property
    def content(self) -> tuple[int, str]:
        """What pairs a replayed task with a promised one: (rows, fingerprint)."""
        return self.rows, self.fingerprint


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that the coordinator says is open (Ongoing). Times in milliseconds.

    ``started_at_ms`` is by the broker's clock; the broker aborts at started_at + timeout,
    looking every 10 s (``transaction.abort.timed.out.transaction.cleanup.interval.ms``).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    started_at_ms: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def identity(self) -> TransactionIdentity:
        """The id, producer id and epoch by which the broker knows this transaction."""
        return TransactionIdentity(self.transactional_id, self.producer_id, self.producer_epoch)


_PREFIX = r"[A-Za-z0-9._-]{1,200}"
_OURS = "-eos"
"""Between the prefix and the numbers: without it, the ids would have the form of Flink's."""
_NUMBERS = _OURS + r"-[0-9]{1,10}-[0-9]{1,10}"
_OF_OTHERS = {
    "Flink (<prefix>-<subtask>-<checkpoint>)": r"-[0-9]+-[0-9]+",
    "Kafka Streams (<application.id>-<process>-<thread> or -<task>)": (
        r"-[0-9a-f-]{36}-[0-9]+|-[0-9]+_[0-9]+"
    ),
    "Kafka Connect (<group.id>-<connector>-<task>)": (
        r"-[A-Za-z0-9._]*[A-Za-z._][A-Za-z0-9._]*-[0-9]+"
    ),
    "a producer of its own, whose program is not known": r"[-.]?[0-9]*",
}
"""What follows a prefix in the ids of other programs that were given it."""


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if transactional ids may begin with it.

    The one grammar for all: it is a part of file names, of a group's name and of a pattern.

    Raises:
        ConfigurationError: it is empty, too long, or has other characters.
    """
    if re.fullmatch(_PREFIX, prefix) is None:
        raise ConfigurationError(
            f"transactional_id_prefix {prefix!r}: expected 1 to 200 letters, digits, dots, "
            "underscores or hyphens (ASCII)."
        )
    return prefix


def transactional_id_of(prefix: str, task: int, attempt: int) -> str:
    """``<prefix>-eos-<task>-<attempt>``: bounded by tasks x attempts, whatever the age."""
    return f"{prefix}{_OURS}-{task}-{attempt}"


def is_transactional_id(text: str) -> bool:
    """Whether a sink of ours may have used it."""
    return re.fullmatch(_PREFIX + _NUMBERS, text) is not None


def belongs_to_prefix(transactional_id: str, prefix: str) -> bool:
    """Whether the id is one of the prefix; ``etl`` does not own ``etl-eu-eos-0-0``."""
    return re.fullmatch(re.escape(prefix) + _NUMBERS, transactional_id) is not None


def whose(transactional_id: str, prefix: str) -> str:
    """The program, for people, that has the prefix too and uses this id by its form; or empty.

    Of a longer prefix, as that of another pipeline of ours, nothing is said.
    """
    if not transactional_id.startswith(prefix) or belongs_to_prefix(transactional_id, prefix):
        return ""
    rest = transactional_id[len(prefix) :]
    return next((what for what, form in _OF_OTHERS.items() if re.fullmatch(form, rest)), "")

"""A transaction as Kafka names it, as frozen values; no I/O.

Beyond the Kafka room it is prepared work, under one key: see :mod:`.identity`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

from airflow_eos.errors import CheckpointFormatError, ConfigurationError, TransactionError
from airflow_eos.protocol.decision import OpenWork, PreparedWork, WorkIdentity

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


_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
AIRFLOW_EOS = "airflow-eos"
_BY_FORM = {
    AIRFLOW_EOS: _PREFIX + _NUMBERS,
    "Kafka Streams": rf".+-{_UUID}-[0-9]+|.+-[0-9]+_[0-9]+",
    "Kafka Connect": r"connect-cluster-.+",
    "Flink": r".+-[0-9]+-[0-9]+|.+-[0-9a-f]{32}-[0-9]+",
}
"""Forms of whole ids. Kafka Connect's connectors have ``<group.id>-<connector>-<task>``, which many
others have too, so nothing is said of it. Spark's own sink opens no transactions."""


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


def belongs_to_prefix(transactional_id: str, prefix: str) -> bool:
    """Whether the id is one of the prefix; ``etl`` does not own ``etl-eu-eos-0-0``."""
    return re.fullmatch(re.escape(prefix) + _NUMBERS, transactional_id) is not None


def owner_of(transactional_id: str) -> str:
    """The program that uses ids of this form, for people, where only one does; or empty.

    That is what a name looks like, and no proof: nothing is ended because of it.
    """
    return next(
        (what for what, form in _BY_FORM.items() if re.fullmatch(form, transactional_id)), ""
    )


def whose(transactional_id: str, prefix: str) -> str:
    """The program, for people, that has the prefix too and uses this id by its form; or empty.

    Of a longer prefix, as that of another pipeline of ours, nothing is said.
    """
    if not transactional_id.startswith(prefix) or belongs_to_prefix(transactional_id, prefix):
        return ""
    rest = transactional_id[len(prefix) :]
    return next((what for what, form in _OF_OTHERS.items() if re.fullmatch(form, rest)), "")


# --- work -----------------------------------------------------------------------------------------
# A transaction as prepared work, and back: what of a decision only Kafka reads.
#
# The key is ``<transactional id>-<producer id>-<producer epoch>``; every transaction begins with
# InitProducerId, which raises the epoch, so no key is ever used again. The detail holds the ranges
# that were written, the first of which is the witness.


KIND = "kafka"
BY_ROW = "by row"
"""In the place of a topic, in the target of an output whose rows name their topics."""
_MOST_INT64, _MOST_INT16 = 2**63 - 1, 2**15 - 1  # as wide as Kafka's protocol has them
_KEY = re.compile(r"(.+)-([0-9]{1,19})-([0-9]{1,5})", re.ASCII)


class _Detail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    written: Annotated[tuple[OffsetRange, ...], msgspec.Meta(min_length=1)]


def key_of(identity: TransactionIdentity) -> str:
    """The key under which decisions name the transaction."""
    return f"{identity.transactional_id}-{identity.producer_id}-{identity.producer_epoch}"


def named(identity: TransactionIdentity, participant: str) -> WorkIdentity:
    """The transaction as decisions name it."""
    return WorkIdentity(KIND, participant, key_of(identity))


def transaction_of(work: WorkIdentity) -> TransactionIdentity:
    """The transaction that is named (ConfigurationError: the key is none of Kafka's)."""
    found = _KEY.fullmatch(work.key) if work.kind == KIND else None
    if found is None or int(found[2]) > _MOST_INT64 or int(found[3]) > _MOST_INT16:
        raise ConfigurationError(
            f"{work} names no transaction: expected "
            "<prefix>-eos-<task>-<attempt>-<producer id>-<producer epoch>."
        )
    return TransactionIdentity(found[1], int(found[2]), int(found[3]))


def as_work(transaction: PreparedTransaction, participant: str) -> PreparedWork:
    """What a decision keeps of a prepared transaction."""
    return PreparedWork(
        kind=KIND,
        participant=participant,
        key=key_of(transaction.identity),
        rows=transaction.rows,
        fingerprint=transaction.fingerprint,
        opened_at_ms=transaction.opened_at_ms,
        timeout_ms=transaction.timeout_ms,
        detail={"written": [msgspec.to_builtins(each) for each in transaction.written]},
    )


def as_transaction(work: PreparedWork) -> PreparedTransaction:
    """What :func:`as_work` was made of.

    Raises:
        CheckpointFormatError: the detail says nothing that Kafka understands.
    """
    try:
        identity = transaction_of(work.identity)
        return PreparedTransaction(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            written=msgspec.convert(work.detail, _Detail).written,
            rows=work.rows,
            fingerprint=work.fingerprint,
            opened_at_ms=work.opened_at_ms,
            timeout_ms=msgspec.convert(work.timeout_ms, Int32),
        )
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise CheckpointFormatError(
            f"The decision about {work.identity} is not Kafka's: {error}. "
            "Nothing was guessed. Restore the decision from a copy of the checkpoint."
        ) from error


def as_open_work(listed: OpenTransaction, participant: str) -> OpenWork:
    """What recovery sees of a listed transaction."""
    return OpenWork(
        kind=KIND,
        participant=participant,
        key=key_of(listed.identity),
        opened_at_ms=listed.started_at_ms,
        timeout_ms=listed.timeout_ms,
        places=tuple(f"{topic}/{partition}" for topic, partition in listed.partitions),
    )


# --- the transaction of a writer ------------------------------------------------------------------
# The one transaction that a writer writes, and what it lets go of; the same for every writer.


DELIVERY_TIMEOUT_S = 120.0
"""How long rows may fail in passing (a leader moves, a broker restarts) before a writer raises."""


@dataclass(frozen=True, slots=True)
class WrittenTransaction:
    """What a transaction wrote, acknowledged and not ended. Times in ms.

    ``identity`` is None where there was no transaction (at least once). ``written`` has one range
    a topic partition, never empty; other producers may have rows inside a range.
    """

    identity: TransactionIdentity | None
    written: tuple[OffsetRange, ...]
    rows: int
    opened_at_ms: int
    timeout_ms: int

    def prepared(self, fingerprint: str) -> PreparedTransaction | None:
        """What a decision names, with the content of its rows; None without a transaction."""
        if self.identity is None:
            return None
        return PreparedTransaction(
            transactional_id=self.identity.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            written=self.written,
            rows=self.rows,
            fingerprint=fingerprint,
            opened_at_ms=self.opened_at_ms,
            timeout_ms=self.timeout_ms,
        )


@dataclass(slots=True)
class PendingTransaction:
    """The transaction that a writer writes; each writer adds by what its rows travel."""

    transactional_id: str | None
    timeout_ms: int
    rows: int = 0
    opened_at_ms: int = 0

    def written(
        self, identity: TransactionIdentity | None, ranges: tuple[OffsetRange, ...]
    ) -> WrittenTransaction:
        """What the writer lets go of."""
        return WrittenTransaction(identity, ranges, self.rows, self.opened_at_ms, self.timeout_ms)


_Pending = TypeVar("_Pending", bound=PendingTransaction)


class TransactionSlot(Generic[_Pending]):
    """A writer's place for its one transaction."""

    def __init__(self) -> None:
        self._pending: _Pending | None = None

    def begin(self, pending: _Pending) -> None:
        """Take the place.

        Raises:
            ConfigurationError: the transaction before was neither prepared nor aborted.
        """
        if self._pending is not None:
            raise ConfigurationError(
                f"This writer still writes {self._pending.transactional_id!r}: "
                "prepare or abort it before the next one begins."
            )
        self._pending = pending

    def current(self) -> _Pending:
        """The transaction that is being written (ConfigurationError: none has begun)."""
        if self._pending is None:
            raise ConfigurationError("No transaction has begun: call begin() first.")
        return self._pending

    def release(self) -> _Pending | None:
        """Free the place; what was in it, if anything."""
        pending, self._pending = self._pending, None
        return pending


def unknown_offsets(topic: str, partition: int) -> TransactionError:
    """Rows were acknowledged without the offset that a promise has to name."""
    return TransactionError(
        f"The offsets of the rows in partition {partition} of topic {topic!r} are not known: the "
        "answer that told them was lost, and the broker has forgotten them. The task writes its "
        "rows again."
    )

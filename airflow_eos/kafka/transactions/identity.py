"""Kafka transactions as frozen values, and their translation to prepared work; no I/O.

Outside ``airflow_eos.kafka`` a transaction is prepared work, under one key: see "work" below.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import msgspec

from airflow_eos.core.protocol.decision import OpenWork, PreparedWork, WorkIdentity, is_formed
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, TransactionError

if TYPE_CHECKING:
    from airflow_eos.kafka.client.cluster import ClusterView

# As wide as in Kafka's protocol: a number read from a checkpoint must fit a request.
Int16 = Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

NEVER_MS = 2**31 - 1
"""The timeout by which a coordinator knows a transaction that no timer of its ends: a two-phase
one, opened with ``Enable2Pc`` (KIP-939). In decisions, and to recovery, its timeout is None."""


class TransactionIdentity(msgspec.Struct, frozen=True, order=True):
    """The identity of one transaction: all that EndTxn needs.

    Every transaction starts with InitProducerId, which raises the epoch, so the three values
    name one transaction and never the next one under the same transactional id.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer {self.producer_id}, epoch {self.producer_epoch})"


class _OneTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16

    @property
    def identity(self) -> TransactionIdentity:
        """The id, producer id and epoch by which the broker knows this transaction."""
        return TransactionIdentity(self.transactional_id, self.producer_id, self.producer_epoch)


class OffsetRange(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """Offsets ``first`` to ``last``, both included, of one topic partition.

    ``topic_id`` is empty where the broker gave none, or an older release wrote this.
    """

    topic: str
    partition: Int32
    first: Int64
    last: Int64
    topic_id: str = ""

    @property
    def tp(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.topic, self.partition


class PreparedTransaction(_OneTransaction, frozen=True):
    """A task's transaction, with all that another process needs to commit, abort or inspect it.

    ``written`` has one range for each topic partition that the transaction wrote to, never
    empty; other producers may have rows inside a range. ``written[0].first`` is the *witness*:
    the offset by which the log itself is asked for the outcome. ``fingerprint`` is an
    order-independent sum of row hashes (32 hex digits); together with ``rows`` it stands for
    the content. Times are milliseconds: ``opened_at_ms`` since the epoch; ``timeout_ms`` is None
    where no timer ends it.
    """

    written: tuple[OffsetRange, ...]
    rows: Int64
    fingerprint: str
    opened_at_ms: Int64
    timeout_ms: Int32 | None

    @property
    def witness(self) -> OffsetRange:
        """The range by whose first offset the log is asked for the outcome."""
        return self.written[0]

    @property
    def content(self) -> tuple[int, str]:
        """The content that pairs a replayed task with a promised one: (rows, fingerprint)."""
        return self.rows, self.fingerprint


class OpenTransaction(_OneTransaction, frozen=True):
    """A transaction that the coordinator says is open (Ongoing). Times in milliseconds.

    ``started_at_ms`` is by the broker's clock; the broker aborts at started_at + timeout,
    looking every 10 s (``transaction.abort.timed.out.transaction.cleanup.interval.ms``); with
    :data:`NEVER_MS` it never does.
    """

    started_at_ms: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...] = ()


_PREFIX = r"[A-Za-z0-9._-]{1,200}"
_OURS = "-eos"
"""The text between prefix and numbers: without it, the ids would have the form of Flink's."""
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
"""For each other program, the form of its ids after a prefix that it was given."""


_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
AIRFLOW_EOS = "airflow-eos"
_BY_FORM = {
    AIRFLOW_EOS: _PREFIX + _NUMBERS,
    "Kafka Streams": rf".+-{_UUID}-[0-9]+|.+-[0-9]+_[0-9]+",
    "Kafka Connect": r"connect-cluster-.+",
    "Flink": r".+-[0-9]+-[0-9]+|.+-[0-9a-f]{32}-[0-9]+",
}
"""For each program, the form of its whole ids. That of Kafka Connect's connectors is left out: many
programs have ``<group.id>-<connector>-<task>``. Spark's own sink opens no transactions."""


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if transactional ids may begin with it.

    One grammar for all its uses: in file names, in a group's name and in a pattern.

    Raises:
        ConfigurationError: the prefix is empty, too long, or has other characters.
    """
    if not is_formed(prefix, _PREFIX):
        raise ConfigurationError(
            f"transactional_id_prefix {prefix!r}: expected 1 to 200 letters, digits, dots, "
            "underscores or hyphens (ASCII)."
        )
    return prefix


def transactional_id_of(prefix: str, task: int, task_attempt: int) -> str:
    """Return ``<prefix>-eos-<task>-<attempt>``: so ids are bounded by tasks x attempts for good."""
    return f"{prefix}{_OURS}-{task}-{task_attempt}"


def belongs_to_prefix(transactional_id: str, prefix: str) -> bool:
    """Whether the id belongs to the prefix; ``etl-eu-eos-0-0`` does not belong to ``etl``."""
    return re.fullmatch(re.escape(prefix) + _NUMBERS, transactional_id) is not None


_MOST_ATTEMPTS = 100
"""More attempts than Spark makes of a task: ``spark.task.maxFailures`` is 4 unless set."""


def not_ours(listed: OpenTransaction, timeouts_ms: Collection[int]) -> str:
    """Return what ours never have, of an open transaction whose id has our form; or empty.

    A Flink job with the prefix ``<ours>-eos`` has ids of the same form; its numbers grow with its
    checkpoints, and begin with 1. Where nothing tells it apart it passes for ours; and of what has
    attempt 0, the next task takes the id in any case.

    Args:
        listed: an open transaction, which :func:`belongs_to_prefix`.
        timeouts_ms: the timeouts that the pipeline's own transactions have; none: not known.
    """
    task_attempt = int(listed.transactional_id.rpartition("-")[2])
    if task_attempt >= _MOST_ATTEMPTS:
        return (
            "Flink (<prefix>-<subtask>-<checkpoint>): no task of Spark has an attempt "
            f"{task_attempt}"
        )
    if task_attempt and timeouts_ms and listed.timeout_ms not in {*timeouts_ms, NEVER_MS}:
        own = " or ".join(f"{each / 1000:g}" for each in sorted(timeouts_ms))
        return (
            "Flink (<prefix>-<subtask>-<checkpoint>): its timeout is "
            f"{listed.timeout_ms / 1000:g} s, and this pipeline's {own} s"
        )
    return ""


def owner_of(transactional_id: str) -> str:
    """Return the one program that uses ids of this form, for people; empty if none is known.

    The form of an id is no proof: no transaction is ended because of it.
    """
    return next(
        (what for what, form in _BY_FORM.items() if re.fullmatch(form, transactional_id)), ""
    )


def whose(transactional_id: str, prefix: str) -> str:
    """Return the other program, for people, that uses the prefix, by the id's form; or empty.

    Empty also for an id of a longer prefix, as another pipeline of ours has.
    """
    if not transactional_id.startswith(prefix) or belongs_to_prefix(transactional_id, prefix):
        return ""
    rest = transactional_id[len(prefix) :]
    return next((what for what, form in _OF_OTHERS.items() if re.fullmatch(form, rest)), "")


# --- work -----------------------------------------------------------------------------------------
# A transaction as prepared work, and back: the part of a decision that only Kafka reads.
#
# The key is ``<transactional id>-<producer id>-<producer epoch>``; every transaction begins with
# InitProducerId, which raises the epoch, so no key is ever used again. The detail holds the ranges
# that were written, the first of which is the witness.


KIND = "kafka"
BY_ROW = "by row"
"""The text instead of a topic in the target of an output whose rows name their topics."""
_MOST_INT64, _MOST_INT16 = 2**63 - 1, 2**15 - 1  # as wide as in Kafka's protocol
_KEY = re.compile(r"(.+)-([0-9]{1,19})-([0-9]{1,5})", re.ASCII)


class _Detail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    written: Annotated[tuple[OffsetRange, ...], msgspec.Meta(min_length=1)]


def key_of(identity: TransactionIdentity) -> str:
    """Return the key under which decisions name the transaction."""
    return f"{identity.transactional_id}-{identity.producer_id}-{identity.producer_epoch}"


def named(identity: TransactionIdentity, participant: str) -> WorkIdentity:
    """Return the work identity by which decisions name the transaction."""
    return WorkIdentity(KIND, participant, key_of(identity))


def transaction_of(work: WorkIdentity) -> TransactionIdentity:
    """Return the transaction that a work identity names (ConfigurationError: not Kafka's)."""
    found = _KEY.fullmatch(work.key) if work.kind == KIND else None
    if found is None or int(found[2]) > _MOST_INT64 or int(found[3]) > _MOST_INT16:
        raise ConfigurationError(
            f"{work} names no transaction: expected "
            "<prefix>-eos-<task>-<attempt>-<producer id>-<producer epoch>."
        )
    return TransactionIdentity(found[1], int(found[2]), int(found[3]))


def as_work(transaction: PreparedTransaction, participant: str) -> PreparedWork:
    """Translate a prepared transaction into the prepared work of a decision."""
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
    """Translate prepared work back into the transaction; the inverse of :func:`as_work`.

    Raises:
        CheckpointFormatError: the key or the detail is not one of Kafka's.
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
            timeout_ms=msgspec.convert(work.timeout_ms, Int32 | None),
        )
    except (msgspec.ValidationError, ConfigurationError) as error:
        raise CheckpointFormatError(
            f"The decision about {work.identity} is not Kafka's: {error}. "
            "Nothing was guessed. Restore the decision from a copy of the checkpoint."
        ) from error


def as_open_work(listed: OpenTransaction, participant: str, whose: str = "") -> OpenWork:
    """Translate a listed transaction into open work, for recovery; ``whose``: see OpenWork."""
    return OpenWork(
        kind=KIND,
        participant=participant,
        key=key_of(listed.identity),
        opened_at_ms=listed.started_at_ms,
        timeout_ms=None if listed.timeout_ms == NEVER_MS else listed.timeout_ms,
        places=tuple(f"{topic}/{partition}" for topic, partition in listed.partitions),
        whose=whose,
    )


# --- the transaction of a writer ------------------------------------------------------------------
# The one transaction of a writer, while it is written and afterwards; shared by all writers.


DELIVERY_TIMEOUT_S = 120.0
"""How long retriable failures (a leader moves, a broker restarts) last until a writer raises."""


@dataclass(frozen=True, slots=True)
class WrittenTransaction:
    """A transaction whose rows are all acknowledged, not ended yet. Times in ms.

    ``identity`` is None where there was no transaction (at least once). ``written`` has one range
    per topic partition, never empty; other producers may have rows inside a range. ``timeout_ms``
    is None where no timer ends it.
    """

    identity: TransactionIdentity | None
    written: tuple[OffsetRange, ...]
    rows: int
    opened_at_ms: int
    timeout_ms: int | None

    def prepared(self, fingerprint: str) -> PreparedTransaction | None:
        """Return the prepared transaction with its fingerprint; None without a transaction."""
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


def with_ids(cluster: ClusterView, ranges: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
    """Return the ranges with the ids that their topics had when they were looked up."""
    return tuple(
        msgspec.structs.replace(each, topic_id=cluster.topic_id(each.topic)) for each in ranges
    )


@dataclass(slots=True)
class PendingTransaction:
    """The transaction that a writer is writing; each writer's subclass adds what sends its rows.

    ``two_phase``: it was opened so that no timer ends it.
    """

    transactional_id: str | None
    timeout_ms: int
    rows: int = 0
    opened_at_ms: int = 0
    two_phase: bool = False

    def written(
        self, identity: TransactionIdentity | None, ranges: tuple[OffsetRange, ...]
    ) -> WrittenTransaction:
        """Return the transaction as written, with its identity and offset ranges."""
        timeout_ms = None if self.two_phase else self.timeout_ms
        return WrittenTransaction(identity, ranges, self.rows, self.opened_at_ms, timeout_ms)


_Pending = TypeVar("_Pending", bound=PendingTransaction)


class TransactionSlot(Generic[_Pending]):
    """The holder of a writer's one transaction."""

    def __init__(self) -> None:
        self._pending: _Pending | None = None

    def begin(self, pending: _Pending) -> None:
        """Set the writer's transaction.

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
        """Return the transaction that is being written (ConfigurationError: none has begun)."""
        if self._pending is None:
            raise ConfigurationError("No transaction has begun: call begin() first.")
        return self._pending

    def release(self) -> _Pending | None:
        """Remove and return the transaction, if there is one."""
        pending, self._pending = self._pending, None
        return pending


def unknown_offsets(topic: str, partition: int) -> TransactionError:
    """Return the error for rows acknowledged without the offset that a promise has to name."""
    return TransactionError(
        f"The offsets of the rows in partition {partition} of topic {topic!r} are not known: the "
        "answer that told them was lost, and the broker has forgotten them. The task writes its "
        "rows again."
    )

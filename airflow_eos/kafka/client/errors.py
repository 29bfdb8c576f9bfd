"""Translation of Kafka's error codes and kafka-python's exceptions into this package's errors.

Error codes are those of ``org.apache.kafka.common.protocol.Errors``. Nothing here decides what to
do about a transaction (``coordinator`` does); the errors name what went wrong and what helps.
"""

from __future__ import annotations

import datetime as dt
import enum
import random
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress

import kafka.errors as kafka_errors

from airflow_eos.core.tally import RETRY_COUNTS
from airflow_eos.errors import (
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    RowError,
    TopicError,
    TransactionError,
)

CorruptRecordError = kafka_errors.CorruptRecordError

UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
MESSAGE_TOO_LARGE = 10
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INVALID_TOPIC = 17
RECORD_LIST_TOO_LARGE = 18
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
INVALID_TIMESTAMP = 32
POLICY_VIOLATION = 44
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTION_COORDINATOR_FENCED = 52
INVALID_RECORD = 87
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
OPERATION_NOT_ATTEMPTED = 55
GROUP_ID_NOT_FOUND = 69
UNKNOWN_PRODUCER_ID = 59
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120

_AUTHORIZATION: dict[int, type[KafkaError]] = {
    TOPIC_AUTHORIZATION_FAILED: TopicError,
    GROUP_AUTHORIZATION_FAILED: KafkaError,
    CLUSTER_AUTHORIZATION_FAILED: KafkaError,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionError,
}

_GRANTED = {
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: " (each task has an id: to an app and a recovery Write, "
    "by the pattern prefixed, on all ids that begin as the prefix does)"
}

_NOT_AUTHENTICATED = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.AuthorizationError,
    kafka_errors.KafkaConfigurationError,
)
_NOT_REACHED = (
    kafka_errors.RetriableError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.KafkaProtocolError,
    OSError,
)


def error_name(code: int) -> str:
    """Return Kafka's documented name of an error code, as in ``PRODUCER_FENCED (90)``."""
    return f"{kafka_errors.for_code(code).message} ({code})"


def said(answer: int | KafkaUnavailableError) -> str:
    """Describe, for a message, why a request waits: an error code, or that no answer came."""
    if not isinstance(answer, int):
        return str(answer).rstrip(".")
    return f"{error_name(answer)}{_WAITS_FOR.get(answer, '')}"


_WAITS_FOR = {
    CONCURRENT_TRANSACTIONS: ", since the transaction before it has no markers yet in a partition "
    "that it wrote to: see that each has a leader",
    COORDINATOR_LOAD_IN_PROGRESS: ", since its broker still reads its log: give it more time",
    COORDINATOR_NOT_AVAILABLE: ", since its partition of Kafka's own log has no leader: see that "
    "all brokers run",
}
"""For error codes that usually pass by themselves: why they stand, and what helps if they stay."""


def first_code(codes: Iterable[int]) -> int:
    """Return the first error code of a response; a retriable one if the response has none."""
    return int(next(iter(codes), COORDINATOR_NOT_AVAILABLE))


def is_retriable(code: int) -> bool:
    """Whether Kafka itself marks the error as retriable (``RetriableException``)."""
    return issubclass(kafka_errors.for_code(code), kafka_errors.RetriableError)


def refusal(
    code: int, doing: str, *, acl: str, otherwise: type[KafkaError] = KafkaError
) -> KafkaError:
    """Return the error to raise when a broker has refused a request for good.

    Args:
        doing: the action that was refused, as in "while listing transactions".
        acl: operation and resource that the request needs, as in "Write on TransactionalId 'a'".
        otherwise: the class to use where the code is not about authorization.
    """
    kind = _AUTHORIZATION.get(code)
    if kind is not None:
        return kind(
            f"Kafka answered {error_name(code)} {doing}. "
            f"The principal of this connection needs the ACL {acl}: "
            f"grant it{_GRANTED.get(code, '')} and run again."
        )
    return otherwise(f"Kafka answered {error_name(code)} {doing}.")


def is_row_refusal(code: int) -> bool:
    """Whether the broker refused a row for its content: sent again, it is refused again."""
    return code in _ROWS


_OF_NOW_MS = 600_000
"""A time within this of a machine's clock is taken for that clock's: a batch takes no longer."""


def row_refused(
    code: int, where: str, *, row: str = "", timestamp_ms: int | None = None, said: str = ""
) -> KafkaError:
    """Return the error to raise for a row that the broker does not take.

    A RowError; but where the row's time is this machine's of now, a clock is wrong and no row.

    Args:
        code: an error code for which :func:`is_row_refusal` is true.
        where: as in "while writing to partition 0 of topic 'orders'".
        row: the row's name for people, where it is known.
    """
    why, remedies = _ROWS[code]
    which = f" {row}" if row else ""
    if code == INVALID_TIMESTAMP and timestamp_ms is not None:
        which += f" of timestamp {timestamp_ms} ms"
        with suppress(OverflowError, ValueError):  # a year that Python has no date for
            which += f" ({dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC):%F %T} UTC)"
    told = f" The broker says: {said}." if said else ""
    now_ms = time.time_ns() // 1_000_000
    if code == INVALID_TIMESTAMP and abs((timestamp_ms or 0) - now_ms) < _OF_NOW_MS:
        return KafkaError(
            f"Kafka answered {error_name(code)} for a row{which} {where}: it has the time of this "
            f"machine, which is too far from the broker's (KIP-937).{told}",
            Remedy(change="set the clock of this machine, or that of the broker", start=True),
        )
    return RowError(
        f"Kafka answered {error_name(code)} for a row{which} {where}: {why}.{told}", *remedies
    )


_ROWS: dict[int, tuple[str, tuple[Remedy, ...]]] = {
    MESSAGE_TOO_LARGE: (
        "its record batch, sent or as compression.type has it stored, is above max.message.bytes",
        (
            Remedy(change="send less in one row", start=True),
            Remedy(
                change="raise the topic's max.message.bytes, or set its compression.type=producer",
                start=True,
            ),
        ),
    ),
    RECORD_LIST_TOO_LARGE: (
        "its record batch is larger than the topic's segment.bytes",
        (
            Remedy(change="send less in one row", start=True),
            Remedy(change="raise the topic's segment.bytes", start=True),
        ),
    ),
    INVALID_TIMESTAMP: (
        "its timestamp is too far from the broker's clock for the topic (KIP-937)",
        (
            Remedy(
                change="leave the column timestamp out, or bound it by current_timestamp()",
                start=True,
            ),
            Remedy(
                change="raise the topic's message.timestamp.after.max.ms (an hour unless set) or "
                "message.timestamp.before.max.ms",
                start=True,
            ),
        ),
    ),
    INVALID_RECORD: (
        "the topic does not take such a row, as a compacted one takes none without a key",
        (
            Remedy(change="give the row what the topic asks for, as a key", start=True),
            Remedy(change="write to a topic whose cleanup.policy is delete", start=True),
        ),
    ),
    POLICY_VIOLATION: (
        "a policy of the cluster refuses it",
        (Remedy(change="ask who runs the cluster what its policy is", start=True),),
    ),
}


def answered(code: int, doing: str, *, acl: str) -> bool:
    """Whether a partition's leader has answered; False: find the leader anew and ask again.

    Raises:
        TopicError, KafkaError: refused for good; the arguments are those of :func:`refusal`.
    """
    if code == NONE:
        return True
    if is_retriable(code):
        return False
    raise refusal(code, doing, acl=acl)


def connection_lost(cause: object) -> BaseException:
    """Return the error with which kafka-python itself says that a connection has ended."""
    lost: BaseException = kafka_errors.KafkaConnectionError(cause)
    return lost


def is_authentication(error: BaseException) -> bool:
    """Whether broker, TLS or token endpoint refuse this client, so that repeating cannot help."""
    if isinstance(error, KafkaError):
        return not isinstance(error, KafkaUnavailableError)  # said by our own token provider
    return (
        isinstance(error, _NOT_AUTHENTICATED)
        or isinstance(error.__context__, ssl.SSLCertVerificationError)
        or _is_certificate_alert(error)
    )


def _is_certificate_alert(error: BaseException) -> bool:
    # With TLS 1.3 a client's handshake is over before the broker has checked its certificate: the
    # first read meets the refusal as an alert, which kafka-python wraps (RFC 8446, 6.2).
    wrapped = error.args[0] if error.args else None
    reason = str(wrapped.reason) if isinstance(wrapped, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def translated(error: BaseException, servers: str, message: str = "") -> BaseException:
    """Translate kafka-python's exception; ``message`` is Kafka's name of the request that was sent.

    A programming error (neither a network nor an authentication fault) is returned unchanged.
    """
    if isinstance(error, KafkaError):
        return error
    if is_authentication(error):
        ours: KafkaError = KafkaError(
            f"Kafka at {servers} did not accept this client: {error}. Check security.protocol, "
            "sasl.mechanism and its credentials, ssl.ca.location, ssl.certificate.location (which "
            "the broker must trust), and that the broker's certificate names its host."
        )
    elif isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        ours = KafkaError(
            f"A broker of Kafka at {servers} lacks a message that was sent to it: "
            f"{str(error).rstrip('.')}. docs/brokers.md has what is needed, and what for."
        )
    elif isinstance(error, _NOT_REACHED):
        ours = unavailable(servers, error, message)
    else:
        return error
    ours.__cause__ = error
    return ours


def unavailable(servers: str, cause: object, message: str = "") -> KafkaUnavailableError:
    """Return the error for servers that did not answer in time, with what to check.

    ``message`` is Kafka's name of the request: some servers close the connection at one they lack.
    """
    reason = str(cause) or type(cause).__name__
    what = f" {message}" if message else ""
    return KafkaUnavailableError(
        f"Kafka at {servers} did not answer{what}: {reason}. Check that the brokers run, that "
        "bootstrap.servers and the brokers' advertised.listeners can be reached from this host, "
        "and that security.protocol is the listener's."
    )


# --- deadline -------------------------------------------------------------------------------------
# Retry deadline and backoff, shared by all requests.
#
# In ``client`` and ``transactions`` only this class waits between retries, so the model of
# ``tests/model`` can step time: there a pause costs nothing, and three of them use up a minute.


ANSWER_S = 10.0
"""Seconds until a response counts as lost: a stopped broker's role has moved by then."""
SHORTLY_S = 0.002
"""The first pause where an answer is likely within milliseconds."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25


class Deadline:
    """A retry deadline, and the pauses until then, each twice as long as the last (to 0.25 s)."""

    __slots__ = ("_ends_at", "_pause_s", "_seconds")

    def __init__(self, seconds: float, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._pause_s = first_pause_s

    def __str__(self) -> str:
        """Return how long was allowed, for an error."""
        return f"{self._seconds:g} s"

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._ends_at

    @property
    def remaining(self) -> float:
        """Seconds that are left; never zero, which callees read as "no limit"."""
        return max(self._ends_at - time.monotonic(), 0.001)

    @property
    def answer_s(self) -> float:
        """Seconds to wait for one answer: the rest of the time, at most :data:`ANSWER_S`."""
        return min(self.remaining, ANSWER_S)

    def pause(self) -> bool:
        """Wait before a retry; return False at once if the deadline would pass meanwhile."""
        if time.monotonic() + self._pause_s > self._ends_at:
            return False
        RETRY_COUNTS["kafka"] += 1
        wait(self._pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - only spreads retries
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


def wait(seconds: float) -> None:
    """Sleep that many seconds, for a wait that no deadline shortens."""
    time.sleep(seconds)


# --- next step ------------------------------------------------------------------------------------
# What to do after each answer of a transaction coordinator: the table of ``docs/protocol.md``.
#
# One table serves commit and abort: where the transaction has ended the other way, there is nothing
# to do about it, and the log tells its outcome.


class NextStep(enum.Enum):
    """What to do after a coordinator's answer."""

    DONE = enum.auto()
    """Nothing: the transaction has ended as requested."""
    LOOK = enum.auto()
    """Look up the outcome in the log: the coordinator does not know it."""
    AGAIN = enum.auto()
    """Ask the same coordinator again: it will know in a moment."""
    ELSEWHERE = enum.auto()
    """Find the coordinator anew, then ask it."""


_MEANING = {
    NONE: NextStep.DONE,
    # The transaction is just ending, by us or by its timeout, or its id is being taken.
    CONCURRENT_TRANSACTIONS: NextStep.AGAIN,
    # EndTxn while the broker begins to abort by timeout: Kafka 4.3 throws IllegalStateException
    # ("pending state PREPARE_EPOCH_FENCE", TransactionMetadata.prepareTransitionTo).
    UNKNOWN_SERVER_ERROR: NextStep.AGAIN,
    COORDINATOR_LOAD_IN_PROGRESS: NextStep.AGAIN,
    COORDINATOR_NOT_AVAILABLE: NextStep.ELSEWHERE,
    NOT_COORDINATOR: NextStep.ELSEWHERE,
    TRANSACTION_COORDINATOR_FENCED: NextStep.ELSEWHERE,
    # The transaction has ended the other way (commit after abort, or reverse), or never begun.
    INVALID_TXN_STATE: NextStep.LOOK,
    # Timed out under EndTxn v4 and below, or the id was taken again since: either may follow a
    # commit whose answer was lost, so these three do not tell the outcome.
    PRODUCER_FENCED: NextStep.LOOK,
    INVALID_PRODUCER_EPOCH: NextStep.LOOK,
    UNKNOWN_PRODUCER_ID: NextStep.LOOK,
    # transactional.id.expiration.ms has passed, and with it the coordinator's memory.
    INVALID_PRODUCER_ID_MAPPING: NextStep.LOOK,
}
"""The next step for each answer listed in ``docs/protocol.md``, for commit and abort alike."""


ASK_AGAIN = frozenset({NextStep.AGAIN, NextStep.ELSEWHERE})


def next_step(code: int) -> NextStep | None:
    """Return what to do after a coordinator's error code; ``None`` if a person has to."""
    if code in _MEANING:
        return _MEANING[code]
    return NextStep.AGAIN if is_retriable(code) else None

"""Kafka's error codes and kafka-python's exceptions, said in the package's own words.

Error codes are those of ``org.apache.kafka.common.protocol.Errors``. Nothing here decides what
to do about a transaction (that is ``coordinator``); it only names what went wrong and what helps.
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

from airflow_eos.errors import (
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    RowError,
    TopicError,
    TransactionError,
)
from airflow_eos.tally import RETRY_COUNTS

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
    """``PRODUCER_FENCED (90)``: the name by which Kafka's documentation knows the code."""
    return f"{kafka_errors.for_code(code).message} ({code})"


def said(answer: int | KafkaUnavailableError) -> str:
    """What kept us waiting, an error code or the lack of an answer, and why, for a message."""
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
"""Of answers that pass: what it takes where they do not."""


def first_code(codes: Iterable[int]) -> int:
    """The one that an answer holds; one without any says nothing, and is asked for again."""
    return int(next(iter(codes), COORDINATOR_NOT_AVAILABLE))


def is_retriable(code: int) -> bool:
    """Whether Kafka itself marks the error as one that passes (``RetriableException``)."""
    return issubclass(kafka_errors.for_code(code), kafka_errors.RetriableError)


def refusal(
    code: int, doing: str, *, acl: str, otherwise: type[KafkaError] = KafkaError
) -> KafkaError:
    """The error to raise when a broker refused for good.

    Args:
        code: Kafka's error code.
        doing: what was asked, as in "while listing transactions".
        acl: operation and resource that the request needs, as in "Write on TransactionalId 'a'".
        otherwise: the class to use where the code is not about authorization.
    """
    kind = _AUTHORIZATION.get(code)
    if kind is not None:
        return kind(
            f"Kafka answered {error_name(code)} {doing}. "
            f"The principal of this connection needs the ACL {acl}: grant it and run again."
        )
    return otherwise(f"Kafka answered {error_name(code)} {doing}.")


def of_a_row(code: int) -> bool:
    """Whether the broker refused a row for what it is: sent again, it is refused again."""
    return code in _ROWS


def row_refused(
    code: int, where: str, *, row: str = "", timestamp_ms: int | None = None, said: str = ""
) -> RowError:
    """The error to raise for a row that the broker does not take.

    Args:
        code: one of those that are :func:`of_a_row`.
        where: "while writing to partition 0 of topic 'orders'".
        row: which one, for people, where that is known.
        timestamp_ms: of the row, where it is known.
        said: the broker's own words.
    """
    why, remedies = _ROWS[code]
    which = f" {row}" if row else ""
    if code == INVALID_TIMESTAMP and timestamp_ms is not None:
        which += f" of timestamp {timestamp_ms} ms"
        with suppress(OverflowError, ValueError):  # a year that Python has no date for
            which += f" ({dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC):%F %T} UTC)"
    told = f" The broker says: {said}." if said else ""
    return RowError(
        f"Kafka answered {error_name(code)} for a row{which} {where}: {why}.{told}", *remedies
    )


_ROWS: dict[int, tuple[str, tuple[Remedy, ...]]] = {
    MESSAGE_TOO_LARGE: (
        "its record batch is larger than the topic's max.message.bytes",
        (
            Remedy(change="send less in one row", start=True),
            Remedy(change="raise the topic's max.message.bytes", start=True),
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
    """Whether a partition's leader has answered; False: ask again, it may be another one by now.

    Raises:
        TopicError, KafkaError: refused for good; the arguments are those of :func:`refusal`.
    """
    if code == NONE:
        return True
    if is_retriable(code):
        return False
    raise refusal(code, doing, acl=acl)


def connection_lost(cause: object) -> BaseException:
    """As kafka-python itself says that a connection has ended."""
    lost: BaseException = kafka_errors.KafkaConnectionError(cause)
    return lost


def is_authentication(error: BaseException) -> bool:
    """Whether repeating cannot help: broker, TLS or token endpoint do not accept who we are."""
    if isinstance(error, KafkaError):
        return not isinstance(error, KafkaUnavailableError)  # said by our own token provider
    return (
        isinstance(error, _NOT_AUTHENTICATED)
        or isinstance(error.__context__, ssl.SSLCertVerificationError)
        or _is_certificate_alert(error)
    )


def _is_certificate_alert(error: BaseException) -> bool:
    # With TLS 1.3 a client's handshake is over before the broker has looked at its certificate:
    # the refusal is an alert met by the first read, which kafka-python wraps (RFC 8446, 6.2).
    wrapped = error.args[0] if error.args else None
    reason = str(wrapped.reason) if isinstance(wrapped, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def translated(error: BaseException, servers: str, message: str = "") -> BaseException:
    """kafka-python's exception as one of ours; ``message`` is what was sent, by Kafka's name of it.

    What is neither a network nor an authentication fault (a programming error) stays as it is.
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
    """No answer within the time allowed; says whom we asked and what to check.

    And what: servers that do not speak a message close the connection at it, some of them.
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
# Nowhere else in this room does time pass for whoever asks again, so the model of ``tests/model``
# can step it: there a pause costs nothing, and three of them use up a minute.
#
# Not with tenacity, which repeats one function until it succeeds. What is asked again here becomes
# less with each round (those that were answered are left out), has what is left as its own timeout,
# and is named in the error. With tenacity each of these would be a callback, and its clock one more
# that the model has to step.


ANSWER_S = 10.0
"""An answer that takes longer counts as lost: a stopped broker's role has moved by then."""
SHORTLY_S = 0.002
"""The first pause where the answer is likely to be there in a moment."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25


class Deadline:
    """A moment in so many seconds, and the pauses until then, each twice as long as the last."""

    __slots__ = ("_ends_at", "_pause_s", "_seconds")

    def __init__(self, seconds: float, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._pause_s = first_pause_s

    def __str__(self) -> str:
        """For the error: how long was allowed."""
        return f"{self._seconds:g} s"

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._ends_at

    @property
    def remaining(self) -> float:
        """Seconds that are left, never zero, which means "no limit" to those who are given it."""
        return max(self._ends_at - time.monotonic(), 0.001)

    @property
    def answer_s(self) -> float:
        """How long to wait for one answer: at most :data:`ANSWER_S`."""
        return min(self.remaining, ANSWER_S)

    def pause(self) -> bool:
        """Wait before asking again; False, at once, where the time would be up by then."""
        if time.monotonic() + self._pause_s > self._ends_at:
            return False
        RETRY_COUNTS["kafka"] += 1
        wait(self._pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - only spreads retries
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


def wait(seconds: float) -> None:
    """Let that much time pass: for what takes its time whatever was allowed."""
    time.sleep(seconds)


# --- next step ------------------------------------------------------------------------------------
# What each answer of a transaction coordinator asks for, once: the table of ``docs/protocol.md``.
#
# The same table serves commit and abort: where the transaction has ended the other way, it is not
# ours to act on, and the log tells what became of it.


class NextStep(enum.Enum):
    """What to do with a coordinator's answer."""

    DONE = enum.auto()
    """It is as asked."""
    LOOK = enum.auto()
    """This coordinator cannot tell what became of the transaction: ask the log."""
    AGAIN = enum.auto()
    """The same coordinator will know in a moment."""
    ELSEWHERE = enum.auto()
    """Find the coordinator anew, then ask it."""


_MEANING = {
    NONE: NextStep.DONE,
    # Just ending, by us or by its timeout, or the id is being taken: the next answer will tell.
    CONCURRENT_TRANSACTIONS: NextStep.AGAIN,
    # EndTxn while the broker begins to abort by timeout: Kafka 4.3 throws IllegalStateException
    # ("pending state PREPARE_EPOCH_FENCE", TransactionMetadata.prepareTransitionTo).
    UNKNOWN_SERVER_ERROR: NextStep.AGAIN,
    COORDINATOR_LOAD_IN_PROGRESS: NextStep.AGAIN,
    COORDINATOR_NOT_AVAILABLE: NextStep.ELSEWHERE,
    NOT_COORDINATOR: NextStep.ELSEWHERE,
    TRANSACTION_COORDINATOR_FENCED: NextStep.ELSEWHERE,
    # Ended the other way (commit after abort, abort after commit), or never begun.
    INVALID_TXN_STATE: NextStep.LOOK,
    # Timed out under EndTxn v4 and below, or the id was taken again since: either may follow a
    # commit whose answer was lost, so these say nothing about what became of the rows.
    PRODUCER_FENCED: NextStep.LOOK,
    INVALID_PRODUCER_EPOCH: NextStep.LOOK,
    UNKNOWN_PRODUCER_ID: NextStep.LOOK,
    # transactional.id.expiration.ms has passed, and with it the coordinator's memory.
    INVALID_PRODUCER_ID_MAPPING: NextStep.LOOK,
}
"""Every answer of ``docs/protocol.md``, for commit and abort alike."""


ASK_AGAIN = frozenset({NextStep.AGAIN, NextStep.ELSEWHERE})


def next_step(code: int) -> NextStep | None:
    """What an error code of a coordinator asks for; ``None``: it needs a person."""
    if code in _MEANING:
        return _MEANING[code]
    return NextStep.AGAIN if is_retriable(code) else None

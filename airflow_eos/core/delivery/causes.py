"""The innermost cause of an app's failure, in one sentence, and whether a restart heals it.

Spark names an error by a *condition*, ``[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE]``, and gives each
condition a SQLSTATE, whose first two characters tell its class. Errors are wrapped many times on
their way (a task's, a stage's, a batch's, the query's); the last one named is the first that
happened. Three answers: healed by a restart, never healed by one, and *not known*, which is
restarted as often as the restart strategy says.

The sentence is ours, made from the condition alone: Spark's own may hold rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_eos import errors
from airflow_eos.errors import NO_RETRY_HEALS, EosError


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of an app's failure.

    Attributes:
        kind: the innermost condition, or the exception's name.
        says: one sentence on what went wrong.
        restart_heals: whether a restart heals it; None where nobody knows.
    """

    kind: str
    says: str
    restart_heals: bool | None = None

    @property
    def is_of_what_is_gone(self) -> bool:
        """Whether rows or state that the app was to read are gone, which is no fault of the app."""
        return self.says in (_LOST, _DATA_LOSS)

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}"


_STATE = (
    "the state in the checkpoint has another form than the query. Put the former query back, or "
    "begin with a new checkpoint"
)
_LOST = "files of the state are gone from the checkpoint, or damaged. Restore them from a copy"
_OTHER_SPARK = "the checkpoint was written in a form that this Spark does not read"
_MEMORY = "memory was short"
_AWAY = "something that the app asks did not answer"
_EXECUTOR = "an executor was lost"
_NO_ROOM = "a disk is full: make room on the checkpoint's, or on that of Spark's local folders"
_JAR = "a class is missing or of another version: look at the app's jars and packages"
_MODULE = "a Python module is missing where it is needed: look at the app's environment"
_DENIED = "access is denied: look at the rights of the user that Spark runs as"
_DATA_LOSS = (
    "rows that were to be read are gone from Kafka (retention, or a topic made anew): a person "
    "decides whether to go on without them"
)

_PERSON: dict[str, str] = {
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": _STATE,
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": _STATE,
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION": _STATE,
    "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE": _STATE,
    "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE": _STATE,
    "CANNOT_LOAD_STATE_STORE.KEY_ROW_FORMAT_VALIDATION_FAILURE": _STATE,
    "CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE": _STATE,
    "TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE": _STATE,
    "STATE_STORE_UNSUPPORTED_OPERATION": "the store of the state cannot do what the query asks for",
    "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY": _STATE,
    "STATE_STORE_UNKNOWN_INTERNAL_COLUMN_FAMILY": _OTHER_SPARK,
    "CANNOT_LOAD_STATE_STORE.INVALID_CHANGE_LOG_READER_VERSION": _OTHER_SPARK,
    "CANNOT_LOAD_STATE_STORE.INVALID_CHANGE_LOG_WRITER_VERSION": _OTHER_SPARK,
    "CANNOT_LOAD_STATE_STORE.CANNOT_FIND_BASE_SNAPSHOT_CHECKPOINT": _LOST,
    "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS": _LOST,
    "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE": _LOST,
    "CANNOT_LOAD_STATE_STORE.SNAPSHOT_PARTITION_ID_NOT_FOUND": _LOST,
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED": _LOST,
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY": _LOST,
    "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER.ERROR_LOADING_CLASS": _JAR,
    "INVALID_LOG_VERSION": _OTHER_SPARK,
    "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED": _OTHER_SPARK,
    "STREAMING_UNFINISHED_REPARTITION_DETECTED": "a repartition of the state was not finished",
    "KAFKA_DATA_LOSS": _DATA_LOSS,
    "ClassNotFoundException": _JAR,
    "NoClassDefFoundError": _JAR,
    "NoSuchMethodError": _JAR,
    "UnsupportedClassVersionError": "the jars are of a newer Java than this one",
    "AccessControlException": _DENIED,
    "AccessDeniedException": _DENIED,
    "ClusterAuthorizationException": _DENIED,
    "GroupAuthorizationException": _DENIED,
    "TopicAuthorizationException": _DENIED,
    "OffsetOutOfRangeException": _DATA_LOSS,
    "UnsupportedOperationException": "the query asks for what Spark does not support",
    "JAVA_GATEWAY_EXITED": "no Java was found, or it ended at once: install Java 17, set JAVA_HOME",
    "ModuleNotFoundError": _MODULE,
    "ImportError": _MODULE,
    "SyntaxError": "the app is no Python that this interpreter reads",
    "NameError": "the app names what there is none of",
}
"""Conditions (with all below them) and exceptions that the next start meets again."""

_RESTART: dict[str, str] = {
    "CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER": "the store did not answer",
    "CANNOT_LOAD_STATE_STORE.HDFS_STORE_PROVIDER_OUT_OF_MEMORY": _MEMORY,
    "CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY": _MEMORY,
    "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR": "a former task still held the state",
    "CONCURRENT_STREAM_LOG_UPDATE": "another driver wrote the same entry",
    "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS": "a table was altered since the query was planned",
    "SPARK_JOB_CANCELLED": "the job was cancelled",
    "UNABLE_TO_ACQUIRE_MEMORY": _MEMORY,
    "OutOfMemoryError": _MEMORY,
    "ExecutorLostFailure": _EXECUTOR,
    "FetchFailedException": "rows of a lost executor were to be fetched",
    "FetchFailed": "rows of a lost executor were to be fetched",
    "ConnectException": _AWAY,
    "NoRouteToHostException": _AWAY,
    "SocketTimeoutException": _AWAY,
    "TimeoutException": _AWAY,
}
"""Conditions and exceptions that have passed by the next start, or may have."""

_OURS = "airflow_eos.errors."
_OURS_FOR_A_PERSON = frozenset(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, NO_RETRY_HEALS)
)
"""Our errors for a person; a task's error reaches the driver as text, with the full class name."""

_SQLSTATES: dict[str, str] = {
    "0A": "the query asks for what Spark does not support",
    "22": "a value does not fit what the query does with it, and the same rows come again",
    "42": "Spark refuses the query as it is",
    "46": "a class or a setting cannot be used as it is given",
    "54": "a limit is exceeded that the next start has, too",
    "56038": "what the query needs is not available here",
}
"""Meanings of a SQLSTATE's first characters; a restart never heals these."""

_WRAPPERS = frozenset(
    {
        "FAILED_EXECUTE_UDF",
        "FOREACH_BATCH_USER_FUNCTION_ERROR",
        "FOREACH_USER_FUNCTION_ERROR",
        "PYTHON_EXCEPTION",
        "STAGE_MATERIALIZATION_MULTIPLE_FAILURES",
        "STREAM_FAILED",
        "TASK_WRITE_FAILED",
    }
)
_NAMED = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_]{2,}(?:\.[A-Z0-9_]+)*)\]"
    rf"|\b(?P<ours>{re.escape(_OURS)}[A-Z]\w*)\b"
    r"|\b(?P<exception>[A-Z]\w*(?:Exception|Error)|ExecutorLostFailure|FetchFailed)\b(?=[:\s]|$)",
    re.ASCII,
)
_SQLSTATE = re.compile(r"SQLSTATE: ([0-9A-Z]{5})", re.ASCII)
_DEEP = 20
_LONG = 100_000
"""Characters of an error that are searched: a trace has a few thousand."""


def cause_of(error: BaseException) -> Cause:
    """Return the innermost cause; of an error of ours, its text: no secret is in it, but advice."""
    name = type(error).__name__
    if isinstance(error, EosError):
        return Cause(name, str(error), False if isinstance(error, NO_RETRY_HEALS) else None)
    texts = list(_texts(error))
    named = [each for text in texts for each in _named(text)]
    kind, sqlstate = named[-1] if named else (name, None)
    if kind.startswith(_OURS):
        kind = kind.removeprefix(_OURS)
        heals = False if kind in _OURS_FOR_A_PERSON else None
        return Cause(kind, "the driver's log says what was found, and what to do", heals)
    found = _known(kind, sqlstate)
    if found is None:  # a file that is missing, say: a condition before it tells what it held
        conditions = (name for name, _ in reversed(named) if name.isupper())
        found = next(filter(None, map(_by_name, conditions)), None)
    if found is None and any("No space left on device" in text for text in texts):
        found = Cause(kind, _NO_ROOM)
    return found or Cause(kind, "see the driver's log")


def _by_name(kind: str) -> Cause | None:
    for name in (kind, kind.split(".")[0]):
        if name in _RESTART:
            return Cause(kind, _RESTART[name], restart_heals=True)
        if name in _PERSON:
            return Cause(kind, _PERSON[name], restart_heals=False)
    return None


def _known(kind: str, sqlstate: str | None) -> Cause | None:
    found = _by_name(kind)
    if found is not None:
        return found
    for length in (2, 5):
        says = _SQLSTATES.get(sqlstate[:length]) if sqlstate else None
        if says is not None:
            return Cause(kind, f"{says} (SQLSTATE {sqlstate})", restart_heals=False)
    return None


def _named(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the conditions and exceptions of a text in order, conditions with their SQLSTATE."""
    found = list(_NAMED.finditer(text[:_LONG]))
    ends = [*(each.start() for each in found[1:]), len(text)]
    for each, end in zip(found, ends[: len(found)], strict=True):
        condition = each["condition"]
        if condition in _WRAPPERS:
            continue
        state = _SQLSTATE.search(text, each.end(), end)
        if condition is None:
            yield each["ours"] or each["exception"], None
        elif state is not None or _known(condition, None) is not None:
            yield condition, state[1] if state else None


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the texts of an error and its causes, the innermost last; Spark's causes are Java's."""
    java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    yield f"{type(error).__name__}: {error}"
    try:
        for _ in range(_DEEP):
            if java is None:
                break
            yield str(java.toString())
            java = java.getCause()
    except Exception:  # noqa: BLE001 - the JVM may be gone: what is known must do
        return

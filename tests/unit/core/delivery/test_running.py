"""A running query: its errors, innermost cause first, while it drains, and its notes on state."""

from __future__ import annotations

import json
import re
import threading
import traceback
import zipfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from airflow_eos.core.checkpoint.progress import StateSize
from airflow_eos.core.delivery import causes
from airflow_eos.core.delivery.causes import cause_of
from airflow_eos.core.delivery.query import Drained, ExactlyOnceQuery, GuardedBatch, Stopped
from airflow_eos.errors import (
    ConfigurationError,
    KafkaUnavailableError,
    OwnershipError,
    RowError,
    SupersededError,
)
from airflow_eos.sinks.app import run_app


class Heart:
    """What a query asks of its heartbeat, and what it tells it at the end."""

    def __init__(self) -> None:
        self.draining, self.superseded = threading.Event(), threading.Event()
        self.said: list[Any] = []

    def begin(self, batch_id: int) -> None: ...

    def fail(self, batch_id: int, error: BaseException) -> None: ...

    def stop(self, phase: str, error: BaseException | None = None) -> None:
        self.said.append((phase, type(error)))

    def hold_still(self) -> None: ...


class Spark:
    """A query that ends as it is told."""

    isActive = False  # noqa: N815 - Spark's name

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def awaitTermination(self, _timeout: int | None = None) -> bool:  # noqa: N802 - Spark's name
        if self.error is not None:
            raise self.error
        return True

    def stop(self) -> None: ...


@pytest.fixture
def heart() -> Heart:
    return Heart()


def query(heart: Heart, error: BaseException | None, batch: Any = None) -> Any:
    run = GuardedBatch(batch or (lambda *_: None), heart)  # type: ignore[arg-type]
    return ExactlyOnceQuery(Spark(error), run, heart, ExitStack()), run  # type: ignore[arg-type]


def test_a_query_that_fails_while_it_drains_is_not_green(heart):
    """Its source, its state or its plan: errors that no batch of ours has seen."""
    heart.draining.set()
    made, _ = query(heart, RuntimeError("offsets are gone"))
    with pytest.raises(RuntimeError, match="offsets are gone"):
        made.awaitTermination()
    assert heart.said == [("failed", RuntimeError)]


def test_a_batch_that_is_left_to_the_next_start_is_how_spark_tells_of_a_drain(heart):
    made, run = query(heart, RuntimeError("[FOREACH_BATCH_USER_FUNCTION_ERROR]"))
    heart.draining.set()
    with pytest.raises(Drained):
        run(SimpleNamespace(), 7)
    assert made.awaitTermination() is True
    assert heart.said == [("stopped", type(None))]


def test_a_driver_has_ended_as_soon_as_it_has_left_a_batch(heart):
    """Spark plans nothing more, and takes its time to come to rest: who stands by takes over."""
    _made, run = query(heart, None)
    heart.draining.set()
    with pytest.raises(Drained):
        run(SimpleNamespace(), 7)
    assert heart.said == [("stopped", type(None))]


def test_who_is_interrupted_while_it_holds_still_has_closed_its_connections(heart, monkeypatch):
    def ctrl_c() -> None:
        assert heart.said == [("stopped", type(None))]
        raise KeyboardInterrupt

    monkeypatch.setattr(heart, "hold_still", ctrl_c)
    closed: list[bool] = []
    made, _ = query(heart, None)
    made._resources.callback(lambda: closed.append(True))
    with pytest.raises(KeyboardInterrupt):
        made.stop()
    assert closed


def test_a_batch_that_fails_while_it_drains_is_raised(heart):
    def fails(*_: Any) -> None:
        heart.draining.set()
        raise RowError("too big")

    made, run = query(heart, RuntimeError("[FOREACH_BATCH_USER_FUNCTION_ERROR]"), fails)
    run.is_wanted = lambda: True  # a drain lets the batch end
    with pytest.raises(RowError):
        run(SimpleNamespace(), 7)
    with pytest.raises(RowError):
        made.awaitTermination()
    assert heart.said == [("failed", RowError)]


def test_what_a_stopped_batch_ends_with_is_short_and_an_interruption_to_spark(heart):
    """Spark's own expression overflows its stack on the text of a cancelled job."""

    def is_cancelled(*_: Any) -> None:
        raise RuntimeError("Job 7 cancelled" + "\n\tat org.apache.spark.Frame" * 1000)

    made, run = query(heart, None, is_cancelled)
    with pytest.raises(Stopped) as raised:
        run(SimpleNamespace(), 7)
    text = "".join(traceback.format_exception(raised.value))
    assert re.search(
        r"py4j\.protocol\.Py4JJavaError: An error occurred while calling"
        r"((.|\r\n|\r|\n)*)(java\.lang\.InterruptedException)",
        text,
    )
    assert len(text) < 1500, "what was cancelled is told with it"
    assert made.awaitTermination() is True


def test_a_query_that_has_failed_is_not_finished_by_a_stop(heart):
    """As with ``while query.isActive`` and a stop at the end: who stood by would leave."""
    made, _ = query(heart, RuntimeError("offsets are gone"))
    made.stop()
    assert heart.said == [("failed", RuntimeError)]


def test_a_query_that_has_read_all_is_finished_also_by_a_stop(heart):
    made, _ = query(heart, None)
    made.stop()
    assert heart.said == [("stopped", type(None))]


@pytest.mark.parametrize("between", [True, False], ids=["between two batches", "before one"])
def test_a_query_that_ends_because_it_was_superseded_says_so(heart, between):
    made, run = query(heart, None if between else RuntimeError("[FOREACH_BATCH]"))
    heart.superseded.set()
    heart.draining.set()
    if not between:
        with pytest.raises(Drained):
            run(SimpleNamespace(), 7)
    with pytest.raises(SupersededError, match="taken this checkpoint over"):
        made.awaitTermination()
    assert heart.said == [("failed", SupersededError)]


# --- What an app failed with, innermost: what no restart heals is told from what one may ----------


SECRET = "hunter2"
STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage "
    "failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0 "
    "(TID 7) (h executor 1): {} SQLSTATE: XXKST"
)
TRACE = "\n\tat org.apache.spark.SparkException$.internalError(SparkException.scala:107)\n"
SCHEMA = (
    "org.apache.spark.sql.execution.streaming.StateStoreKeySchemaNotCompatible: "
    "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match: " + SECRET + " "
    "SQLSTATE: XXKST" + TRACE
)


def stream(inner: str) -> Exception:
    return RuntimeError(STREAM.format(inner))


# By the condition of Spark's own in brackets, or by the class: whether a restart heals it.
CONDITIONS: dict[bool | None, list[Exception]] = {
    False: [
        stream(SCHEMA),
        stream(SCHEMA.replace("_KEY_", "_VALUE_")),
        RuntimeError(f"[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: {STREAM.format(SCHEMA)}"),
        RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] `t` SQLSTATE: 42P01; 'Project"),
        RuntimeError("[UNRESOLVED_COLUMN.WITH_SUGGESTION] `x` SQLSTATE: 42703"),
        RuntimeError("[DATA_SOURCE_NOT_FOUND] kafka SQLSTATE: 42K02"),
        stream(f"[CAST_INVALID_INPUT] '{SECRET}' SQLSTATE: 22018"),
        stream("[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] x SQLSTATE: 42KDE"),
        RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"),
        stream("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost."),
        stream(  # what Spark met below says less than its own condition
            "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] x SQLSTATE: 58030"
            f"{TRACE}Caused by: java.io.FileNotFoundException: File /c/state/0/1/2.delta"
        ),
    ],
    True: [
        stream("[UNABLE_TO_ACQUIRE_MEMORY] 1 byte SQLSTATE: 53200"),
        stream("[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] x SQLSTATE: 58030"),
    ],
    None: [stream("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] x SQLSTATE: 58030")],
}
CLASSES: dict[bool | None, dict[str, Exception]] = {
    False: {
        # a task's error is a text for the driver
        "RowError": stream("Traceback ...\nairflow_eos.errors.RowError: column 'value' is double"),
        "TimeoutBudgetError": stream("\nairflow_eos.errors.TimeoutBudgetError: x"),
        "NoClassDefFoundError": RuntimeError("java.lang.NoClassDefFoundError: org/x"),
        "ClassNotFoundException": RuntimeError("java.lang.ClassNotFoundException: org.x"),
        "AccessControlException": stream(
            "org.apache.hadoop.security.AccessControlException: denied"
        ),
        "ModuleNotFoundError": ModuleNotFoundError("No module named 'x'"),
        "OwnershipError": OwnershipError("of another"),
    },
    True: {
        "OutOfMemoryError": stream(f"{SCHEMA}Caused by: java.lang.OutOfMemoryError: Java heap"),
        "ConnectException": stream(
            "[UNRESOLVED_ROUTINE] x SQLSTATE: 42883\nCaused by: java.net.ConnectException: no"
        ),
        "ExecutorLostFailure": stream("ExecutorLostFailure (executor 1 exited) Reason: gone"),
        "FetchFailedException": stream("org.apache.spark.shuffle.FetchFailedException: gone"),
    },
    None: {
        "KafkaUnavailableError": stream("\nairflow_eos.errors.KafkaUnavailableError: x"),
        "RowError": stream("\nlibrary.errors.RowError: of somebody else's"),
        "UnknownHostException": stream(
            f"[TABLE_OR_VIEW_NOT_FOUND] `t` SQLSTATE: 42P01{TRACE}"
            "Caused by: java.net.UnknownHostException: metastore"
        ),
        "OddException": stream(
            "[UNRESOLVED_ROUTINE] x SQLSTATE: 42883\nCaused by: org.x.OddException: no"
        ),
        "RuntimeError": stream("FetchFailed(null, shuffleId=0)"),
        "ValueError": ValueError(SECRET),
        "KeyError": KeyError("[INFO] all is well"),
    },
}
CAUSES = [
    *(
        (each, re.findall(r"\[([A-Z_]+(?:\.[A-Z_]+)*)\]", str(each))[-1], heals)
        for heals, errors in CONDITIONS.items()
        for each in errors
    ),
    *((each, kind, heals) for heals, errors in CLASSES.items() for kind, each in errors.items()),
    (KafkaUnavailableError("away"), "KafkaUnavailableError", None),
]


@pytest.mark.parametrize(("error", "kind", "heals"), CAUSES)
def test_the_innermost_class_decides_and_what_is_not_known_is_not_judged(error, kind, heals):
    found = cause_of(error)
    assert (found.kind, found.restart_heals) == (kind, heals)
    assert SECRET not in str(found)
    assert "STREAM_FAILED" not in str(found)
    assert len(str(found)) < 300


def test_a_disk_that_is_full_under_spark_is_said():
    said = "[STREAM_FAILED] Query x terminated: java.io.IOException: No space left on device"
    found = cause_of(RuntimeError(f"{said} SQLSTATE: XXKST"))
    assert (found.kind, found.restart_heals) == ("IOException", None)
    assert "make room" in found.says


def test_causes_of_java_are_looked_through_and_a_jvm_that_is_gone_is_no_error():
    class Java:
        def __init__(self, said: str, cause: Java | None) -> None:
            self.said, self.cause = said, cause

        def toString(self) -> str:  # noqa: N802 - Java's
            return self.said

        def getCause(self) -> Java | None:  # noqa: N802 - Java's
            if self.said == "gone":
                raise ConnectionError
            return self.cause

    class CapturedError(Exception):
        def __init__(self, origin: Java) -> None:
            super().__init__("[STREAM_FAILED] x SQLSTATE: XXKST")
            self._origin = origin

    memory = Java("java.lang.OutOfMemoryError: heap", None)
    assert cause_of(CapturedError(Java("org.x.AException: y", memory))).kind == "OutOfMemoryError"
    assert cause_of(CapturedError(Java("gone", memory))).restart_heals is None


def sparks_own() -> dict[str, str | None]:
    """Conditions of the Spark that is installed, those below them, and their SQLSTATE."""
    jars = Path(pyspark.__file__).parent / "jars"
    (jar,) = jars.glob("spark-common-utils_2.*.jar")
    with zipfile.ZipFile(jar) as archive:
        conditions = json.loads(archive.read("error/error-conditions.json"))
    below = {
        f"{name}.{each}": said.get("sqlState")
        for name, said in conditions.items()
        for each in said.get("subClass", {})
    }
    return {name: said.get("sqlState") for name, said in conditions.items()} | below


def test_every_condition_of_the_table_is_one_of_sparks_and_each_of_sparks_has_an_answer():
    conditions = sparks_own()
    own = {
        name for name in (*causes._PERSON, *causes._RESTART, *causes._WRAPPERS) if name.isupper()
    }
    newest = pyspark.__version__ >= "4.2"  # an older one lacks some
    if newest:
        assert own - conditions.keys() <= {"KAFKA_DATA_LOSS", "JAVA_GATEWAY_EXITED"}, (
            "the connector's, pyspark's"
        )
    counted = {True: 0, False: 0, None: 0}
    for name, state in conditions.items():
        if name in causes._WRAPPERS or not state:
            continue
        found = cause_of(RuntimeError(f"[{name}] x SQLSTATE: {state}"))
        assert found.kind in (name, "RuntimeError")
        counted[found.restart_heals] += 1
    assert counted[False] > 600
    assert counted[None] > 30
    assert counted[True] > (6 if newest else 5)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("[DATA_SOURCE_NOT_FOUND] x SQLSTATE: 42K02"), 78),
        (ModuleNotFoundError("No module named 'x'"), 78),
        (ConfigurationError("no"), 78),
        (KafkaUnavailableError("away"), 1),
    ],
)
def test_an_app_that_fails_before_its_first_heartbeat_says_by_its_status_that_it_is_for_good(
    error, status, capsys
):
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_app(main)
    assert ended.value.code == status
    assert type(error).__name__ in capsys.readouterr().err


def test_what_is_not_known_goes_on_as_an_error_of_python():
    def main() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        run_app(main)


# --- What Spark's progress says of state, as a note for people ------------------------------------


def operator(**other):
    return {
        "numRowsTotal": 1000,
        "memoryUsedBytes": 5_000_000,
        "allUpdatesTimeMs": 40,
        "allRemovalsTimeMs": 2,
        "commitTimeMs": 300,
        "numStateStoreInstances": 4,
        "customMetrics": {},
        **other,
    }


def progress(*operators, recent=(), batch=7):
    """Spark's query, as far as its progress tells of state."""
    last = {
        "batchId": batch,
        "stateOperators": list(operators),
        "durationMs": {"triggerExecution": 900},
    }
    jvm = SimpleNamespace(recentProgress=lambda: recent)
    return SimpleNamespace(lastProgress=last, _jsq=jvm)


def test_a_query_without_state_or_without_a_batch_has_none():
    assert StateSize.of(SimpleNamespace(lastProgress=None)) is None
    assert StateSize.of(progress()) is None


def test_operators_are_added_up():
    size = StateSize.of(progress(operator(), operator(numRowsTotal=1)))
    assert size is not None
    assert (size.batch_id, size.rows, size.tasks, size.batch_ms) == (7, 1001, 8, 900)
    assert (size.update_ms, size.commit_ms, size.file_bytes) == (84, 600, None)


def test_rocksdb_has_files():
    size = StateSize.of(progress(operator(customMetrics={"rocksdbSstFileSize": 123})))
    assert size is not None
    assert size.file_bytes == 123


def ended(batch: int, *dropped: int) -> SimpleNamespace:
    """A batch as Spark's own object tells it: late rows by operator."""
    operators = [SimpleNamespace(numRowsDroppedByWatermark=lambda n=each: n) for each in dropped]
    return SimpleNamespace(batchId=lambda: batch, stateOperators=lambda: operators)


def test_late_rows_are_counted_once_by_batch_over_all_drivers():
    first = StateSize.of(progress(operator(), recent=[ended(6, 2, 1), ended(7, 4)]))
    assert first is not None
    assert (first.late_rows, first.late_counted) == (7, 2)
    recent = [ended(6, 2, 1), ended(7, 4), ended(8, 0), ended(9, 5), ended(10, 100)]
    second = StateSize.of(progress(operator(), recent=recent, batch=9), first)
    assert second is not None
    assert (second.late_rows, second.late_counted) == (12, 4), "batch 10 is the next note's"
    assert StateSize.of(progress(operator(), recent=recent, batch=9), second) is None
    recent = [ended(10, 100), ended(12, 1)]
    third = StateSize.of(progress(operator(), recent=recent, batch=12), second)
    assert third is not None
    assert (third.late_rows, third.late_counted) == (113, 6), "of 13 batches: the others not known"

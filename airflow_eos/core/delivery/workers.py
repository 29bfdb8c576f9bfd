"""Checks and preparation of Spark's Python workers: can they run our tasks at all?

Spark starts its workers with ``python3`` of PATH unless it is told otherwise, which is not the
driver's Python where an environment is not activated. Without this check, the first batch shows it:
``ModuleNotFoundError`` under a hundred lines of a trace.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.log import Log
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = Log(__name__)

_WARM_S = 30.0
_FIRST_S = 40.0
"""Seconds of warm-ups: longer batches need them less, and the cluster is the running driver's."""
_DAEMON = "spark.python.daemon.module"
_OURS = f"{__package__}.worker_daemon"
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"different version: ([\d.]+) than that in driver: (\d+\.\d+)")
_NO_WORKER = re.compile(r"Error from python worker:\s*\n((?:[ \t]+\S.*\n)+)")


def check_workers(
    spark: SparkSession, *, modules: Sequence[str], ready: str = "", daemon: str = _OURS
) -> None:
    """Run one job with a task for each core, in which the workers import ``modules``.

    The workers are those of the batches, so imported modules stay imported.

    Args:
        spark: the session.
        modules: the names of the modules.
        ready: ``module:function``, called without arguments where no module is missing; it returns
            at once.
        daemon: the module that forks them; see :mod:`.worker_daemon`.

    Raises:
        ConfigurationError: the workers' interpreter does not start, has another minor version
            than the driver, or lacks a module; with its name, and what to set.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        found = _looked(spark, _looker(modules, ready), daemon)
    except (Py4JError, PySparkException) as error:
        trouble = _why_no_worker_ran(str(error), spark.sparkContext.pythonExec)
        if trouble is None:
            raise
        raise ConfigurationError(f"{trouble} {_what_to_set()}") from None
    for report in found:
        trouble = _trouble(**json.loads(report))
        if trouble:
            raise ConfigurationError(f"{trouble} {_what_to_set()}")


def _looked(spark: SparkSession, look: Callable[[int], str], daemon: str) -> list[str]:
    """Return what ``look`` returns in a worker for each core.

    As an Arrow function like a batch's, whose classes Java then has loaded and whose workers have
    imported what they need. Where that fails, as without pyarrow it does before ``look`` is called,
    as a plain one. It runs in the same workers, which an RDD's function would not.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812

    def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            reports = [look(row) for row in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"report": reports})

    cores = spark.sparkContext.defaultParallelism
    tasks = spark.range(cores, numPartitions=cores)
    forked_by_spark = fork_from_ours(spark, daemon)
    try:
        found = tasks.mapInArrow(in_arrow, "report string").collect()
    except (Py4JError, PySparkException):
        forked_by_spark()
        found = tasks.select(F.udf(look, "string", useArrow=False)("id")).collect()
    return [report for (report,) in found]


def fork_from_ours(spark: SparkSession, daemon: str) -> Callable[[], None]:
    """Let ``daemon`` fork the workers on the driver's machine; return what undoes it.

    Executors of their own have settings of their own, and fork as Spark does.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the settings that a local task goes by
    conf = jvm.org.apache.spark.SparkEnv.get().conf()
    if conf.contains(_DAEMON) or not Path(__file__).is_file():  # a zip that no daemon has
        return lambda: None
    conf.set(_DAEMON, daemon)

    def undo() -> None:
        conf.remove(_DAEMON)

    return undo


def are_beside(spark: SparkSession) -> bool:
    """Whether the workers are the driver's own, forked in milliseconds where one is wanted."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def meanwhile(act: Callable[[], None]) -> Callable[[], None]:
    """Do ``act`` in a thread; return what waits until it is done, and raises what it raised."""
    from pyspark import InheritableThread  # with the caller's pool and job group

    done: Future[None] = Future()

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    InheritableThread(target=run, name="airflow-eos-meanwhile", daemon=True).start()
    return done.result


class WarmUps:
    """Acts that warm a standby: each is done once, one after the other, until they are ended."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        self._left = list(acts)
        self.is_running = False
        """Whether one is being done: it takes the processor from whoever delivers."""

    def __bool__(self) -> bool:
        """Whether any are left."""
        return bool(self._left)

    def run(self, otherwise: Callable[[], None]) -> None:
        """Do one of those that are left, else ``otherwise``."""
        self.is_running = True  # before it is taken: who ends them sees it or takes it
        try:
            act = self._left.pop()
        except IndexError:
            act = otherwise
        try:
            act()
        finally:
            self.is_running = False

    def end(self) -> None:
        """Do no more of them; one may still be running."""
        self._left.clear()


@contextmanager
def kept_warm(check: Callable[[], None], *, first: WarmUps) -> Iterator[None]:
    """Do ``check`` every 30 s in the ``with``: a cluster takes back what was idle for a minute.

    In the background, since a cluster may let the check wait. What is in ``first`` is done there
    before, for up to 40 s.
    """
    over = threading.Event()

    def ask() -> None:
        until = time.monotonic() + _FIRST_S
        while not over.wait(0 if first else _WARM_S):
            try:
                first.run(otherwise=check)
            except Exception as error:  # noqa: BLE001 - they are colder, and that is all
                log.warning("workers_are_not_warm", error=str(error))
            if time.monotonic() > until:
                first.end()

    threading.Thread(target=ask, name="airflow-eos-warm", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _looker(modules: Sequence[str], ready: str) -> Callable[[int], str]:
    """Return a function that travels by value: a worker may have none of our modules."""

    def look(_row: int) -> str:
        import importlib
        import json
        import platform
        import socket
        import sys

        missing, broken = set(), []
        for name in modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                missing.add((error.name or name).partition(".")[0])
            except BaseException as error:  # noqa: BLE001 - it is reported, whatever it is
                broken.append(f"cannot import {name} ({type(error).__name__}: {error})")
        if "pyarrow" not in missing:
            from pyspark.sql.pandas.utils import require_minimum_pyarrow_version

            try:
                require_minimum_pyarrow_version()
            except ImportError as error:
                needed = str(error).rpartition("] ")[2].rstrip(".")
                broken.append(f"has no pyarrow that fits Spark ({needed})")
        if ready and not missing and not broken:
            module, _, function = ready.partition(":")
            getattr(importlib.import_module(module), function)()
        return json.dumps(
            {
                "host": socket.gethostname(),
                "python": sys.executable,
                "version": platform.python_version(),
                "missing": sorted(missing),
                "broken": broken,
            }
        )

    return look


def _trouble(
    *, host: str, python: str, version: str, missing: list[str], broken: list[str]
) -> str | None:
    if not missing and not broken:
        return None
    said = [f"lacks {', '.join(missing)}"] * bool(missing) + broken
    return (
        f"Spark's Python workers run {python} ({version}, on {host}), which {' and '.join(said)}."
    )


def _why_no_worker_ran(text: str, python: str) -> str | None:
    """Return why no worker started; None where the interpreter is not the reason."""
    if absent := _NO_PROGRAM.search(text):
        return f"Spark cannot start its Python workers: there is no program {absent[1]} to run."
    if other := _OTHER_PYTHON.search(text):
        return (
            f"Spark's Python workers run {python}, a Python {other[1]}, and the driver Python "
            f"{other[2]}: expected the same minor version."
        )
    if unable := _NO_WORKER.search(text):
        last = unable[1].strip().splitlines()[-1].strip()
        return f"Spark cannot start its Python workers with {python}: {last}."
    return None


def _what_to_set() -> str:
    return (
        "Set PYSPARK_PYTHON before the app starts (or spark.pyspark.python for spark-submit) to a "
        f"Python {sys.version_info.major}.{sys.version_info.minor} that has airflow-provider-eos "
        f"on every executor, or ship one (airflow-eos package --environment); this driver runs "
        f"{sys.executable}."
    )


# --- worker ---------------------------------------------------------------------------------------
# The tuning of a Spark Python worker that writes one batch after the other.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 256 * 1024 * 1024
_LARGEST_KEPT_BYTES = 32 * 1024 * 1024  # glibc takes no more: DEFAULT_MMAP_THRESHOLD_MAX


@functools.cache
def tune_process() -> None:
    """Tune garbage collection and memory of this process, once; called when a task has written.

    Not earlier: kafka-python makes a class of each message when it is first sent.

    * Spark collects garbage after each task (``daemon.py``), and looks at all of Arrow, NumPy and
      the Kafka client each time. What is loaded now stays, so it need not be looked at again
      (:func:`gc.freeze`).
    * Buffers of a megabyte go back to the kernel when they are freed, and each page of the next
      one is a fault. They are kept instead, at most 256 MiB, Arrow's among them. Only glibc has
      these settings; elsewhere nothing changes.
    """
    import pyarrow as pa

    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        pa.set_memory_pool(pa.system_memory_pool())

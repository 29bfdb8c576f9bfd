"""Dispatch to the Numba kernels once they are loaded, and to the NumPy kernels until then.

:mod:`.numba_kernels` takes a second to load. A process that is going to need it loads it on a
thread (:func:`warm`); until that is done :mod:`.numpy_kernels` does the same work, without a wait.
Where no machine code is cached yet, a separate process compiles first (:mod:`.compiling`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from threading import Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_eos.arrow.records import numpy_kernels
from airflow_eos.arrow.records.layout import I64, Garbled, Spans, Unpacked
from airflow_eos.core.log import Log

log = Log(__name__)

_LOOPS = ("scan", "scan_headers", "gather", "hash_bytes", "choose_partitions", "scatter")
_COMPILES_WITHIN_S = 600.0
_loading = Lock()
_loaded: list[Any] = []
"""The module of the compiled loops, once it is loaded."""


def warm(*, wait: bool = False) -> None:
    """Load the compiled loops on another thread, once; ``wait`` until they are loaded."""
    if not _loaded and _loading.acquire(blocking=False):
        thread = Thread(target=_load, name="airflow-eos-compiled", daemon=True)
        thread.start()
        if wait:
            thread.join()


def _load() -> None:
    try:
        found = compiled_loops()
        if not all(is_cached(getattr(found, name)) for name in _LOOPS):
            _compile_elsewhere()
        try_each(found)
    except ImportError:  # the extra is not installed: numpy does the work
        return
    except Exception as error:  # noqa: BLE001 - whatever ails the compiler, rows go on
        log.warning("without_compiled_loops", error=str(error))
        return
    _loaded.append(found)


def compiled_loops() -> Any:
    """Import the module of the compiled loops, and Numba (ImportError: no extra ``fast``)."""
    from airflow_eos.arrow.records import numba_kernels

    return numba_kernels


def is_cached(loop: Any) -> bool:
    """Whether a loop's machine code, of the present source, is in Numba's cache."""
    return bool(loop._cache._cache_file._load_index())  # noqa: SLF001 - no public way to ask


def _compile_elsewhere() -> None:
    """Compile in a separate process, niced: Numba compiles for seconds and blocks other threads.

    Raises:
        CalledProcessError, TimeoutExpired: compiling failed.
    """
    subprocess.run(
        [sys.executable, "-m", "airflow_eos.arrow.records.compiling"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_COMPILES_WITHIN_S,
        check=True,
    )


def try_each(compiled: Any) -> None:
    """Call each loop once, with the argument types of all later calls, so that it is compiled."""
    data, none = np.zeros(8, np.uint8), np.zeros(0, np.int64)
    data.flags.writeable = False
    starts = np.zeros(1, np.int64)
    compiled.scan(data, starts, *5 * [none], np.empty((8, 0), np.int64))
    compiled.scan_headers(data, none, none, np.empty((4, 0), np.int64))
    compiled.gather(data, none, none, np.zeros(1, np.int32), np.zeros(0, np.uint8))
    offsets = np.zeros(1, np.int32)
    offsets.flags.writeable = False
    no = np.zeros(0, np.bool_)
    compiled.hash_bytes(data, offsets, no, False, np.zeros(0, np.uint64))  # noqa: FBT003
    keys, values = (offsets, data, no), (offsets, data, no)
    targets, grid, out = np.zeros(0, np.uint32), np.zeros((6, 1), np.int64), np.zeros(0, np.uint8)
    compiled.choose_partitions(*keys, offsets, no, 0, 0, targets, starts)
    compiled.scatter(*keys, *values, none, targets, 0, 0, grid, grid, out)


def are_loaded() -> bool:
    """Whether the compiled loops are loaded and in use."""
    return bool(_loaded)


def spans_of(unpacked: Unpacked) -> Spans:
    """See :func:`airflow_eos.arrow.records.numpy_kernels.spans_of`."""
    if not _loaded:
        return numpy_kernels.spans_of(unpacked)
    out = np.empty((8, int(unpacked.counts.sum())), np.int64)
    garbled = _loaded[0].scan(
        unpacked.data,
        unpacked.starts,
        unpacked.counts,
        unpacked.base_offsets,
        unpacked.last_offsets,
        unpacked.base_times,
        unpacked.append_times,
        out,
    )
    if garbled >= 0:
        raise Garbled(garbled)
    return Spans(*out)


def header_spans_of(unpacked: Unpacked, found: Spans) -> tuple[I64, I64, I64, I64]:
    """See :func:`airflow_eos.arrow.records.numpy_kernels.header_spans_of`."""
    if not _loaded:
        return numpy_kernels.header_spans_of(unpacked, found)
    out = np.empty((4, int(found.header_counts.sum())), np.int64)
    places, counts = np.ascontiguousarray(found.headers), np.ascontiguousarray(found.header_counts)
    _loaded[0].scan_headers(unpacked.data, places, counts, out)
    return out[0], out[1], out[2], out[3]


def gathered(data: NDArray[np.uint8], places: I64, lengths: I64) -> tuple[Any, Any]:
    """Copy fields one after the other; return their offsets (one more than fields) and bytes."""
    if not _loaded:
        return numpy_kernels.gathered(data, places, lengths)
    ends = np.empty(len(places) + 1, np.int32)
    out = np.empty(int(np.maximum(lengths, 0).sum()), np.uint8)
    _loaded[0].gather(data, np.ascontiguousarray(places), np.ascontiguousarray(lengths), ends, out)
    return ends, out


def hash_bytes(
    data: Any, offsets: Any, valid: Any, hashes: Any, *, count_nulls: bool = False
) -> None:
    """See :func:`airflow_eos.arrow.records.numpy_kernels.hash_bytes`.

    ``count_nulls``: then hash also 1 where a row is null and 0 where not, Spark's ``isnull``.
    """
    if _loaded:
        _loaded[0].hash_bytes(data, offsets, valid, count_nulls, hashes)
        return
    numpy_kernels.hash_bytes(data, offsets, valid, hashes)
    if count_nulls:
        numpy_kernels.hash_ints((~valid).astype(np.int32), np.ones(len(valid), np.bool_), hashes)


def bytes_of(column: Any) -> tuple[Any, Any]:
    """Return the bytes of a column's values, and where each value begins in them."""
    _, edges, content = column.buffers()
    first, last = column.offset, column.offset + len(column) + 1
    offsets = (
        np.frombuffer(edges, np.int32)[first:last] if edges is not None else np.zeros(1, np.int32)
    )
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    # Read-only, as the loops were compiled for: they would be compiled again for writable arrays.
    offsets.flags.writeable = data.flags.writeable = False
    return data, offsets


def placed(*columns: Any) -> int:
    """See :func:`airflow_eos.arrow.records.numba_kernels.place`; the loops must be loaded."""
    return int(_loaded[0].choose_partitions(*columns))


def scattered(
    pieces: Any, sizes: I64, cuts: I64, *, now_ms: int, frame: int
) -> tuple[memoryview, I64]:
    """Encode the rows of each partition as runs of records.

    Return their bytes, and a column for each run: where it begins and ends, how many rows it has,
    and the first and the largest of their times. A partition has as many runs as ``cuts`` says, of
    which the last ones can be empty. The loops must be loaded; see
    :func:`airflow_eos.arrow.records.numba_kernels.scatter`.
    """
    state, runs = _loaded[0].begun(sizes, cuts)
    out = np.empty(int(sizes.sum()), np.uint8)
    for piece in pieces:
        _loaded[0].scatter(*piece, now_ms, frame, state, runs, out)
    return out.data, runs

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airflow_eos.arrow.records import numpy_kernels
from airflow_eos.arrow.records.numpy_kernels import Garbled, Spans

if TYPE_CHECKING:
    from airflow_eos.arrow.records.columns import Columns, Views
    from airflow_eos.arrow.records.decode import Unpacked


I64 = NDArray[np.int64]


_LOOPS = ("scan", "scan_headers", "gather", "encode", "hash_bytes", "place", "scatter")
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
        import structlog  # takes 0.2 s, which workers without a warning save

        structlog.get_logger(__name__).warning("without_compiled_loops", error=str(error))
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
    words, out = np.zeros((0, 2), np.uint64), np.zeros(0, np.uint8)
    words.flags.writeable = False
    views = words, data, no
    compiled.encode(*views, *views, none, starts, out, np.zeros(1, np.int64))
    targets, grid = np.zeros(0, np.uint32), np.zeros((6, 1), np.int64)
    compiled.place(offsets, data, offsets, 0, targets, np.zeros(1, np.int64), starts)
    compiled.scatter(offsets, data, offsets, data, targets, 0, grid, grid, out)


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


def hash_bytes(data: Any, offsets: Any, valid: Any, hashes: Any, *, told: bool = False) -> None:
    """See :func:`airflow_eos.arrow.records.numpy_kernels.hash_bytes`.

    ``told``: then hash also 1 where a row is null and 0 where not, Spark's ``isnull``.
    """
    if _loaded:
        _loaded[0].hash_bytes(data, offsets, valid, told, hashes)
        return
    numpy_kernels.hash_bytes(data, offsets, valid, hashes)
    if told:
        numpy_kernels.hash_ints((~valid).astype(np.int32), np.ones(len(valid), np.bool_), hashes)


def encoded(columns: Columns, cuts: Any) -> tuple[memoryview, I64] | None:
    """Encode the runs of :func:`.encode.encode_runs`; return their bytes, and where each begins.

    None where Arrow has to encode: loops not loaded, rows with headers, or several buffers.
    """
    both = (columns.keys, columns.values)
    if not _loaded or columns.headers is not None or any(len(c.buffers) > 1 for c in both):
        return None
    times = columns.timestamps
    edges = np.empty(len(cuts), np.int64)
    out = np.empty(int(columns.sizes().sum()), np.uint8)
    _loaded[0].encode(
        *_of_views(columns.keys),
        *_of_views(columns.values),
        np.empty(0, np.int64) if isinstance(times, int) else np.array(times, np.int64),
        np.asarray(cuts, np.int64),
        out,
        edges,
    )
    return out.data, edges


def placed(*columns: Any) -> int:
    """See :func:`airflow_eos.arrow.records.numba_kernels.place`; the loops must be loaded."""
    return int(_loaded[0].place(*columns))


def scattered(pieces: Any, sizes: I64, cuts: I64, frame: int) -> tuple[memoryview, I64]:
    """Encode the rows of each partition as runs of records; return bytes, and runs' edges, rows.

    A partition has as many runs as ``cuts`` says, of which the last ones can be empty. The loops
    must be loaded; see :func:`airflow_eos.arrow.records.numba_kernels.scatter`.
    """
    state, runs = _loaded[0].begun(sizes, cuts)
    out = np.empty(int(sizes.sum()), np.uint8)
    for piece in pieces:
        _loaded[0].scatter(*piece, frame, state, runs, out)
    return out.data, runs


def _of_views(views: Views) -> tuple[Any, Any, Any]:
    words = np.ascontiguousarray(views.words).view()
    data = np.frombuffer(views.buffers[0], np.uint8) if views.buffers else np.zeros(0, np.uint8)
    # The loops are compiled for read-only arrays: writable ones would have them compiled again.
    words.flags.writeable = data.flags.writeable = False
    nulls = np.zeros(0, np.bool_) if views.nulls is None else np.ascontiguousarray(views.nulls)
    return words, data, nulls

"""A Python worker of Spark, made ready to write one batch after the other."""

from __future__ import annotations

import ctypes
import functools
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT_BYTES = 256 * 1024 * 1024
_LARGEST_KEPT_BYTES = 32 * 1024 * 1024  # glibc takes no more: DEFAULT_MMAP_THRESHOLD_MAX


@functools.cache
def tune_process() -> None:
    """Tune garbage collection and memory of this process, once; call it when a task has written.

    Not before: kafka-python makes a class of each message when it is first sent.

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

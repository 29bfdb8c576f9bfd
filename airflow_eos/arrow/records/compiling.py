"""``python -m airflow_eos.arrow.records.compiling``: fill Numba's cache with the compiled loops.

Takes ten seconds of a core or more, at the lowest priority, so that it does not slow a running
stream. Run it where an environment for executors is built, and workers find the cache in it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from airflow_eos.arrow.records.kernels import compiled_loops, try_each

_NICEST = 19


def main() -> None:
    """Compile, one process of a user at a time; a process that waited finds the other's cache."""
    os.nice(_NICEST)
    lock = Path(tempfile.gettempdir()) / f"airflow-eos-compiling-{os.getuid()}.lock"
    # O_NOFOLLOW: anybody could have put a link there.
    taken = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(taken, fcntl.LOCK_EX)  # until this process ends
    try_each(compiled_loops())


if __name__ == "__main__":
    main()

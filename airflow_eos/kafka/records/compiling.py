"""``python -m airflow_eos.kafka.records.compiling``: fill Numba's cache with the compiled loops.

Takes ten seconds of a core or more, at the lowest priority, so that a stream that has begun does
not notice. Run it where an environment for executors is made, and workers find the cache in it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from airflow_eos.kafka.records.kernels import compiled_loops, try_each

_NICEST = 19


def main() -> None:
    """One process of a user at a time; who waited finds what the other one has cached."""
    os.nice(_NICEST)
    lock = Path(tempfile.gettempdir()) / f"airflow-eos-compiling-{os.getuid()}.lock"
    # Not through a link, which anybody could have put there.
    taken = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(taken, fcntl.LOCK_EX)  # until this process ends
    try_each(compiled_loops())


if __name__ == "__main__":
    main()

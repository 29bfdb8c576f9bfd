"""``python -m tests.traced``: the files of the package that a batch crosses, on a real broker.

A file counts where one of its functions is called between ``offsets/N`` and ``commits/N``, on the
driver or in a task; with its start, also from the first refusal on. Spark is left out: what it
calls in a worker is called here in one process (``tests/integration/hazards/direct.py``).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import airflow_eos
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import Direct

PACKAGE = Path(airflow_eos.__path__[0])


@contextmanager
def traced() -> Iterator[set[str]]:
    """The files whose functions are called meanwhile, on any thread that begins in it."""
    import threading

    found: set[str] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)) and frame.f_code.co_name != "<module>":
            found.add(Path(path).relative_to(PACKAGE).as_posix())

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main() -> None:
    """Two batches: the second one is as every later one."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        job = Direct(kafka.bootstrap_servers, Path(folder), kafka.create_topic("out", 2))
        job.feed_numbers(100)
        job.feed_numbers(100)
        with traced() as start, job.started() as batch:
            job.deliver(batch, 0)
            with traced() as one:
                job.deliver(batch, 1)
            start |= one
        job.assert_exactly_once()
    for name in sorted(start):
        sys.stdout.write(f"{'batch' if name in one else 'start'}  {name}\n")
    sys.stdout.write(f"a batch crosses {len(one)} files, with its start {len(start)}\n")


if __name__ == "__main__":
    main()

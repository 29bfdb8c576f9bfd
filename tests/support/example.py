"""An example app as a user starts it, but in the JVM of the tests: ``python -m … APP ARGUMENT…``.

The app is run as it is. Its ``SparkSession.builder`` finds a session, as it does in a notebook.
"""

from __future__ import annotations

import runpy
import sys

from pyspark.sql import SparkSession

from tests.support import host


def main() -> None:
    """Run the app in this process, attached to a host."""
    sys.argv = sys.argv[1:]
    SparkSession._instantiatedSession = host.attached()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

"""``python -m benchmarks [NAME ...]``: run benchmarks and write down their results."""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import sys
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.report import RESULTS, Result, record

NAMES = (
    "writer",
    "throughput",
    "machines",
    "arrow",
    "first_row",
    "loops",
    "growth",
    "latency",
    "sinks",
    "small_batches",
    "lake_age",
    "standby",
    "parsing",
    "scale",
    "starting",
    "soak",
    "state",
    "watching",
    "lakes",  # the last, since it wants another Spark than the others
)


def main() -> int:
    """Run the named benchmarks, one after the other."""
    arguments = _arguments()
    logging.basicConfig(level=logging.WARNING)
    # So that a run that is ended from outside still ends its broker, Spark and Flink.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in arguments.names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        with environment() as found:
            result: Result = module.run(arguments)
        record(result, _command(), found, arguments.results)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; else all")
    parser.add_argument(
        "--rows", type=int, help="rows of a run; each benchmark has its own default"
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each variant runs; state: bursts that count"
    )
    parser.add_argument("--seconds", type=float, help="latency, watching, soak: for how long")
    parser.add_argument(
        "--only", help="variants to run, by commas; ratios need both of their sides"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}: choose of {', '.join(NAMES)}")
    return arguments


def _command() -> str:
    return " ".join(["python -m benchmarks", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

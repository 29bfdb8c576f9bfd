"""``python -m benchmarks.former COMMIT``: is a small batch slower than it was at that commit?

Each of the two trees has a process that stays warm; both deliver in turns, in alternating order, so
that other load on the machine falls on both. Libraries are those of this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PARTITIONS = 4
_BATCH_ROWS = 1000
_BATCHES = 45
_WARM_BATCHES = 15
_WARM_ROUNDS = 3
_DONE = "DONE "


def main() -> int:
    """Print the medians of both trees, and their difference with its standard error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.former", description=__doc__)
    parser.add_argument("commit", help="the former one")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its worktree is removed
    found: dict[str, list[float]] = {"former": [], "now": []}
    with (
        _tree(arguments.commit) as former,
        _deliverer(former) as one,
        _deliverer(ROOT) as other,
    ):
        both = {"former": one, "now": other}
        for number in range(_WARM_ROUNDS + arguments.rounds):
            for name in both if number % 2 == 0 else reversed(both):
                found[name].append(_round(both[name]))
            print(number, *(f"{name} {ms[-1]:.1f} ms" for name, ms in found.items()), flush=True)
    former_ms, now_ms = (ms[_WARM_ROUNDS:] for ms in found.values())
    slower = [b - a for a, b in zip(former_ms, now_ms, strict=True)]
    error = statistics.stdev(slower) / len(slower) ** 0.5
    print(
        f"{arguments.commit} {statistics.median(former_ms):.1f} ms, now "
        f"{statistics.median(now_ms):.1f} ms; now minus then in {len(slower)} rounds: median "
        f"{statistics.median(slower):+.1f} ms, mean {statistics.mean(slower):+.1f} ± {error:.1f} ms"
    )
    return 0


@contextmanager
def _tree(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)


@contextmanager
def _deliverer(tree: Path) -> Iterator[subprocess.Popen[str]]:
    # By its path, since the former tree may lack this module; all else is the tree's.
    with subprocess.Popen(
        [sys.executable, __file__, "deliver"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "AIRFLOW_HOME": str(tree / ".airflow")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _round(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("deliver\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith(_DONE):
            return float(json.loads(line.removeprefix(_DONE)))
    raise SystemExit("A process ended before its round. No figure is given.")


def _deliver() -> int:
    """Deliver a topic in small batches for each line of stdin; print a batch's median ms."""
    from airflow_eos.sinks.source import tuned_source_options
    from benchmarks import rows, spark
    from benchmarks.stage import refuse, staged

    options = {**tuned_source_options(), "maxOffsetsPerTrigger": _BATCH_ROWS}
    count = _BATCH_ROWS * (_WARM_BATCHES + _BATCHES)
    with staged() as stage, spark.session() as session:
        stage.topic("small", _PARTITIONS)
        rows.fill(stage.bootstrap, "small", count)
        for number, _ in enumerate(sys.stdin):
            name = f"small-{number}"
            output = stage.topic(name, _PARTITIONS)
            source = spark.read(session, stage, "small", **options).coalesce(2)
            query = spark.start("exactly_once", source, stage, name, output, {"availableNow": True})
            batches = spark.drained(query)
            refuse(f"{name} read", sum(batch.rows for batch in batches), count)
            took = statistics.median(batch.took_ms for batch in batches[_WARM_BATCHES:])
            print(_DONE, took, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(_deliver() if sys.argv[1:] == ["deliver"] else main())

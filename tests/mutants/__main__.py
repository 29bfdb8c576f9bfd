"""``make mutants``: break the product in each way of the catalogue; a test must notice every one.

``python -m tests.mutants NAME …`` tries only those whose name contains one of the words.
"""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.catalogue import ROOT, Mutant, read_catalogue
from tests.mutants.trial import Tree, Trial, Verdict

_COLOURS = {
    Verdict.FOUND: "green",
    Verdict.LATE: "red",
    Verdict.SURVIVED: "red",
    Verdict.UNSOUND: "yellow",
}


def main() -> int:
    arguments = _arguments()
    mutants = [
        mutant
        for mutant in read_catalogue()
        if not arguments.names or any(word in mutant.name for word in arguments.names)
    ]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended, it takes its copies along
    console = Console(width=None if sys.stdout.isatty() else 160)
    trials: list[Trial] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("mutants", total=len(mutants))
        for trial in _trials(mutants, arguments.jobs):
            trials.append(trial)
            progress.console.print(_line(trial), highlight=False)
            progress.update(bar, advance=1)
    order = {mutant.name: number for number, mutant in enumerate(mutants)}
    console.print(_table(sorted(trials, key=lambda trial: order[trial.mutant.name])))
    left = [trial for trial in trials if trial.verdict is not Verdict.FOUND]
    console.print(f"{len(trials) - len(left)} of {len(trials)} found")
    return 1 if left or not trials else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="try only those whose name contains a word")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    return parser.parse_args()


def _trials(mutants: list[Mutant], jobs: int) -> Iterator[Trial]:
    """Each job has a copy of the tree to itself."""
    with tempfile.TemporaryDirectory(prefix="airflow-eos-mutants-") as folder:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(jobs):
            trees.put(Tree(ROOT, Path(folder) / str(number)))

        def try_out(mutant: Mutant) -> Trial:
            tree = trees.get()
            try:
                return tree.try_out(mutant)
            finally:
                trees.put(tree)

        pool = ThreadPoolExecutor(jobs)
        try:
            for tried in as_completed([pool.submit(try_out, mutant) for mutant in mutants]):
                yield tried.result()
        finally:  # Ctrl-C too: those that have not begun never do
            pool.shutdown(cancel_futures=True)


def _line(trial: Trial) -> str:
    word = f"[{_COLOURS[trial.verdict]}]{trial.verdict.value:8}[/]"
    return f"{word} {trial.seconds:5.1f} s  {trial.mutant.name}"


def _table(trials: list[Trial]) -> Table:
    table = Table("mutant", "breaks", "verdict", "s", "found by, or why not", pad_edge=False)
    for trial in trials:
        detail = trial.detail.rpartition("/")[2] if trial.verdict is Verdict.FOUND else trial.detail
        table.add_row(
            trial.mutant.name,
            trial.mutant.breaks,
            f"[{_COLOURS[trial.verdict]}]{trial.verdict.value}[/]",
            f"{trial.seconds:.0f}",
            escape(detail),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())

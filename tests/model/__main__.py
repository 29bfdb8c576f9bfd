"""``python -m tests.model --histories 200000 --seed 1``: search; same seed, same histories.

Prints a line for every tenth and how many histories an hour that is; exits 1 at a violation, with
its seed and trace. ``--only SEED`` runs one again and prints its trace. ``--learn`` finds for each
broken rule the first history that shows it, and writes their seeds to ``known.json``, so that
``test_mutations.py`` need not search for them again; with ``--broken RULE`` for this one alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from airflow_eos.errors import EosError
from tests.model import mutations, who_drives
from tests.model.history import run_history
from tests.model.judge import ProtocolBroken
from tests.model.mutations import AT_MOST, KNOWN, known
from tests.model.quiet import quiet

_APART = 1_000_000_000
_ALL = (
    *mutations.MUTATIONS,
    *mutations.ON_A_DISK,
    *mutations.LOSSY,
    *mutations.TWO_PHASE,
    *mutations.WHO_DRIVES,
)
ON_A_DISK = {broken.__name__ for broken in mutations.ON_A_DISK}
LOSSY = {broken.__name__ for broken in mutations.LOSSY}
TWO_PHASE = {broken.__name__ for broken in mutations.TWO_PHASE}
WHO_DRIVES = {broken.__name__ for broken in mutations.WHO_DRIVES}


def play(seed: int, *, who_drives_it: bool = False, **kind: bool) -> list[str]:
    """Play one history, of rows or of who drives; return its trace."""
    if who_drives_it:
        return who_drives.run_history(seed).history
    return run_history(seed, **kind).world.judge.history


def search(seed: int, first: int, count: int, broken: str = "", **kind: bool) -> str | None:
    """Run histories ``first`` to ``first + count``; the trace of the first that is violated."""
    with quiet(), pytest.MonkeyPatch.context() as patch:
        if broken:
            getattr(mutations, broken)(patch)
        for number in range(first, first + count):
            try:
                play(seed * _APART + number, **kind)
            except ProtocolBroken as broken:
                return str(broken)
            except Exception as error:  # noqa: BLE001 - an error that ends no process of this world
                return f"seed {seed * _APART + number}: {type(error).__name__}: {error}"
    return None


def first_that_shows(broken: str) -> int | None:
    """The seed of the first history that shows this rule broken; None where none does."""
    with quiet(), pytest.MonkeyPatch.context() as patch:
        getattr(mutations, broken)(patch)
        for seed in range(AT_MOST):
            try:
                play(
                    seed,
                    disk=broken in ON_A_DISK,
                    lossy=broken in LOSSY,
                    two_phase=broken in TWO_PHASE,
                    who_drives_it=broken in WHO_DRIVES,
                )
            except (ProtocolBroken, EosError):
                return seed
    return None


def learn(jobs: int, only: str) -> int:
    """Find them all and write them down; 1 where a broken rule was not noticed."""
    names = [broken.__name__ for broken in _ALL]
    names = [name for name in names if only in ("", name)]
    with ProcessPoolExecutor(jobs) as pool:
        found = dict(zip(names, pool.map(first_that_shows, names), strict=True))
    KNOWN.write_text(json.dumps((known() if only else {}) | found, indent=1, sort_keys=True) + "\n")
    unseen = [name for name, seed in found.items() if seed is None]
    print(f"{len(found) - len(unseen)} of {len(found)} found; not found: {unseen}")  # noqa: T201
    return 1 if unseen else 0


def main() -> int:
    """Parse, search, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--broken", default="", help="a rule to break: a name in mutations.py")
    parser.add_argument("--only", type=int, help="the seed of one history")
    parser.add_argument("--disk", action="store_true", help="with power cuts and skipped batches")
    parser.add_argument("--lossy", action="store_true", help="with an input that forgets rows")
    parser.add_argument("--several", action="store_true", help="with two outputs")
    parser.add_argument(
        "--two-phase",
        action="store_true",
        dest="two_phase",
        help="with a cluster that comes to offer transactions without a timer, and stops",
    )
    parser.add_argument("--standbys", action="store_true", help="each driver has stood by")
    parser.add_argument(
        "--who-drives",
        action="store_true",
        dest="who_drives_it",
        help="drivers, standbys and persons, without rows",
    )
    parser.add_argument("--learn", action="store_true", help="write known.json again")
    given = parser.parse_args()
    kinds = ("disk", "lossy", "several", "standbys", "two_phase", "who_drives_it")
    kind = {name: getattr(given, name) for name in kinds}
    if given.learn:
        return learn(given.jobs, given.broken)
    if given.only is not None:
        with quiet():
            played = play(given.only, **kind)
        print("\n".join(played))  # noqa: T201
        return 0
    started, done = time.monotonic(), 0
    size = max(1, given.histories // (10 * given.jobs))
    with ProcessPoolExecutor(given.jobs) as pool:
        starts = range(0, given.histories, size)
        counts = [min(size, given.histories - start) for start in starts]
        for count, found in zip(
            counts,
            pool.map(
                partial(search, broken=given.broken, **kind),
                [given.seed] * len(counts),
                starts,
                counts,
            ),
            strict=True,
        ):
            if found is not None:
                pool.shutdown(cancel_futures=True)
                print(found)  # noqa: T201
                return 1
            done += count
            an_hour = done / (time.monotonic() - started) * 3600
            print(f"{done:>9} histories, 0 violated; {an_hour:,.0f} an hour")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

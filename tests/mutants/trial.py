"""One mutant on trial: the tests that it names, run on a copy of the tree with it and without.

Of these tests those count that ``make test`` runs: another would not notice in time.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.catalogue import Mutant, UnsoundMutantError
from tests.suite import EXPRESSION

TEST_SECONDS = 120
"""A test that a mutant keeps from ending has failed; the sound tree needs far less."""
FOUND_WITHIN_S = 60
"""What takes longer to notice is run too seldom. On a busy machine, times :func:`_crowd`."""
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(enum.Enum):
    FOUND = "found"
    LATE = "late"
    """A test noticed it, and took too long."""
    SURVIVED = "survived"
    UNSOUND = "unsound"
    """The entry proves nothing: its text is gone, its tests fail without it or do not run."""


@dataclass(frozen=True)
class Trial:
    """What became of a mutant; ``detail`` names the test that found it, or says what is wrong."""

    mutant: Mutant
    verdict: Verdict
    detail: str
    seconds: float


@dataclass
class Tree:
    """A copy of the working tree, in which one mutant at a time lives; the original is not touched.

    Args:
        root: the tree to copy.
        folder: where to; it must not exist.
    """

    root: Path
    folder: Path
    _sound: dict[tuple[str, ...], str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(listing, cwd=self.root, capture_output=True, check=True, text=True)
        for name in found.stdout.split("\0")[:-1]:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # removed, and not committed yet
                shutil.copy2(self.root / name, target)
        # What Spark's tests make once a checkout takes longer than a test may (tests.support.jvm).
        made, link = self.root / "build" / "jvm", self.folder / "build" / "jvm"
        made.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(made)

    def try_out(self, mutant: Mutant) -> Trial:
        """Run the mutant's tests, first without it (once for each set of tests), then with it."""
        begun = time.monotonic()
        try:
            verdict, detail = self._try_out(mutant)
        except UnsoundMutantError as error:
            verdict, detail = Verdict.UNSOUND, str(error)
        return Trial(mutant, verdict, detail, time.monotonic() - begun)

    def _try_out(self, mutant: Mutant) -> tuple[Verdict, str]:
        with self._mutated(mutant):
            pass  # refused before any test runs
        wrong = self._wrong_without(mutant.tests)
        if wrong:
            return Verdict.UNSOUND, f"without the mutation: {wrong}"
        begun = time.monotonic()
        with self._mutated(mutant):
            status, output = self._pytest(mutant.tests)
        took_s, allowed_s = time.monotonic() - begun, FOUND_WITHIN_S * _crowd()
        failed = _FAILED.search(output)
        if status == 1 and failed and took_s > allowed_s:
            return Verdict.LATE, f"after {took_s:.0f} s of {allowed_s:.0f} s: {failed[1]}"
        if status == 1 and failed:
            return Verdict.FOUND, failed[1]
        if status == 0:
            return Verdict.SURVIVED, mutant.breaks
        # An error of collection or of a fixture is none of a test: it might be a slip of the pen.
        return Verdict.UNSOUND, f"no test failed, pytest ended with {status}: {_tail(output)}"

    def _wrong_without(self, tests: tuple[str, ...]) -> str:
        if tests not in self._sound:
            status, output = self._pytest(tests)
            self._sound[tests] = (
                "" if status == 0 else f"pytest ends with {status}: {_tail(output)}"
            )
        return self._sound[tests]

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        sound = path.read_text(encoding="utf-8")
        changed = mutant.applied(sound)
        try:
            _write(path, changed)
            yield
        finally:
            _write(path, sound)

    def _pytest(self, tests: tuple[str, ...]) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "--no-header"]
        command += ["-m", EXPRESSION, "-p", "no:cacheprovider", "-W", "ignore"]
        command += ["-p", "pytest_timeout", "--timeout-method=signal"]
        command += [f"--timeout={TEST_SECONDS}", *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "200"}
        # Loading every plugin that is installed takes longer than most of the tests.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment.pop("PYTEST_ADDOPTS", None)
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return ran.returncode, ran.stdout


def _crowd() -> float:
    """How many want each core of this machine, as of the last minute; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _write(path: Path, text: str) -> None:
    """Python takes a file of the same size and second for the one that it has compiled."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _tail(output: str) -> str:
    return " | ".join(line for line in output.splitlines()[-5:] if line.strip())

"""Somebody who does what an error says, to the letter: its commands, its settings, a start."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_eos.cli import app as cli
from airflow_eos.errors import EosError, Remedy

AT_MOST = 5
"""Errors in a row that may each say something, before a pipeline has to run again."""


@dataclass
class Person:
    """Knows the checkpoint, and how its systems are reached; nothing else.

    Attributes:
        checkpoint: stands for ``CHECKPOINT`` in a command.
        connection: what each command is given besides, as ``-b`` with the brokers.
        start: starts the app with settings; raises what it ends with.
        choose: of several remedies; the last one unless said otherwise, which costs the most.
        told: each remedy that was followed, in order.
    """

    checkpoint: str
    connection: Sequence[str]
    start: Callable[[Mapping[str, str]], None]
    choose: Callable[[tuple[Remedy, ...]], Remedy] = lambda remedies: remedies[-1]
    told: list[Remedy] = field(default_factory=list)

    def until_it_runs(self) -> None:
        """Start, and follow what is said, at most five times.

        Raises:
            AssertionError: an error says nothing that can be followed, or it never runs.
        """
        settings: dict[str, str] = {}
        for _ in range(AT_MOST + 1):
            ended = self._start(settings)
            if ended is None:
                return
            assert ended.remedies, f"a dead end: {type(ended).__name__}: {ended}"
            remedy = self.choose(ended.remedies)
            self.told.append(remedy)
            settings = {**settings, **remedy.settings}
            for command in remedy.commands:
                self.run(command)
        raise AssertionError(f"followed {AT_MOST} times, and it does not run: {self.told}")

    def _start(self, settings: Mapping[str, str]) -> EosError | None:
        try:
            self.start(settings)
        except EosError as error:
            return error
        return None

    def run(self, command: str) -> str:
        """A command line as it is said; whatever its exit status, the next step is tried."""
        program, *arguments = shlex.split(command.replace("CHECKPOINT", self.checkpoint))
        assert program == "airflow-eos", command
        out, before = io.StringIO(), sys.argv
        sys.argv = [program, *arguments, *self.connection]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                cli.main()
        except SystemExit:
            pass
        finally:
            sys.argv = before
        return out.getvalue()

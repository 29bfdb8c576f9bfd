"""Flink's restart strategies: from the failures so far to the next delay, or the end.

Pure: what a strategy says depends on the history that it is given and on nothing else. Who keeps
that history, and sleeps, is ``supervision/run.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from airflow_eos.arguments import take_spans
from airflow_eos.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Failure:
    """One run of an app that failed: when it was started and when it had failed, in seconds."""

    started_at: float
    failed_at: float

    @property
    def lasted(self) -> timedelta:
        """How long the app ran."""
        return timedelta(seconds=self.failed_at - self.started_at)


class RestartStrategy(Protocol):
    """When a failed app is started again."""

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """How long to wait before the next start, or None: not again.

        Args:
            failures: of this Airflow try, oldest first; at least one.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """So many restarts, always as far apart; the count is never set back.

    ``attempts=0`` is Flink's "no restart".
    """

    attempts: int = 3
    pause: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        _require(self.attempts >= 0, f"attempts {self.attempts}: expected 0 or more")
        take_spans(self, "pause")

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """See :class:`RestartStrategy`."""
        return self.pause if len(failures) <= self.attempts else None


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Each pause is ``multiplier`` times the one before, up to ``maximum``.

    Attributes:
        initial: the first pause.
        maximum: no pause is longer.
        multiplier: 1 or more.
        reset_after: an app that ran for so long was well: the next pause is ``initial`` again.
        attempts: restarts since the last reset; None: without end.
    """

    initial: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(minutes=1)
    multiplier: float = 1.5
    reset_after: timedelta = timedelta(hours=1)
    attempts: int | None = None

    def __post_init__(self) -> None:
        take_spans(self, "initial", "maximum", "reset_after")
        _require(
            self.maximum >= self.initial,
            f"maximum {self.maximum}: expected initial ({self.initial}) or more",
        )
        _require(self.multiplier >= 1, f"multiplier {self.multiplier}: expected 1 or more")
        _require(
            self.attempts is None or self.attempts >= 0,
            f"attempts {self.attempts}: expected 0 or more, or None",
        )

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """See :class:`RestartStrategy`."""
        row = 0
        for failure in failures:
            row = 1 if failure.lasted >= self.reset_after else row + 1
        if self.attempts is not None and row > self.attempts:
            return None
        pause = self.initial
        for _ in range(row - 1):
            if pause >= self.maximum:
                break
            pause = min(pause * self.multiplier, self.maximum)
        return pause


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts for as long as there are not more than ``failures`` failures ``within`` a span."""

    failures: int = 3
    within: timedelta = timedelta(minutes=5)
    pause: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        _require(self.failures >= 1, f"failures {self.failures}: expected 1 or more")
        take_spans(self, "within", "pause")

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """See :class:`RestartStrategy`."""
        since = failures[-1].failed_at - self.within.total_seconds()
        recent = sum(failure.failed_at >= since for failure in failures)
        return self.pause if recent <= self.failures else None


def _require(holds: bool, problem: str) -> None:  # noqa: FBT001
    if not holds:
        raise ConfigurationError(f"Restart strategy: {problem}.")

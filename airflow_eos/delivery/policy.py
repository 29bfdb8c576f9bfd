"""How a pipeline's checkpoints are governed, in Flink's words; ``docs/from-flink.md`` has them all.

The same value says it to ``start_exactly_once`` and to ``SparkStreamingOperator``, which gives an
app what concerns the app.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from airflow_eos.arguments import milliseconds, take_spans
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


_NONE = timedelta(0)
INTERVAL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """A checkpoint is a batch. Every field has a default; None and 0 leave things as they are.

    Attributes:
        interval: from the start of a batch to the start of the next one; None: what ``trigger``
            (of the operator: ``trigger_interval``) says.
        min_pause: from the end of a batch, when its rows are visible, until the next is planned.
        timeout: the tasks of a batch may take so long; None: as long as they like. A batch that
            takes longer fails: its tasks are cancelled, what they prepared is aborted, and the
            query ends with ``BatchTimeoutError``. Never once the batch is decided.
        num_retained: batches that Spark's logs, its state and the decisions go back; None: 100, or
            what ``spark.sql.streaming.minBatchesToRetain`` says.
        restart: when ``SparkStreamingOperator`` starts a failed app again; None: what its
            ``max_restarts`` and ``restart_delay`` say. An app leaves it to whoever started it.

    Raises:
        ConfigurationError: a field cannot work.
    """

    interval: timedelta | None = None
    min_pause: timedelta = _NONE
    timeout: timedelta | None = None
    num_retained: int | None = None
    restart: RestartStrategy | None = None

    def __post_init__(self) -> None:
        take_spans(self, "interval", "min_pause", "timeout")
        if self.num_retained is not None and self.num_retained < 2:
            raise ConfigurationError(
                f"num_retained {self.num_retained}: expected 2 or more. Spark goes on from the "
                "batch before the one in flight."
            )

    @property
    def trigger(self) -> dict[str, str] | None:
        """Spark's trigger for ``interval``."""
        if self.interval is None:
            return None
        return {"processingTime": f"{milliseconds(self.interval)} milliseconds"}

    def beside(
        self, *, trigger_interval: timedelta, max_restarts: int, restart_delay: timedelta
    ) -> tuple[timedelta, RestartStrategy]:
        """Interval and restart strategy, which an operator's own arguments say shorter.

        Raises:
            ConfigurationError: both say it, and the argument is not left at its default.
        """
        short = FixedDelay(max_restarts, restart_delay)
        for name, argument, told, default in (
            ("interval", "trigger_interval", trigger_interval, INTERVAL),
            ("restart", "max_restarts, restart_delay", short, FixedDelay()),
        ):
            if getattr(self, name) is not None and told != default:
                raise ConfigurationError(
                    f"{name} of the policy ({getattr(self, name)}) and {argument} ({told}) say "
                    "the same thing: leave one of them out."
                )
        return self.interval or trigger_interval, self.restart or short

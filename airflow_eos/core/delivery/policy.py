"""Checkpoint policies and restart strategies, in Flink's words; see ``docs/from-flink.md``.

One :class:`CheckpointPolicy` serves both ``start_exactly_once`` and ``SparkStreamingOperator``,
which passes on to an app what concerns the app.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Protocol

from airflow_eos.core.arguments import Count, Having, PositiveSpan, Span, milliseconds, take_fields
from airflow_eos.core.settings import INTERVAL
from airflow_eos.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Failure:
    """One run of an app that failed: when it was started and when it had failed, in seconds."""

    started_at: float
    failed_at: float

    @property
    def lasted(self) -> timedelta:
        """The time that the app ran."""
        return timedelta(seconds=self.failed_at - self.started_at)


class RestartStrategy(Protocol):
    """The rule by which a failed app is started again."""

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """Return how long to wait before the next start; None: the app is not started again.

        Args:
            failures: the failures of this Airflow try, oldest first; at least one.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A fixed number of restarts, always with the same pause; the count is never set back.

    ``attempts=0`` is Flink's "no restart".
    """

    attempts: int = 3
    pause: Span = timedelta(seconds=10)

    def __post_init__(self) -> None:
        take_fields(self)

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """See :meth:`RestartStrategy.delay`."""
        return self.pause if len(failures) <= self.attempts else None


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Restarts with growing pauses, each ``multiplier`` times the one before, up to ``maximum``.

    Attributes:
        initial: the first pause.
        maximum: the longest pause.
        multiplier: 1 or more.
        reset_after: after a run of this length or longer the next pause is ``initial`` again.
        attempts: restarts since the last reset; None: no limit.
    """

    initial: PositiveSpan = timedelta(seconds=1)
    maximum: PositiveSpan = timedelta(minutes=1)
    multiplier: float = 1.5
    reset_after: PositiveSpan = timedelta(hours=1)
    attempts: int | None = None

    def __post_init__(self) -> None:
        take_fields(self)
        _require(
            self.maximum >= self.initial,
            f"maximum {self.maximum}: expected initial ({self.initial}) or more",
        )
        _require(self.multiplier >= 1, f"multiplier {self.multiplier}: expected 1 or more")

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """See :meth:`RestartStrategy.delay`."""
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
    """Restarts while at most ``failures`` failures fall ``within`` a span."""

    failures: Count = 3
    within: PositiveSpan = timedelta(minutes=5)
    pause: Span = timedelta(seconds=10)

    def __post_init__(self) -> None:
        take_fields(self)

    def delay(self, failures: Sequence[Failure]) -> timedelta | None:
        """See :meth:`RestartStrategy.delay`."""
        since = failures[-1].failed_at - self.within.total_seconds()
        recent = sum(failure.failed_at >= since for failure in failures)
        return self.pause if recent <= self.failures else None


def _require(holds: bool, problem: str) -> None:  # noqa: FBT001
    if not holds:
        raise ConfigurationError(f"Restart strategy: {problem}.")


_STRATEGIES = "a restart strategy, such as FixedDelay"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """The policy of checkpoints, each of which is a batch. None and 0 leave a setting as it is.

    Attributes:
        interval: from the start of a batch to the start of the next one; None: given by ``trigger``
            (on the operator: ``trigger_interval``).
        min_pause: from the end of a batch, when its rows are visible, until the next is planned.
        timeout: how long the tasks of a batch may take; None: no limit. A batch that takes longer
            fails: its tasks are cancelled, their prepared work is aborted, and the query ends with
            ``BatchTimeoutError``. It never applies once the batch is decided.
        num_retained: batches that Spark's logs, its state and the decisions go back; None: 100, or
            what ``spark.sql.streaming.minBatchesToRetain`` says.
        restart: when ``SparkStreamingOperator`` starts a failed app again; None: given by its
            ``max_restarts`` and ``restart_delay`` say. An app leaves it to whoever started it.

    Raises:
        ConfigurationError: a field cannot work.
    """

    interval: PositiveSpan | None = None
    min_pause: Span = timedelta(0)
    timeout: PositiveSpan | None = None
    num_retained: int | None = None
    restart: Annotated[RestartStrategy, Having(what=_STRATEGIES, name="delay")] | None = None

    def __post_init__(self) -> None:
        take_fields(self)
        if self.num_retained is not None and self.num_retained < 2:
            raise ConfigurationError(
                f"num_retained {self.num_retained}: expected 2 or more. Spark goes on from the "
                "batch before the one in flight."
            )

    @property
    def trigger(self) -> dict[str, str] | None:
        """Spark's trigger for ``interval``; None where there is no interval."""
        if self.interval is None:
            return None
        return {"processingTime": f"{milliseconds(self.interval)} milliseconds"}

    def beside(
        self, *, trigger_interval: timedelta, max_restarts: int, restart_delay: timedelta
    ) -> tuple[timedelta, RestartStrategy]:
        """Return interval and restart strategy, from the policy or the operator's own arguments.

        Raises:
            ConfigurationError: both give one of them, and the argument is not left at its default.
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

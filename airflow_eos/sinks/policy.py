"""How a pipeline's checkpoints are governed, in Flink's words; ``docs/from-flink.md`` has them all.

The same value says it to ``start_exactly_once`` and to ``SparkStreamingOperator``, which gives an
app what concerns the app.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_eos.arguments import milliseconds, take_spans
from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.restarts import FixedDelay, RestartStrategy

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

"""The instruments of a process, made of the table in :mod:`.names`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.metrics import CallbackOptions, Observation

from airflow_eos.figures.names import ASKED_AGAIN, METRICS, Metric
from airflow_eos.tally import WAITS

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

Gauged = Iterable[tuple[Metric, float, dict[str, str]]]


class Source(Protocol):
    """Who knows what the gauges say now."""

    def gauged(self) -> Gauged:
        """Each gauge with its value and attributes."""
        ...

    @property
    def checkpoint(self) -> str:
        """Whose figures they are."""
        ...


class Meters:
    """Counters and histograms to write to, and gauges that ask whoever is alive."""

    def __init__(self, meter: Meter) -> None:
        self._sources: set[Source] = set()
        make: dict[str, Callable[..., Any]] = {
            "counter": meter.create_counter,
            "histogram": meter.create_histogram,
        }
        self._written = {
            each: make[each.kind](each.name, unit=each.unit, description=each.meaning)
            for each in METRICS
            if each.kind in make
        }
        for each in (each for each in METRICS if each.kind == "gauge"):
            meter.create_observable_gauge(
                each.name, [self._callback(each)], unit=each.unit, description=each.meaning
            )
        meter.create_observable_counter(
            ASKED_AGAIN.name,
            [lambda _options: [Observation(n, {"of": of}) for of, n in tuple(WAITS.items())]],
            unit=ASKED_AGAIN.unit,
            description=ASKED_AGAIN.meaning,
        )

    def add(self, metric: Metric, value: int, by: dict[str, Any]) -> None:
        """Count."""
        self._written[metric].add(value, by)

    def record(self, metric: Metric, value: float, by: dict[str, Any]) -> None:
        """Put one value into a histogram."""
        self._written[metric].record(value, by)

    def ask(self, source: Source) -> None:
        """Let the gauges show what it says, until :meth:`forget`, or until its successor asks."""
        others = {each for each in self._sources if each.checkpoint != source.checkpoint}
        self._sources = others | {source}

    def forget(self, source: Source) -> None:
        """Its gauges vanish."""
        self._sources = self._sources - {source}

    def _callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observed(_options: CallbackOptions) -> Iterator[Observation]:
            for source in self._sources:
                for found, value, by in source.gauged():
                    if found is metric:
                        yield Observation(value, by)

        return observed

"""Events of one pipeline in, figures and traces out."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context

from airflow_eos.figures import names
from airflow_eos.figures.events import (
    Asked,
    Began,
    Committed,
    Decided,
    Ended,
    Event,
    Failed,
    Listed,
    Phased,
    Progressed,
    Watched,
)
from airflow_eos.figures.story import Step, Story, Told, lags
from airflow_eos.protocol.decision import Verdict
from airflow_eos.protocol.work import Outcome

if TYPE_CHECKING:
    from airflow_eos.checkpoint.liveness import Phase
    from airflow_eos.figures.meters import Gauged, Meters
    from airflow_eos.protocol.work import WorkIdentity

_STEPS: dict[Phase, Step] = {"preparing": "prepare", "settling": "settle", "waiting": "commit"}


class Recorder:
    """What a driver's events come to; events come from its batch, its heartbeat and its store.

    Args:
        checkpoint: its location, the attribute of every figure.
        meters: the instruments of the process.
        tracer: makes a trace of each batch.
    """

    def __init__(self, checkpoint: str, meters: Meters, tracer: Tracer) -> None:
        self._by = {"checkpoint": checkpoint}
        self._meters = meters
        self._tracer = tracer
        self._lock = threading.Lock()
        self._story: Story | None = None
        self._open: dict[WorkIdentity, int | None] = {}
        self._lags: dict[str, int] = {}
        self._read_up_to = -1
        self._has_ended = False
        self._missed: float | None = None
        # Prometheus sees no increase in a counter that begins at 1.
        for metric in (names.FAILURES, names.REPLAYS, names.REPLAYED, names.READ):
            self._add(metric, 0)
        self._add(names.DECISIONS, 0, verdict=Verdict.COMMIT.value, stands=False)
        meters.ask(self)

    def __call__(self, event: Event) -> None:
        """Take note of it."""
        if isinstance(event, Asked):
            self._asked(event)
            return
        with self._lock:
            if not self._has_ended:
                self._note(event)

    @property
    def checkpoint(self) -> str:
        """See :class:`airflow_eos.figures.meters.Source`."""
        return self._by["checkpoint"]

    def gauged(self) -> Gauged:
        """See :class:`airflow_eos.figures.meters.Source`."""
        yield names.RUNNING, 0 if self._has_ended else 1, self._by
        if self._has_ended:
            return
        if self._missed is not None:
            yield names.MISSED, self._missed, self._by
        with self._lock:
            story, ends, behind = self._story, list(self._open.values()), dict(self._lags)
        running = story is not None and not story.has_been("commit")
        now_ns = time.time_ns()
        age_ns = max(0, now_ns - story.began_ns) if story is not None and running else 0
        yield names.AGE, age_ns / 1e9, self._by
        yield names.OPEN, len(ends), self._by
        timed = [end for end in ends if end is not None]
        if timed:
            yield names.TIME_LEFT, min(timed) / 1e3 - now_ns / 1e9, self._by
        for source, rows in behind.items():
            yield names.LAG, rows, {**self._by, "source": source}

    @singledispatchmethod
    def _note(self, event: Event) -> None:
        raise NotImplementedError(f"{event!r}")

    @_note.register
    def _(self, event: Began) -> None:
        self._over(event.at_ns)  # where Spark has said nothing of the batch before
        self._story = Story(event.batch_id, event.at_ns)

    @_note.register
    def _(self, event: Phased) -> None:
        step = _STEPS.get(event.phase)
        if self._story is not None and step is not None:
            self._story.enter(step, event.at_ns)

    @_note.register
    def _(self, event: Listed) -> None:
        if self._story is not None:
            self._story.enter("decide", event.since_ns)
        self._open |= {each.identity: each.ends_at_ms for each in event.leftovers}

    @_note.register
    def _(self, event: Decided) -> None:
        decision = event.decision
        verdict = decision.verdict.value
        self._add(names.DECISIONS, 1, verdict=verdict, stands=event.stands)
        if decision.verdict is not Verdict.COMMIT or not event.stands:
            return
        rows = sum(work.rows for work in decision.works)
        self._open = {work.identity: work.ends_at_ms for work in decision.works if work.rows}
        is_replay = self._story is not None and self._story.has_been("settle")
        if is_replay:
            self._add(names.REPLAYS, 1)
            self._add(names.REPLAYED, rows)
        if self._story is not None:
            self._story.facts |= {
                "eos.attempt": decision.attempt,
                "eos.works": len(decision.works),
                "eos.rows": rows,
                "eos.replay": is_replay,
            }

    @_note.register
    def _(self, event: Committed) -> None:
        rows: Counter[str] = Counter()
        for work in event.works:
            outcome = event.outcomes.get(work.identity)
            if outcome is Outcome.COMMITTED:
                rows[work.participant] += work.rows
            if outcome is not Outcome.OPEN:
                self._open.pop(work.identity, None)
        for participant, count in rows.items():
            self._add(names.DELIVERED, count, participant=participant)

    @_note.register
    def _(self, event: Failed) -> None:
        self._add(names.FAILURES, 1)
        self._over(event.at_ns, event.error)

    @_note.register
    def _(self, event: Progressed) -> None:
        batch_id = int(event.progress["batchId"])
        self._lags = lags(event.progress)
        if batch_id > self._read_up_to:
            self._read_up_to = batch_id
            self._add(names.READ, int(event.progress["numInputRows"]))
        story = self._story
        if story is not None and story.batch_id == batch_id and story.has_been("commit"):
            self._story = None
            self._tell(story.committed(event.progress))

    @_note.register
    def _(self, event: Ended) -> None:
        self._over(event.at_ns)
        self._has_ended = True
        if not event.as_meant:  # or it would say to the end of the process that it is meant to
            self._meters.forget(self)

    @_note.register
    def _(self, event: Watched) -> None:
        self._missed = event.missed

    def _asked(self, event: Asked) -> None:
        outcome = "failed" if event.failed else "answered"
        by = {**self._by, "verb": event.verb, "outcome": outcome}
        self._meters.record(names.STORE, event.seconds, by)
        for direction, size in (("sent", event.sent), ("got", event.got)):
            if size:
                self._add(names.STORE_BYTES, size, direction=direction)

    def _over(self, at_ns: int, error: BaseException | None = None) -> None:
        story, self._story = self._story, None
        if story is not None:
            # One that has returned was settled; how long Spark took to commit it is not known.
            end_ns = story.marks[-1][1] if story.has_been("commit") else at_ns
            self._tell(story.end(end_ns, error))

    def _tell(self, told: Told) -> None:
        outcome = "delivered" if told.error is None else "failed"
        seconds = (told.end_ns - told.start_ns) / 1e9
        self._meters.record(names.BATCH, seconds, {**self._by, "outcome": outcome})
        for span in told.spans:
            by = {**self._by, "step": span.step}
            self._meters.record(names.STEP, (span.end_ns - span.start_ns) / 1e9, by)
        self._trace(told)

    def _trace(self, told: Told) -> None:
        facts = {**self._by, "eos.batch": told.batch_id, **told.facts}
        whole = self._tracer.start_span(
            "batch", context=Context(), start_time=told.start_ns, attributes=facts
        )
        inside = set_span_in_context(whole)
        for span in told.spans:
            part = self._tracer.start_span(span.step, context=inside, start_time=span.start_ns)
            part.end(span.end_ns)
        if told.error is not None:
            # Its name alone: a message may repeat what a row or a connection holds.
            whole.set_status(Status(StatusCode.ERROR, type(told.error).__name__))
        whole.end(told.end_ns)

    def _add(self, metric: names.Metric, value: int, **by: Any) -> None:
        self._meters.add(metric, value, {**self._by, **by})

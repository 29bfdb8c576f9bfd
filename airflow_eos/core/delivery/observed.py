"""A driver's figures and traces, by OpenTelemetry; off unless its environment variables ask.

This module tells whether a pipeline is observed, and wraps the decision log, participants and store
to tell an observer. What an observer is told is in :mod:`.observer`; ``ops/figures.py`` makes
figures and traces of it, and sends them.

``docs/figures.md`` has the table. A figure is evidence for people: no figure decides anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.delivery.observer import (
    Careful,
    CommitResult,
    Decided,
    Observer,
    StoreRequest,
    TasksPrepared,
)
from airflow_eos.core.log import Log

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import Decision
    from airflow_eos.core.delivery.observer import Verb
    from airflow_eos.core.protocol.decision import OpenWork, Outcome, PreparedWork, WorkIdentity
    from airflow_eos.core.protocol.participant import Participant

log = Log(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "http/protobuf"


def observer_of(location: str, env: Mapping[str, str] | None = None) -> Observer | None:
    """Return the observer of that checkpoint's pipeline; None where none is wanted, or possible.

    Args:
        location: the checkpoint's location, without secrets: the attribute of every figure.
        env: OpenTelemetry's variables; those of the process by default.
    """
    signals = signals_wanted(os.environ if env is None else env)
    if not signals:
        return None
    try:
        figures = import_module("airflow_eos.ops.figures")  # by name: it stands above the core
        return Careful(figures.Recorder(location, *figures.started(signals)))
    except ImportError as error:
        log.warning("figures_not_sent", error=str(error), hint="install airflow-provider-eos[otel]")
    except Exception:  # whatever is wrong with a collector's address, the query starts
        log.exception("figures_not_sent")
    return None


def signals_wanted(env: Mapping[str, str]) -> frozenset[str]:
    """Return which of ``metrics`` and ``traces`` OpenTelemetry's own variables ask for.

    A signal is asked for by an address: the specification's default, localhost, would have every
    driver of a cluster look for a collector beside it.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    return frozenset(each for each in ("metrics", "traces") if _is_wanted(env, each.upper()))


def _is_wanted(env: Mapping[str, str], signal: str) -> bool:
    own = f"OTEL_EXPORTER_OTLP_{signal}"
    if not (env.get(_ENDPOINT) or env.get(f"{own}_ENDPOINT")):
        return False
    if env.get(f"OTEL_{signal}_EXPORTER", "otlp").strip() != "otlp":
        return False
    protocol = env.get(f"{own}_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        log.warning("figures_not_sent", signal=signal, protocol=protocol, expected=_PROTOCOL)
    return protocol == _PROTOCOL


# --- observed parts -------------------------------------------------------------------------------
# Each part does what it always does, then tells the observer; without one it is returned unchanged.


T = TypeVar("T")


class _Decisions(DecisionLog):
    def __init__(self, store: CheckpointStore, observer: Observer) -> None:
        super().__init__(store)
        self._observer = observer

    def record(self, decision: Decision) -> bool:
        stands = super().record(decision)
        self._observer(Decided(decision, stands))
        return stands


class _Participant:
    """A participant whose timed verbs are observed; all others are the participant's own."""

    def __init__(self, participant: Participant, observer: Observer) -> None:
        self._participant = participant
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._participant, name)

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        since_ns = time.time_ns()
        found = self._participant.open(except_known=except_known)
        self._observer(TasksPrepared(found, since_ns))
        return found

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        outcomes = self._participant.commit(works)
        self._observer(CommitResult(tuple(works), outcomes))
        return outcomes


class _Store(CheckpointStore):
    """A store that counts our requests; a create that asks again counts as one."""

    observer: Observer

    def __reduce__(self) -> tuple[type[CheckpointStore], tuple[Any, str]]:
        """Reduce to the plain store: some sinks carry it to a task, which has no figures."""
        return CheckpointStore, (self._backend, self.location)

    def get(self, path: str) -> bytes | None:
        return self._timed("get", lambda: super(_Store, self).get(path), got=len)

    def head(self, path: str) -> Any:
        return self._timed("head", lambda: super(_Store, self).head(path))

    def create(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        create = partial(super().create, path, data, durable=durable)
        return self._timed("create", create, len(data))

    def put(self, path: str, data: bytes) -> None:
        self._timed("put", lambda: super(_Store, self).put(path, data), len(data))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._timed("delete", partial(super().delete, [path]))

    def _listing(self, prefix: str) -> Any:
        return self._timed("list", lambda: super(_Store, self)._listing(prefix))

    def _timed(
        self,
        verb: Verb,
        ask: Callable[[], T],
        sent: int = 0,
        got: Callable[[Any], int] = lambda _answer: 0,
    ) -> T:
        since, size, failed = time.perf_counter(), 0, True
        try:
            answer = ask()
            size, failed = got(answer) if answer is not None else 0, False
        finally:
            self.observer(StoreRequest(verb, time.perf_counter() - since, sent, size, failed))
        return answer


def observed_store(store: CheckpointStore, observer: Observer | None) -> CheckpointStore:
    """Return the store, which tells the observer of every request."""
    if observer is None:
        return store
    observed = _Store(store._backend, store.location)  # noqa: SLF001 - of its own class
    observed.observer = observer
    return observed


def observed_decisions(store: CheckpointStore, observer: Observer | None) -> DecisionLog:
    """Return the decision log of the store, which tells the observer of every decision."""
    return DecisionLog(store) if observer is None else _Decisions(store, observer)


def observed_participant(participant: Participant, observer: Observer | None) -> Participant:
    """Return the participant, which tells the observer what it lists and commits."""
    if observer is None:
        return participant
    return cast("Participant", _Participant(participant, observer))

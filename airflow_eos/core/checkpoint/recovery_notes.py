"""Notes of who replaces a driver that has ended: ``eos/restart.json``, ``eos/resumption.json``.

And ``eos/refused.json``: that a start in its place was refused for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from airflow_eos.core.checkpoint.backend import REFUSED, RESTART, RESUMPTION
from airflow_eos.core.checkpoint.heartbeat import Heartbeat, read_heartbeat
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import REFUSED_FOR_GOOD, CheckpointFormatError, EosError

log = Log(__name__)


class Replacement(Evidence, frozen=True, kw_only=True):
    """The ``number``-th start in the place of a driver that has ended, out of ``limit``.

    ``driver`` is the application id of the driver that beat last, :data:`NONE_YET` where none has.
    A task that starts its app again says so in ``eos/restart.json``; a run of Airflow that replaces
    a driver, in ``eos/resumption.json``. That file's count has to last: Airflow's own rows are
    deleted by its housekeeping. Both files are outdated once another driver beats.
    """

    words: ClassVar[tuple[str, ...]] = ("driver", "by")

    driver: str
    number: int
    limit: int | None
    by: str

    def __str__(self) -> str:
        """Say which restart it is and by whom, for people."""
        of = "" if self.limit is None else f" of {self.limit}"
        return f"restart {self.number}{of}, by {self.by}"


class Refusal(Evidence, frozen=True, kw_only=True):
    """A start in the place of ``driver`` that was refused for what no restart heals.

    An app that ends before its first heartbeat leaves none to say so: the task that has started it
    does. Outdated once another driver beats, and gone once a task starts the app again.
    """

    words: ClassVar[tuple[str, ...]] = ("driver", "reason", "dag_id", "run_id")

    driver: str
    reason: str
    dag_id: str
    run_id: str

    def __str__(self) -> str:
        """Say why the start was refused and in which run, for people."""
        whose = f"run {self.run_id} of {self.dag_id}"
        return f"no restart heals what its start was refused for: {self.reason} ({whose})"


NONE_YET = "first"
"""Stands for the application id where no driver has beaten yet."""


def driver_of(heartbeat: Heartbeat | None) -> str:
    """Return the application id of the driver that beat last, by which replacements name it."""
    return heartbeat.application_id if heartbeat is not None else NONE_YET


def note_restart(store: CheckpointStore, replacement: Replacement) -> None:
    """Record that a task is about to start its app again."""
    store.put(RESTART, encode(replacement))


def note_resumption(store: CheckpointStore, replacement: Replacement) -> None:
    """Record that a run of Airflow has begun to replace a driver."""
    store.put(RESUMPTION, encode(replacement))


def note_refusal(store: CheckpointStore, reason: str, *, dag_id: str, run_id: str) -> None:
    """Record that a run's start was refused for good; a failure to record it is only logged."""
    try:
        driver = driver_of(read_heartbeat(store))
        refusal = Refusal(driver=driver, reason=reason, dag_id=dag_id, run_id=run_id)
        store.put(REFUSED, encode(refusal))
    except EosError as error:
        log.warning("refusal_not_noted", reason=reason, error=str(error))


@contextmanager
def refusals_noted(store: CheckpointStore, *, dag_id: str, run_id: str) -> Iterator[None]:
    """Record the refusal where the ``with`` block raises an error that no restart heals."""
    try:
        yield
    except REFUSED_FOR_GOOD as error:
        note_refusal(store, f"{type(error).__name__}: {error}", dag_id=dag_id, run_id=run_id)
        raise


def forget_refusal(store: CheckpointStore) -> None:
    """Delete the last refusal: a start begins, and whether it is refused shows anew."""
    store.delete([REFUSED])


def refusal_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> Refusal | None:
    """Return why nobody is to start an app in the place of this driver; None: no refusal."""
    found = store.read(REFUSED, Refusal)
    return found if found is not None and found.driver == driver_of(heartbeat) else None


def resumption_of(store: CheckpointStore, heartbeat: Heartbeat | None) -> Replacement | None:
    """Return the newest run that has begun to replace this driver; None: none has."""
    return _replacement(store, RESUMPTION, heartbeat)


def next_start(
    noted: Replacement | None, has_failed: Callable[[int], bool | None], limit: int
) -> int | None:
    """Return the number, from 0 on, of the run that replaces a driver; None: too many have failed.

    Args:
        noted: the newest replacement that has begun.
        has_failed: whether the run of that number has; False where it goes on or was a success,
            None where nobody knows it any more. A run that began, and is not known, is over.
    """
    number = 0 if noted is None else noted.number - 1
    if noted is not None and has_failed(number) is None:
        number += 1
    while number < limit and has_failed(number):
        number += 1
    return number if number < limit else None


def brought_back_by(store: CheckpointStore, heartbeat: Heartbeat | None) -> str | None:
    """Say who last started an app in the place of this driver, for people; None: nobody.

    Whether that one still tries, Airflow knows. One that was refused for good is left out.
    """
    try:
        refused = refusal_of(store, heartbeat) is not None
        found = _replacement(store, RESTART, heartbeat) or resumption_of(store, heartbeat)
    except CheckpointFormatError as error:
        log.warning("not_known_who_brings_it_back", error=str(error))
        return None
    return None if refused or found is None else str(found)


def why_refused(store: CheckpointStore, heartbeat: Heartbeat | None) -> str | None:
    """Say why nobody but a person starts an app in the place of this driver; None: nothing.

    For people: a refusal that cannot be read says nothing here.
    """
    try:
        found = refusal_of(store, heartbeat)
    except CheckpointFormatError as error:
        log.warning("not_known_whether_it_was_refused", error=str(error))
        return None
    return None if found is None else str(found)


def _replacement(
    store: CheckpointStore, path: str, heartbeat: Heartbeat | None
) -> Replacement | None:
    found = store.read(path, Replacement)
    return found if found is not None and found.driver == driver_of(heartbeat) else None

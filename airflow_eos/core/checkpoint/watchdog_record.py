"""The newest look of a pipeline's watchdog, ``eos/watchdog.json``, and how old it may be."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from airflow_eos.core.checkpoint.backend import HEARTBEAT, WATCHDOG
from airflow_eos.core.checkpoint.store import CheckpointStore, read_clock
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Evidence, encode
from airflow_eos.errors import CheckpointFormatError

log = Log(__name__)


MISSED_LOOKS = 3
"""The number of its own intervals without a look after which a watchdog counts as stopped."""


class WatchdogRecord(Evidence, frozen=True, kw_only=True):
    """The newest look of a pipeline's watchdog; each look has another ``run_id``.

    ``interval_ms`` is how often the watchdog means to look; None where its schedule does not say.
    """

    words: ClassVar[tuple[str, ...]] = ("dag_id", "run_id")

    dag_id: str
    run_id: str
    interval_ms: Annotated[int, msgspec.Meta(ge=1)] | None


def note_look(store: CheckpointStore, look: WatchdogRecord) -> None:
    """Record a watchdog's look, so that whoever reads the checkpoint sees when the looks stop."""
    store.put(WATCHDOG, encode(look))


def read_look(store: CheckpointStore) -> WatchdogRecord | None:
    """Return the watchdog's newest look; None: there was none, or what was written is damaged."""
    try:
        return store.read(WATCHDOG, WatchdogRecord)
    except CheckpointFormatError as error:
        log.warning("watchdog_not_known", error=str(error))
        return None


def watchdog_warning(look: WatchdogRecord | None, silent_ms: float) -> str | None:
    """Return a warning of a watchdog whose newest look is that old; None: nothing to say."""
    if look is None or look.interval_ms is None:
        return None
    if silent_ms < MISSED_LOOKS * look.interval_ms:
        return None
    return (
        f"the watchdog {look.dag_id} has not looked for {silent_ms / look.interval_ms:.0f} of its "
        "intervals: is it paused, or does Airflow's scheduler stand still?"
    )


def missed_looks(store: CheckpointStore) -> str | None:
    """Return a warning where a watchdog has stopped, from one look; None where that tells nothing.

    By the store's own clock: for how long the driver has beaten since the watchdog's look.
    """
    look, at, beat = read_look(store), store.head(WATCHDOG), store.head(HEARTBEAT)
    if at is None or beat is None:
        return None
    return watchdog_warning(look, beat.modified_at_ms - at.modified_at_ms)


def is_watched(store: CheckpointStore, within_ms: int) -> bool:
    """Whether a watchdog looks at least every ``within_ms``, and has not missed its looks.

    By the store's clock.
    """
    look = read_look(store)
    often = look is not None and look.interval_ms is not None and look.interval_ms <= within_ms
    at = store.head(WATCHDOG) if often else None
    if at is None:
        return False
    now_ms = read_clock(store).told_ms
    silent_ms = None if now_ms is None else now_ms - at.modified_at_ms
    return silent_ms is not None and watchdog_warning(look, silent_ms) is None

"""A deadline on the age of the last settled batch."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

try:
    # Public, and left out of the stub that Airflow ships.
    from airflow.sdk import DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]
except ImportError:  # Airflow 3.1 has them, and exports them not
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

if TYPE_CHECKING:
    from airflow.sdk import AsyncCallback, SyncCallback  # type: ignore[attr-defined]


def settled_within(interval: timedelta, callback: AsyncCallback | SyncCallback) -> DeadlineAlert:
    """For ``deadline`` of the DAG of an emitter: call back if no batch is settled for so long.

    Its run begins when the batch before was told, and ends when the next one is; so how long the
    run has been there is how old the last settled batch is. It cannot know whether there was
    anything to read: :class:`~airflow_eos.sensors.CheckpointProgressSensor` tells a stall.

    Args:
        interval: longer than the emitter's ``every``, the trigger interval and the longest batch.
        callback: an awaitable, or a notifier with ``async_notify``, which runs in the triggerer; or
            a function, which runs in the executor (Airflow 3.2 and later).
    """
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=interval, callback=callback
    )

"""Checks that the same app goes on after the worker that had started it was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint.heartbeat import ENDED
from airflow_eos.errors import LocalEnvironmentError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import Heartbeat


def require_same(app: Heartbeat, now: Heartbeat) -> None:
    """Refuse a heartbeat ``now`` that is not of the app that ran when the worker was killed.

    Raises:
        LocalEnvironmentError: the app has ended, or another one has been started.
    """
    if now.application_id != app.application_id:
        raise LocalEnvironmentError(
            f"The task's next try has started {now.application_id} beside {app.application_id}."
        )
    if now.phase in ENDED:
        raise LocalEnvironmentError(
            f"{app.application_id} had ended ({now.phase}) before the task's next try looked: "
            "there was nothing to take over."
        )

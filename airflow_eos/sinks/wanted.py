"""A start that was called off ends before it takes anything: another driver may be well by now.

A cluster lets a start wait for its turn. Whoever has given it up has asked it to end, and has
mostly started another; the term of the late one would stop that one, and recovery seal its attempt.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import standing_request
from airflow_eos.checkpoint.heartbeat import STARTED_BY, StartedBy, request_to
from airflow_eos.errors import CalledOffError

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore


def require_wanted(store: CheckpointStore) -> None:
    """Refuse to begin where somebody has asked this very start to end: no term, and no beat.

    A request to whoever runs, or to a term, is not meant: this start has none yet.

    Raises:
        CalledOffError: so it is.
        CheckpointError: it cannot be told.
    """
    us = StartedBy.of_text(os.environ.get(STARTED_BY))
    if us is None:
        return
    request = standing_request(store)  # where a former release wrote one
    if request is None or request.submission != us.submission:
        request = request_to(store, us.submission)
    if request is not None:
        raise CalledOffError(
            f"{request.requested_by} has asked this start of the app to end ({request.reason}) "
            f"before it began: it leaves {store.location} to whoever runs it now. Nothing was "
            f"begun, and nothing is lost. {us} says whether the app is to be started again."
        )

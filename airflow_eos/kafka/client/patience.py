"""How long to wait for a coordinator, and how to wait between two questions."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from airflow_eos.kafka.client import faults

if TYPE_CHECKING:
    from airflow_eos.errors import KafkaUnavailableError

ANSWER_S = 10.0
"""An answer that takes longer counts as lost: a stopped broker's role has moved by then."""
FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.25


def remaining(deadline: float) -> float:
    """Seconds until ``deadline`` (by ``time.monotonic``), never zero, which means "no limit"."""
    return max(deadline - time.monotonic(), 0.001)


def pause(seconds: float) -> float:
    """Sleep about that long; returns how long to sleep the next time."""
    time.sleep(seconds * random.uniform(0.8, 1.2))  # noqa: S311 - only spreads retries
    return min(seconds * 2, _LONGEST_PAUSE_S)


def said(answer: int | KafkaUnavailableError) -> str:
    """What kept us waiting, for a message."""
    return faults.error_name(answer) if isinstance(answer, int) else str(answer)

"""What a checkpoint has settled, as events that follow one another without a gap.

- :mod:`.settled`: the pure half: batches in, events out, each batch in exactly one of them
- :mod:`.settled`: the batches, read from the checkpoint
- :mod:`.settled`: whether rows up to an offset are there
"""

from __future__ import annotations

from airflow_eos.events.settled import (
    Settled,
    SettledBatch,
    SettledEvent,
    behind,
    crosses,
    events_since,
    hours_completed,
    newest_of,
    newest_settled,
    pipeline_of,
    read_settled,
)

__all__ = [
    "Settled",
    "SettledBatch",
    "SettledEvent",
    "behind",
    "crosses",
    "events_since",
    "hours_completed",
    "newest_of",
    "newest_settled",
    "pipeline_of",
    "read_settled",
]

"""Are rows up to an offset there?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_eos.events.settled import SettledEvent

Wanted = Mapping[str, Mapping[str | int, int]]
"""``{topic: {partition: offset of the next row}}``, as tools that list ends of topics say it."""


def behind(end: Mapping[str, Any], wanted: Wanted) -> dict[str, dict[str, int]]:
    """By topic and partition, how many offsets are missing; empty where all are there.

    Args:
        end: where the sources are, as an event has it.
        wanted: what must have been read. A topic that no source reads is missing as a whole.
    """
    missing: dict[str, dict[str, int]] = {}
    for topic, partitions in wanted.items():
        for partition, offset in partitions.items():
            read = max((_read(source, topic, str(partition)) for source in end.values()), default=0)
            if read < offset:
                missing.setdefault(topic, {})[str(partition)] = offset - read
    return missing


def crosses(event: SettledEvent, wanted: Wanted) -> bool:
    """Whether this event is the one by which rows up to ``wanted`` are there.

    Events of a pipeline follow one another without a gap, so of all events exactly one is: who acts
    on that one alone acts once.
    """
    return bool(behind(event.start, wanted)) and not behind(event.end, wanted)


def _read(source: Any, topic: str, partition: str) -> int:
    """0 of a source that is not Kafka's, or has not seen the partition."""
    partitions = source.get(topic, {}) if isinstance(source, Mapping) else {}
    return int(partitions.get(partition, 0))

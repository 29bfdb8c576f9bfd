"""Where the first start of a pipeline begins to read a Kafka topic.

It holds for the first start only: once Spark has planned a batch the checkpoint decides, whatever
is configured here. Rows before the position are never read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from airflow_eos.core.arguments import Word, take_fields
from airflow_eos.errors import ConfigurationError

__all__ = ["StartPosition"]

_EXPECTED = (
    "expected earliest, latest, a moment with its zone (2026-11-23T10:00:00Z), or the offset of "
    'each partition as JSON ({"0": 1500, "1": 1710})'
)


def _is_offset(given: object) -> bool:
    """Whether it is a whole number that Kafka can have: 1500.7 and true are none of an offset."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63


def _has_zone(given: object) -> bool:
    return isinstance(given, datetime) and given.tzinfo is not None


def _are_offsets(given: object) -> bool:
    if not isinstance(given, Mapping) or not given:
        return False
    return all(map(_is_offset, (*given, *given.values())))


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A start position; make it with :meth:`earliest`, :meth:`latest`, :meth:`at`, :meth:`offsets`.

    Attributes:
        name: ``earliest``, ``latest``, or empty.
        timestamp_ms: rows of this moment (ms since the epoch) and later, by their time stamps.
        by_partition: the offset of the first row, for every partition there is.
    """

    name: Annotated[str, Word(words=("", "earliest", "latest"))] = ""
    timestamp_ms: int | None = None
    by_partition: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        take_fields(self)
        numbers = self.by_partition
        if numbers is not None and not _are_offsets(numbers):
            raise ConfigurationError(f"start {numbers}: {_EXPECTED}.")

    @classmethod
    def earliest(cls) -> StartPosition:
        """Return the position of the first row that the topic still holds."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartPosition:
        """Return the end position: rows are read that come after the first start has planned."""
        return cls("latest")

    @classmethod
    def at(cls, moment: datetime) -> StartPosition:
        """Return the position of each partition's first row with a time stamp from ``moment`` on.

        A partition that has no such row yet is read from its end.

        Raises:
            ConfigurationError: the moment has no zone.
        """
        if not _has_zone(moment):
            raise ConfigurationError(f"start {moment}: no moment with a zone; {_EXPECTED}.")
        return cls(timestamp_ms=round(moment.timestamp() * 1000))

    @classmethod
    def offsets(cls, by_partition: Mapping[int, int]) -> StartPosition:
        """Return the position at the given offset of each partition.

        Raises:
            ConfigurationError: no partition is given, or a number is none that Kafka has.
        """
        return cls(by_partition=by_partition or {})

    @classmethod
    def parsed(cls, text: str) -> StartPosition:
        """Return the position that an app's ``--start`` gives.

        Raises:
            ConfigurationError: the text is none of the four.
        """
        if text in ("earliest", "latest"):
            return cls(text)
        try:
            if text.lstrip().startswith("{"):
                told: Any = json.loads(text, object_pairs_hook=list)  # a name given twice is seen
                offsets = {int(number): offset for number, offset in told}
                if [str(number) for number in offsets] != [number for number, _ in told]:
                    raise ValueError  # noqa: TRY301 - one message for all that is wrong
                return cls.offsets(offsets)
            return cls.at(datetime.fromisoformat(text))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"start {text!r}: {_EXPECTED}.") from error

    def source_options(self, topic: str) -> dict[str, str]:
        """Return Spark's options of a source that subscribes to ``topic``."""
        if self.timestamp_ms is not None:
            return {
                "startingTimestamp": str(self.timestamp_ms),
                # Spark fails by default where a partition has no such row yet.
                "startingOffsetsByTimestampStrategy": "latest",
            }
        if self.by_partition is not None:
            offsets = {str(number): offset for number, offset in self.by_partition.items()}
            return {"startingOffsets": json.dumps({topic: offsets})}
        return {"startingOffsets": self.name}

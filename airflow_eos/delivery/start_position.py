"""Where the first start of a pipeline begins to read a Kafka topic.

For the first start only: once Spark has planned a batch the checkpoint decides, whatever is said
here. Rows before the position are never read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_eos.errors import ConfigurationError

_EXPECTED = (
    "expected earliest, latest, a moment with its zone (2026-11-23T10:00:00Z), or the offset of "
    'each partition as JSON ({"0": 1500, "1": 1710})'
)


@dataclass(frozen=True, slots=True)
class StartPosition:
    """One of the four; make it with :meth:`earliest`, :meth:`latest`, :meth:`at`, :meth:`offsets`.

    Attributes:
        name: ``earliest``, ``latest``, or empty.
        timestamp_ms: rows of this moment (ms since the epoch) and later, by their time stamps.
        by_partition: the offset of the first row, of every partition there is.
    """

    name: str = ""
    timestamp_ms: int | None = None
    by_partition: Mapping[int, int] | None = None

    @classmethod
    def earliest(cls) -> StartPosition:
        """All rows that the topic still holds."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartPosition:
        """Rows that come after the first start has planned its first batch."""
        return cls("latest")

    @classmethod
    def at(cls, moment: datetime) -> StartPosition:
        """Each partition from its first row whose time stamp is ``moment`` or later.

        A partition that has none yet is read from its end.

        Raises:
            ConfigurationError: the moment has no zone.
        """
        if moment.tzinfo is None:
            raise ConfigurationError(f"start {moment.isoformat()}: no zone; {_EXPECTED}.")
        return cls(timestamp_ms=round(moment.timestamp() * 1000))

    @classmethod
    def offsets(cls, by_partition: Mapping[int, int]) -> StartPosition:
        """Each partition from its offset.

        Raises:
            ConfigurationError: no partition, or a number below 0.
        """
        if not by_partition or min(*by_partition, *by_partition.values(), 0) < 0:
            raise ConfigurationError(f"start {dict(by_partition)}: {_EXPECTED}.")
        return cls(by_partition=dict(by_partition))

    @classmethod
    def parsed(cls, text: str) -> StartPosition:
        """What an app's ``--start`` says.

        Raises:
            ConfigurationError: none of the four.
        """
        if text in ("earliest", "latest"):
            return cls(text)
        try:
            if text.lstrip().startswith("{"):
                told: Any = json.loads(text)
                return cls.offsets({int(number): int(offset) for number, offset in told.items()})
            return cls.at(datetime.fromisoformat(text))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"start {text!r}: {_EXPECTED}.") from error

    def source_options(self, topic: str) -> dict[str, str]:
        """Spark's options of a source that subscribes to ``topic``."""
        if self.timestamp_ms is not None:
            return {
                "startingTimestamp": str(self.timestamp_ms),
                # Spark's default is to fail where a partition has no such row yet.
                "startingOffsetsByTimestampStrategy": "latest",
            }
        if self.by_partition is not None:
            offsets = {str(number): offset for number, offset in self.by_partition.items()}
            return {"startingOffsets": json.dumps({topic: offsets})}
        return {"startingOffsets": self.name}

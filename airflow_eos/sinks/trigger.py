"""Spark's trigger arguments, checked and measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_eos.errors import ConfigurationError

_UNITS = {
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_PART = re.compile(r"(\d+)\s*([a-z]+?)s?\b")


def trigger_interval(trigger: Mapping[str, Any]) -> timedelta:
    """How long the query waits between batches: zero for availableNow.

    Raises:
        ConfigurationError: not exactly one of processingTime or availableNow, or no interval.
    """
    match dict(trigger):
        case {"processingTime": str(text), **rest} if not rest:
            return parse_interval(text)
        case {"availableNow": True, **rest} if not rest:
            return timedelta(0)
    raise ConfigurationError(
        f"trigger {dict(trigger)!r}: expected {{'processingTime': '1 second'}} or "
        "{'availableNow': True}. Continuous processing has no batches to make exactly-once; "
        "'once' is the older form of availableNow."
    )


def parse_interval(text: str) -> timedelta:
    """An interval as Spark writes it: ``10 seconds``, ``1 minute 30 seconds``."""
    parts = _PART.findall(text.lower().removeprefix("interval"))
    if not parts or any(unit not in _UNITS for _, unit in parts):
        raise ConfigurationError(
            f"trigger interval {text!r}: expected a number and a unit of "
            f"{', '.join(_UNITS)}, such as '10 seconds'."
        )
    return sum((int(count) * _UNITS[unit] for count, unit in parts), timedelta(0))

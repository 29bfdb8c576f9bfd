"""Spark's trigger arguments, checked and measured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_eos.arguments import taken
from airflow_eos.errors import ConfigurationError


def trigger_interval(trigger: Mapping[str, Any]) -> timedelta:
    """How long the query waits between batches: zero for availableNow.

    Raises:
        ConfigurationError: not exactly one of processingTime or availableNow, or no interval.
    """
    match dict(trigger):
        case {"processingTime": str(text), **rest} if not rest:
            return taken("trigger_interval", text)  # type: ignore[no-any-return]
        case {"availableNow": True, **rest} if not rest:
            return timedelta(0)
    raise ConfigurationError(
        f"trigger {dict(trigger)!r}: expected {{'processingTime': '1 second'}} or "
        "{'availableNow': True}. Continuous processing has no batches to make exactly-once; "
        "'once' is the older form of availableNow."
    )

"""Places to die at, and transactions of others."""

from __future__ import annotations

from tests.integration.hazards.conftest import die_at
from tests.integration.kafka.conftest import raw_kafka

__all__ = ["die_at", "raw_kafka"]

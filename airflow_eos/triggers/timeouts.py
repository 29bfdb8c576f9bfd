"""The waiting half of ``TransactionTimeoutSensor``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_eos.triggers.polling import PollingTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.kafka.client.settings import KafkaSettings


class TransactionTimeoutTrigger(PollingTrigger):
    """Waits until a transaction runs out of time."""

    async def look(
        self, kafka: KafkaSettings, storage: Mapping[str, str], reach: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Look once."""
        from airflow_eos.supervision.watch import TimeoutWatch

        found = await asyncio.to_thread(TimeoutWatch(**self.watch).look, kafka, storage, reach)
        return {"error": None, "value": found} if found else None

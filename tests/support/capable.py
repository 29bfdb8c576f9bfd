"""What a cluster says that it can do, without a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_eos.kafka.client.cluster import NEEDS, BrokerCapabilities

EVERYTHING = {need.message.API_KEY: (0, need.message.max_version) for need in NEEDS}


def capable(
    *brokers: Collection[Any],
    settings: Mapping[str, str] | None = None,
    transaction_version: int = 2,
    silent: tuple[int, ...] = (),
    most: Mapping[Any, int] | None = None,
) -> BrokerCapabilities:
    """Brokers 1, 2, …: each lacks the messages that are given for it; one that lacks none else.

    ``most``: the highest version of a message, on all of them.
    """
    limits = {message.API_KEY: (0, highest) for message, highest in (most or {}).items()}
    return BrokerCapabilities(
        versions={
            number: {
                key: versions
                for key, versions in (EVERYTHING | limits).items()
                if key not in {message.API_KEY for message in lacks}
            }
            for number, lacks in enumerate(brokers or ((),), 1)
        },
        silent=silent,
        transaction_version=transaction_version,
        settings=settings or {},
    )

"""A login by SASL and an authorizer that denies all but the table of docs/security.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_eos.local import EmbeddedKafka
from tests.brokers.releases import OF_EACH_VERSION, running
from tests.integration.conftest import die_at
from tests.integration.hazards.test_least_acls import (
    AUTHORIZED,
    guarded,
    test_recovery_needs_no_more,
    test_the_app_needs_no_more,
)

__all__ = ["die_at", "guarded", "test_recovery_needs_no_more", "test_the_app_needs_no_more"]

SINCE = (3, 2)
"""``StandardAuthorizer`` (KIP-801): without ZooKeeper there is none before."""


@pytest.fixture(
    scope="module", params=[each for each in OF_EACH_VERSION if each.numbers >= SINCE], ids=str
)
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with running(request.param, AUTHORIZED, listeners={"SASL": "SASL_PLAINTEXT"}) as made:
        yield made

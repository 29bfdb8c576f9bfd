"""Two-sided postings to Kafka and PostgreSQL at once: the books balance for every reader, always.

Both sides of a posting are rows of one task, so of one prepared transaction: whoever looks, at
whatever moment of whatever crash, finds both or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import Action, execute_recovery
from tests.integration.kinds.delivery import BATCH, Delivery
from tests.support.auditor import Auditor
from tests.support.host import Host
from tests.support.kinds import KINDS
from tests.support.kinds.servers import Servers
from tests.support.pipeline import wait_until

pytestmark = [pytest.mark.integration]


@pytest.fixture
def delivery(
    kafka_broker: EmbeddedKafka, host: Host, spark: SparkSession, tmp_path: Path
) -> Iterator[Delivery]:
    with Servers(kafka_broker) as servers:
        reached = servers.of(KINDS["kafka+postgres"].servers)
        yield Delivery.made("kafka+postgres", kafka_broker, reached, host, spark, tmp_path)


@pytest.fixture
def auditor(delivery: Delivery) -> Iterator[Auditor]:
    looking = Auditor(delivery.at.servers["postgres"], delivery.at.tag)
    looking.start()
    yield looking
    looking.end()


def test_the_books_balance_for_every_reader_at_every_moment(
    delivery: Delivery, auditor: Auditor
) -> None:
    """In Kafka too, in the end, no posting has one side only."""
    for place in ("prepared@2", "settled-some@2", "decided@1"):
        delivery.pipeline.feed(2 * BATCH)
        delivery.killed(place)
    plan = delivery.plan()
    promised = plan.count(Action.COMMIT, Action.REPLAY)  # where Kafka's timeout was faster
    assert promised == len(plan.steps) > 0
    report = execute_recovery(plan, delivery.at.kafka, reach=delivery.reach, force=True)
    report.require_complete()
    delivery.resume()
    wait_until(lambda: auditor.looks >= 10_000, timeout=120, what="10,000 looks at the books")
    auditor.end()

    assert auditor.unbalanced == []
    assert len(auditor.rows_seen) > 5, "it looked while rows came"
    delivery.assert_exactly_once()

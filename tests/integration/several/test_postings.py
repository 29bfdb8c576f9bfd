"""Two-sided postings to Kafka and PostgreSQL at once: the books balance for every reader, always.

Both sides of a posting are rows of one task, so of one prepared transaction: whoever looks, at
whatever moment of whatever crash, finds both or none.
"""

from __future__ import annotations

from collections import Counter
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
from tests.support.topics import read_topic

pytestmark = pytest.mark.proof

LOOKS = 10_000
ALL_SETTLED = ("settled@1", "prepared@2")
"""Deaths after which readers of the topic are at the offsets of a batch that was settled."""


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


def one_sided(delivery: Delivery) -> list[str]:
    """Postings in the topic of which a reader finds one side, now."""
    rows = read_topic(delivery.pipeline.bootstrap, f"{delivery.at.tag}-out")
    sides = {side: Counter(v for key, v in rows if key.startswith(side)) for side in ("from", "to")}
    assert sides["from"].total() > 0
    return [*(sides["from"] - sides["to"]), *(sides["to"] - sides["from"])]


def test_the_books_balance_for_every_reader_at_every_moment(
    delivery: Delivery, auditor: Auditor
) -> None:
    """In Kafka too, in the end, no posting has one side only."""
    for place in ("settled@1", "prepared@2", "settled-some@2", "decided@1"):
        delivery.pipeline.feed(2 * BATCH)
        delivery.killed(place)
        auditor.look_on(LOOKS // 5)  # at what this death has left
        if place in ALL_SETTLED:
            assert one_sided(delivery) == []
    plan = delivery.plan()
    promised = plan.count(Action.COMMIT, Action.REPLAY)  # where Kafka's timeout was faster
    assert promised == len(plan.steps) > 0
    report = execute_recovery(plan, delivery.at.kafka, reach=delivery.reach, force=True)
    report.require_complete()
    delivery.resume()
    auditor.look_on(LOOKS // 5)
    auditor.end()

    assert auditor.looks >= LOOKS
    assert auditor.unbalanced == []
    assert one_sided(delivery) == []
    assert len(auditor.rows_seen) > 5, "it looked while rows came"
    delivery.assert_exactly_once()

"""Dynamic allocation on Spark standalone: executors come and go while a stream runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import StreamFactory
from tests.cluster.stream import end
from tests.cluster.test_standalone import CLUSTER, SMALL, shipped
from tests.support.servers.standalone import EmbeddedStandalone

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

COMING_AND_GOING = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",  # there is no shuffle service
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",  # whole seconds
}


def test_executors_come_with_a_backlog_and_go_when_it_is_done(
    standalone: EmbeddedStandalone, stream: StreamFactory, environment: Path
) -> None:
    one = stream(CLUSTER)
    app = one.submit(
        standalone.url, {**SMALL, **shipped(environment), **COMING_AND_GOING}, batch=300
    )
    one.feed(3000)
    while standalone.executors() <= 1:
        one.require_progress(app)
    one.wait_until_visible(app)
    while standalone.executors() > 1:
        one.require_progress(app)
    one.feed(500)
    one.wait_until_visible(app)
    one.judge("nothing: executors came and went by dynamic allocation")
    end(app)

"""What a process remembers of a cluster, while threads forget and look up beside one another."""

from __future__ import annotations

import pytest

from tests.support.metadata import Metadata

pytestmark = pytest.mark.unit


def test_leaders_that_another_thread_forgets_are_told_to_who_has_just_looked_them_up():
    metadata = Metadata({"in": {0: 1}})
    metadata.learns = lambda: metadata.cluster._leaders.clear()  # as a refresh beside begins
    assert metadata.cluster.leaders("in") == {0: 1}


def test_coordinators_that_another_thread_forgets_are_told_to_who_has_just_looked_them_up():
    metadata = Metadata({})
    cluster = metadata.cluster
    cluster.coordinators(["etl-0-0"])
    metadata.learns = lambda: cluster.forget_coordinators(["etl-0-0", "etl-1-0"])
    assert cluster.coordinators(["etl-0-0", "etl-1-0"]) == {"etl-0-0": 1, "etl-1-0": 1}

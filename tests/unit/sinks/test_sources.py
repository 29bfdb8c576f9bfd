"""Which sources give their rows once only."""

from __future__ import annotations

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.sources import StreamSource, require_replayable


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_socket_is_refused_also_beside_others(guarantee):
    sources = [StreamSource("kafka", {}), StreamSource("socket", {})]
    with pytest.raises(ConfigurationError, match=f"'socket'.*{guarantee}"):
        require_replayable(sources, guarantee)


def test_whoever_asks_for_no_row_twice_may_read_it():
    require_replayable([StreamSource("socket", {})], "at_most_once")


@pytest.mark.parametrize("name", ["kafka", "rate", "rate-micro-batch", "FileSource[/in]", "mine"])
def test_others_are_read(name):
    require_replayable([StreamSource(name, {})], "exactly_once")

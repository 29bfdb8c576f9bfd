"""Where a first start begins: what a person may say, and what Spark is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.sinks.source import StartPosition


@pytest.mark.parametrize("name", ["earliest", "latest"])
def test_the_ends_of_a_topic(name):
    assert StartPosition.parsed(name).source_options("in") == {"startingOffsets": name}


def test_a_moment_in_any_zone():
    position = StartPosition.parsed("2026-11-23T11:00:00+01:00")
    assert position == StartPosition.at(datetime(2026, 11, 23, 10, tzinfo=UTC))
    options = position.source_options("in")
    assert options["startingTimestamp"] == "1795428000000"
    assert options["startingOffsetsByTimestampStrategy"] == "latest"


def test_the_offset_of_each_partition():
    position = StartPosition.parsed('{"0": 1500, "1": 0}')
    assert position == StartPosition.offsets({0: 1500, 1: 0})
    told = json.loads(position.source_options("in")["startingOffsets"])
    assert told == {"in": {"0": 1500, "1": 0}}


@pytest.mark.parametrize(
    "text",
    ["", "group", "beginning", "2026-11-23T10:00:00", "{}", '{"0": -1}', '{"a": 1}', '{"0": null}'],
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(ConfigurationError, match="expected earliest, latest"):
        StartPosition.parsed(text)

"""Which sources give their rows once only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_eos.delivery.source import (
    StreamSource,
    check_sources,
    require_one_cluster,
    require_replayable,
)
from airflow_eos.errors import ConfigurationError


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


def test_a_consumer_group_is_of_one_cluster_and_so_is_what_goes_on_from_it():
    """Of topics of one name it had the lower of two offsets, and began there in both."""

    def reading(*servers: str) -> list[StreamSource]:
        kafka = [StreamSource("kafka", {"kafka.bootstrap.servers": each}) for each in servers]
        return [StreamSource("rate", {}), *kafka]

    for one in ((), ("a:1",), ("a:1,b:1", "b:1, c:1"), ("a:1", "a:1")):
        require_one_cluster(reading(*one))
    with pytest.raises(ConfigurationError, match="several Kafka clusters"):
        require_one_cluster(reading("a:1,b:1", "b:1", "c:1"))


class Options(dict[str, str]):
    """As Spark's map has them: names in lower case."""

    keySet = dict.keys  # noqa: N815 - Java's name


def frame(**options: str) -> Any:
    """A query on Kafka, as its plan tells."""
    relation = SimpleNamespace(getSimpleName=lambda: "StreamingRelationV2")
    leaf = SimpleNamespace(
        isStreaming=lambda: True,
        sourceName=lambda: "kafka",
        getClass=lambda: relation,
        extraOptions=lambda: Options(options),
    )
    leaves = SimpleNamespace(length=lambda: 1, apply=lambda _number: leaf)
    plan = SimpleNamespace(collectLeaves=lambda: leaves)
    return SimpleNamespace(
        _jdf=SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: plan))
    )


@pytest.mark.parametrize(("told", "warnings"), [("False", 1), ("true", 0), ("", 0)])
def test_a_source_that_may_leave_rows_out_is_warned_of(told, warnings):
    with capture_logs() as logged:
        check_sources(frame(**({"failondataloss": told} if told else {})), "exactly_once")
    assert [each["event"] for each in logged] == ["rows_may_be_skipped"] * warnings


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"subscribe": "a, b"}, {"a", "b"}),
        ({"assign": '{"a":[0,1]}'}, {"a"}),
        ({"subscribepattern": "a.*"}, None),
        ({"subscribe": "a", "failondataloss": "false"}, None),
    ],
)
def test_which_topics_a_source_reads_is_known_where_they_are_named_and_none_may_go(options, topics):
    [source] = check_sources(frame(**options), "exactly_once")
    assert source.topics == topics


def test_a_spark_that_does_not_tell_is_refused():
    with pytest.raises(ConfigurationError, match=r"Spark 4\.0 to 4\.2"):
        check_sources(SimpleNamespace(), "exactly_once")  # type: ignore[arg-type]

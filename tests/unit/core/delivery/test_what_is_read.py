"""What a source reads, as decisions promise it: by name, without secrets, and no more than that."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from airflow_eos.core.delivery.source import StreamSource, reads, tell_of_unheld


def told(name: str, **options: str) -> dict[str, str]:
    named = {each.replace("__", "."): value for each, value in options.items()}
    return reads(StreamSource(name, named)).options


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"subscribe": "a, b"}, {"subscribe": "b,a"}),
        ({"subscribe": "a"}, {"subscribe": "a", "startingoffsets": "latest"}),
        ({"assign": '{"a":[0], "b":[1]}'}, {"assign": '{"b": [1], "a": [0]}'}),
        ({"subscribe": "a"}, {"subscribe": "a", "maxoffsetspertrigger": "7"}),
        ({"subscribe": "a"}, {"subscribe": "a", "kafka__max.poll.records": "7"}),
        ({"subscribe": "a"}, {"subscribe": "a", "kafka__sasl.jaas.config": "secret"}),
        ({"kafka__bootstrap.servers": "a:1,b:1"}, {"kafka__bootstrap.servers": "b:1, a:1"}),
    ],
)
def test_what_reads_the_same_rows_of_kafka_is_told_alike(one, other):
    assert told("kafka", **one) == told("kafka", **other)


@pytest.mark.parametrize(
    "other",
    [
        {"subscribe": "a,b"},
        {"subscribepattern": "a"},
        {"assign": '{"a":[0]}'},
        {"subscribe": "a", "startingoffsets": "earliest"},
        {"subscribe": "a", "startingoffsets": '{"a":{"0":5}}'},
        {"subscribe": "a", "startingtimestamp": "5"},
        {"subscribe": "a", "failondataloss": "false"},
        {"subscribe": "a", "includeheaders": "true"},
        {"subscribe": "a", "kafka__isolation.level": "read_committed"},
        {"subscribe": "a", "kafka__bootstrap.servers": "a:1"},
    ],
)
def test_what_reads_other_rows_of_kafka_is_told_apart(other):
    assert told("kafka", subscribe="a") != told("kafka", **other)


FILES = {"format": "json", "path": "/in", "schema": "{}"}


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/in*"},
        {"format": "csv"},
        {"schema": '{"fields":[]}'},
        {"pathglobfilter": "*.json"},
        {"recursivefilelookup": "true"},
        {"mode": "DROPMALFORMED"},
        {"modifiedafter": "2026-01-01"},
        {"maxfileage": "1d"},
    ],
)
def test_what_reads_other_files_is_told_apart(changed):
    other = reads(StreamSource("FileSource[/in]", FILES | changed))
    assert other != reads(StreamSource("FileSource[/in]", FILES))
    assert "sha256" not in other.options["path"], "a person is to read it"


def test_how_fast_files_are_read_says_nothing():
    limits = {"maxfilespertrigger": "1", "maxbytespertrigger": "1g", "maxcachedfiles": "7"}
    assert reads(StreamSource("FileSource[/in]", FILES | limits)) == reads(
        StreamSource("FileSource[/in]", FILES)
    )


def test_no_secret_is_in_a_decision():
    user = told("mine", url="https://u:p4ssw0rd@h/", password="p4ssw0rd", table="t")
    assert user.keys() == {"url", "table"}, "a digest of a short secret tells it"
    files = reads(StreamSource("FileSource[x]", {"path": "s3a://id:p4ssw0rd@b", "token": "p4ss"}))
    assert "p4ss" not in str(user) + str(files.options)
    assert user["table"] != told("mine", table="u")["table"]


def test_what_is_told_of_a_source_is_bounded():
    many = ",".join(f"a-topic-{number}" for number in range(1000))
    assert len(told("kafka", subscribe=many)["subscribe"]) < 50


def test_a_source_whose_offsets_nobody_else_understands_is_named():
    known = [StreamSource(name, {}) for name in ("kafka", "rate", "rate-micro-batch")]
    with capture_logs() as said:
        tell_of_unheld([*known, StreamSource("FileSource[/in]", {}), StreamSource("mine", {})])
    assert [each["source"] for each in said] == ["mine"]

"""Which topics and folders are a query's own: by ids and paths, and never by a name alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.core.delivery.outputs import OneSink
from airflow_eos.core.delivery.own_output import OwnOutput
from airflow_eos.core.delivery.source import StreamSource
from airflow_eos.errors import ConfigurationError, KafkaUnavailableError


class Kafka:
    """A sink on a cluster whose topic ``out`` has the id A."""

    name = "sink"
    answers = True

    def topics_of(self, works):
        return {"out", *works}

    def topic_ids(self, topics):
        if not self.answers:
            raise KafkaUnavailableError("nobody is there")
        return {topic: {"out": "A", "in": "B"}[topic] for topic in topics}


def read(sink, ids, *, wanted: bool = False):
    own = OwnOutput(OneSink(sink), wanted=wanted)
    return own, own.watched(lambda: ids)


def test_the_same_topic_by_another_name_of_its_cluster_is_refused_by_its_id():
    with pytest.raises(ConfigurationError, match=r"own output, topic .out.*reads_own_output"):
        read(Kafka(), {"in": "B", "out": "A"})[1]()


def test_a_topic_of_that_name_on_another_cluster_is_another_topic():
    assert read(Kafka(), {"out": "C"})[1]() == {"out": "C"}


def test_who_asks_for_it_by_name_reads_his_own_output():
    assert read(Kafka(), {"out": "A"}, wanted=True)[1]() == {"out": "A"}


def test_a_topic_that_rows_name_is_held_once_they_are_prepared():
    own, asked = read(Kafka(), {"in": "B"})
    assert asked() == {"in": "B"}
    own.note([SimpleNamespace(work="in", participant="sink")])
    with pytest.raises(ConfigurationError, match="topic 'in'"):
        asked()


def test_where_an_output_does_not_answer_nothing_is_concluded_of_a_topic_of_its_name():
    sink = Kafka()
    sink.answers = False
    _, asked = read(sink, {"out": "A"})
    with pytest.raises(KafkaUnavailableError):
        asked()
    _, beside = read(sink, {"in": "B"})
    assert beside() == {"in": "B"}, "another name is another topic, whoever answers"
    sink.answers = True
    with pytest.raises(ConfigurationError, match="topic 'out'"):
        asked()


@pytest.mark.parametrize(
    ("source", "output", "is_own"),
    [
        ("/data/in", "/data/in", True),
        ("/data", "/data/out", True),
        ("/data/in/x", "/data/in", True),
        ("file:///data/in/", "/data/./in", True),
        ("/data/{in,out}/*", "/data/out", True),
        ("/data/in-*", "/data/in-clean", True),
        ("/data/in-*", "/data/out", False),
        ("/data/in", "/data/input", False),
        ("s3a://one/in", "s3://one/in", True),
        ("s3a://one/in", "s3a://two/in", False),
        ("s3a://one/in", "/one/in", False),
    ],
)
def test_folders_meet_where_one_is_in_the_other(source, output, is_own):
    require_folders(source, output, is_own=is_own)


@pytest.mark.parametrize(
    ("source", "output", "is_own"),
    [
        ("link", "out", True),
        ("out", "link", True),
        ("link/", "out/x", True),
        ("li*", "out", True),
        ("[^x]ut", "out", True),
        ("in", "out", False),
        ("in/*", "out", False),
    ],
)
def test_folders_meet_by_a_link(tmp_path, source, output, is_own):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "in/0.json").touch()
    require_folders(f"{tmp_path}/{source}", f"{tmp_path}/{output}", is_own=is_own)


def require_folders(source, output, *, is_own):
    sink = SimpleNamespace(name="sink", written_folder=output)
    own = OwnOutput(OneSink(sink), wanted=False)
    start: Any = SimpleNamespace(
        read=SimpleNamespace(sources=[StreamSource("json", {"path": source})])
    )
    if is_own:
        with pytest.raises(ConfigurationError, match="own output, folder"):
            own.before_term(start)
    else:
        own.before_term(start)

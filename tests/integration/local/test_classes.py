"""The archive of the broker's classes is one that Java takes, and no broker depends on it."""

from __future__ import annotations

import os

import pytest

from airflow_eos.local import EmbeddedKafka
from airflow_eos.local import broker as classes
from airflow_eos.local.broker import class_archive


@pytest.mark.long
def test_the_archive_is_mapped_and_not_silently_refused(tmp_path):
    log = tmp_path / "classes.log"
    with EmbeddedKafka(java_options=[f"-Xlog:class+load:file={log}"]):
        loaded = log.read_text().splitlines()
    kafka = [line for line in loaded if " org.apache.kafka." in line]
    mapped = [line for line in kafka if "source: shared objects file (top)" in line]
    assert len(mapped) > 0.9 * len(kafka), kafka[:3]


@pytest.mark.long
def test_a_broker_starts_without_an_archive_that_could_not_be_made(tmp_path):
    empty = tmp_path / "empty.jsa"
    empty.touch()
    with EmbeddedKafka(java_options=[f"-XX:SharedArchiveFile={empty}"]) as broker:
        assert broker.create_topic("here") == "here"


def test_another_jar_gets_another_archive_and_the_oldest_ones_go(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_EOS_CACHE", str(tmp_path))
    monkeypatch.setattr(classes, "_make", lambda archive: archive.touch())
    made = []
    for number in range(classes._KEPT + 2):
        jar = tmp_path / f"{number}.jar"
        jar.touch()
        monkeypatch.setattr(classes, "class_path", lambda jar=jar: str(jar))
        made.append(class_archive.__wrapped__())
        os.utime(made[-1], (number, number))
    assert [archive.exists() for archive in made] == [False] * 2 + [True] * classes._KEPT

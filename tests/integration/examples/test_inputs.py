"""What ``python -m demo.inputs`` writes is what the example apps read."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from io import BytesIO
from typing import Any

import fastavro
import pytest

from demo import registry
from demo.inputs import MADE, PERSON, message, person
from tests.support.examples import ROOT
from tests.support.topics import read_raw


@pytest.mark.parametrize("app", MADE)
def test_a_row_is_made_of_its_number_alone(app):
    rows = [MADE[app](number) for number in range(50)]
    assert rows == [MADE[app](number) for number in range(50)]
    assert len(set(rows)) > 1


def test_each_fifth_message_is_sent_again():
    ids = [json.loads(message(number)[1])["id"] for number in range(100)]
    assert len(ids) - len(set(ids)) == 20


@pytest.mark.long
def test_rows_come_to_the_topic_and_avro_by_the_registry(kafka_broker, topic):
    people = topic("people")
    with registry.running() as running:
        command = [
            *(sys.executable, "-m", "demo.inputs", "avro_windows", "--topic", people),
            *("-b", kafka_broker.bootstrap_servers, "--registry", running.url),
            *("--rows", "8", "--rate", "1000"),
        ]
        subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    assert running.subjects == {f"{people}-value": [1]}
    assert json.loads(running.schemas[0]) == PERSON

    rows = [value for _, value in read_raw(kafka_broker.bootstrap_servers, people)]
    assert {row[:5] for row in rows} == {struct.pack(">bI", 0, 1)}
    told: list[Any] = [fastavro.schemaless_reader(BytesIO(row[5:]), PERSON, None) for row in rows]
    assert told == [person(number) for number in range(8)]
    assert [len(each["identifyNumber"]) for each in told] == [17, *[18] * 6, 17]

"""A silence is reported once, by the readings' own time, and a late reading changes nothing."""

from __future__ import annotations

import json

import pytest

from tests.support.topics import produce, read_topic


def reading(sensor: str, time: str, celsius: float) -> tuple[str, str]:
    told = {"sensor": sensor, "at": f"2026-11-23T10:{time}Z", "celsius": celsius}
    return sensor, json.dumps(told)


@pytest.mark.examples
def test_a_silent_sensor_is_reported_once_and_late_readings_are_dropped(
    example, play, topic, kafka_broker
):
    readings, silent = topic("readings"), topic("silent", 2)
    app = example(
        "sensors",
        *("--input-topic", readings, "--output-topic", silent),
        *("--state-partitions", "2", "--max-offsets-per-trigger", "4"),
    )
    rows = [
        reading("a", "00:00", 20),
        reading("b", "00:00", 10),
        reading("a", "00:20", 22),
        reading("a", "00:10", 25),  # out of order, and counted
        # the next batch: b goes on, the watermark is at 01:00 after it, the timer of a at 01:20
        reading("b", "01:00", 11),
        reading("b", "01:30", 12),
        ("b", "noise"),
        reading("a", "00:55", 21),  # in time yet: the silence of a would begin here
        # 02:40 less 30 seconds: a has been silent since 00:55 for a minute, and b goes on
        reading("b", "02:00", 13),
        reading("b", "02:40", 14),
        reading("c", "02:30", 1),
        reading("c", "02:31", 2),
        # a late reading of a: its silence has been reported, and it is no new beginning
        reading("a", "01:00", 99),
        reading("b", "02:50", 9),
        reading("d", "02:50", 5),
        reading("d", "09:00", 6),  # all but d have been silent by now
    ]
    produce(kafka_broker.bootstrap_servers, readings, rows)

    play(app, "prepared@2", "decided@2")
    app.assert_rocksdb()

    got = [json.loads(value) for _, value in read_topic(kafka_broker.bootstrap_servers, silent)]
    assert sorted((each["sensor"], each["lastHeard"][14:19], each["readings"]) for each in got) == [
        ("a", "00:55", 4),
        ("b", "02:50", 6),
        ("c", "02:31", 2),
    ]
    assert {each["sensor"]: each["highest"] for each in got} == {"a": 25, "b": 14, "c": 2}

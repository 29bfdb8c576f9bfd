"""Words are counted exactly, through two deaths."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

from demo.inputs import line
from tests.support.topics import produce, read_topic

COUNTS = Counter(once=4, exactly=1, all=1, enough=1, für=1, alle=1, à=1, la=1, carte=1)
COUNTS.update(["and", "for", "is"])


@pytest.mark.long
def test_each_word_has_its_count_and_no_count_comes_twice(example, play, topic, kafka_broker):
    lines, counts = topic("lines"), topic("counts", 2)
    app = example(
        "word_count",
        *("--input-topic", lines, "--output-topic", counts),
        *("--state-partitions", "2", "--max-offsets-per-trigger", "60"),
    )
    produce(kafka_broker.bootstrap_servers, lines, map(line, range(180)))

    play(app, "prepared@2", "decided@2")
    app.assert_rocksdb()

    seen: dict[str, list[int]] = defaultdict(list)
    for word, value in read_topic(kafka_broker.bootstrap_servers, counts):
        assert json.loads(value)["word"] == word
        seen[word].append(json.loads(value)["count"])
    assert {word: each[-1] for word, each in seen.items()} == {
        word: 60 * times for word, times in COUNTS.items()
    }
    assert seen["once"] == [80, 160, 240], "a count for each batch, and none twice"

"""What an ordinary admin client sees of a consumer group, and whether that is ever too much.

The client is kafka-python's. (confluent-kafka's ``list_consumer_group_offsets`` crashes the process
where ``__consumer_offsets`` is being created: 2.16.)
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Self

import kafka
from confluent_kafka import Consumer, TopicPartition
from kafka.errors import RetriableError
from kafka.structs import OffsetAndMetadata


class GroupSeen:
    """One group, looked at as often as one likes."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        self._group = group

    def offsets(self) -> dict[tuple[str, int], int]:
        return {
            (place.topic, place.partition): each.offset for place, each in self.committed().items()
        }

    def committed(self) -> dict[kafka.TopicPartition, OffsetAndMetadata]:
        """With what stands beside the offsets."""
        deadline = time.monotonic() + 300
        while True:
            try:
                return dict(self._admin.list_group_offsets({self._group: None})[self._group])
            except RetriableError:  # a new broker makes __consumer_offsets
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def reset(self, offsets: dict[tuple[str, int], int]) -> None:
        """As ``kafka-consumer-groups --reset-offsets`` does it."""
        self.put_back(
            {
                kafka.TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
                for place, offset in offsets.items()
            }
        )

    def put_back(self, committed: dict[kafka.TopicPartition, OffsetAndMetadata]) -> None:
        """As who restores a group, or copies one to another cluster (MirrorMaker), does it."""
        self._admin.alter_group_offsets(self._group, committed)

    def delete(self) -> None:
        self._admin.delete_groups([self._group])

    def close(self) -> None:
        self._admin.close()


class Watch:
    """Looks again and again whether a group is ahead of what ``read_committed`` readers have.

    Each look asks for the group's offsets *first*, and reads the output to the end that it has
    after that: a row of the input before an offset of the group must be there.
    """

    def __init__(self, bootstrap: str, group: str, *, source: str, output: str) -> None:
        self.looks = 0
        self.ahead: list[str] = []
        self.seen = GroupSeen(bootstrap, group)
        self._input = Tail(bootstrap, source)
        self._output = Tail(bootstrap, output)
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(120)
        self._input.close()
        self._output.close()
        self.seen.close()
        if self._failure is not None:
            raise self._failure

    def behind(self) -> int:
        """How many rows of the input the group does not show as settled; a last look."""
        with self._looking:
            return self._look()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.01):
                with self._looking:
                    self._look()
        except Exception as error:  # noqa: BLE001 - raised where the test waits
            self._failure = error

    def _look(self) -> int:
        offsets = self.seen.offsets()
        self._input.to_the_end()
        self._output.to_the_end()
        there = set(self._output.rows.values())
        behind = 0
        for (topic, partition, offset), value in self._input.rows.items():
            if offset >= offsets.get((topic, partition), 0):
                behind += 1
            elif value not in there:
                self.ahead.append(f"look {self.looks}: {topic}/{partition}@{offset} {value}")
        self.looks += 1
        return behind


class Tail:
    """What a ``read_committed`` reader has of a topic, as it goes on."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.rows: dict[tuple[str, int, int], str] = {}
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 5,
            }
        )
        found = self._consumer.list_topics(topic, timeout=60).topics[topic].partitions
        self._places = [TopicPartition(topic, p, 0) for p in found]
        self._consumer.assign(self._places)

    def to_the_end(self) -> None:
        """Read up to what is stable now; a marker at the end is no row, and is passed over."""
        ends = {
            place.partition: self._consumer.get_watermark_offsets(place, timeout=10)[1]
            for place in self._places
        }
        deadline = time.monotonic() + 300
        while any(self._position(p) < end for p, end in ends.items()):
            assert time.monotonic() < deadline, f"{self._topic} cannot be read to {ends}"
            for message in self._consumer.consume(5000, timeout=0.02):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.rows[self._topic, partition, offset] = message.value().decode()

    def _position(self, partition: int) -> int:
        [found] = self._consumer.position([TopicPartition(self._topic, partition)])
        return max(found.offset, 0)

    def close(self) -> None:
        self._consumer.close()

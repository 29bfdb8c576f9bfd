"""What a range reader does with answers that a real broker gives too seldom to wait for."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import crc32c
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData
from msgspec import structs

from airflow_eos.errors import (
    InputError,
    KafkaError,
    KafkaUnavailableError,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.cluster import ClusterView
from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
from airflow_eos.kafka.client.fetch import ahead, only_partition
from airflow_eos.kafka.client.messages import ListOffsetsRequest
from airflow_eos.kafka.client.offsets import (
    LATEST,
    cleanup_policies,
    cluster_clock_ms,
    log_ends,
    positions,
    topic_ids,
)
from airflow_eos.kafka.client.reading import OffsetSpan, read_span
from airflow_eos.kafka.columns import SCHEMA
from airflow_eos.kafka.transactions import outcomes
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from airflow_eos.kafka.transactions.outcomes import delivered_rows
from tests.model.wire import VirtualTime
from tests.unit.kafka.test_tables import built

ROW: Any = (b"k", b"v", [], 1)
CORRUPT, NOT_LEADER = 2, 6
EARLIEST_LOCAL = -4


def answer(
    records: bytes = b"",
    *,
    code: int = 0,
    end: int = 100,
    aborted: Sequence[tuple[int, int]] = (),
    elsewhere: int = -1,
) -> Any:
    """``aborted``: the producers, and where each began; ``elsewhere``: the replica to ask."""
    partition = SimpleNamespace(
        error_code=code,
        records=records,
        aborted_transactions=[
            SimpleNamespace(producer_id=producer, first_offset=first) for producer, first in aborted
        ],
        last_stable_offset=end,
        high_watermark=end,
        preferred_read_replica=elsewhere,
    )
    return SimpleNamespace(responses=[SimpleNamespace(partitions=[partition])])


THROTTLED = SimpleNamespace(responses=[])


class Scripted:
    """A wire whose leader gives these answers, one after the other, then the last one for ever.

    ``local``: where its disk begins, None of a broker too old to say; ``code``: said instead;
    ``policy``: of the topic's cleanup, None where it may not be read.
    """

    def __init__(
        self, *answers: Any, local: int | None = 0, code: int = 0, policy: str | None = "compact"
    ) -> None:
        self._answers = list(answers)
        self._policy = policy
        self._local, self._code = local, code
        self.asked: list[int] = []
        self.requests: list[Any] = []
        self.refreshed = 0
        self.cluster = self

    def leaders(self, _topic: str, *, refresh: bool = False) -> dict[int, int]:
        self.refreshed += refresh
        return {0: 1, 3: 1} if self.refreshed else {0: 1}

    def topic_config(self, _topic: str, _names: list[str]) -> dict[str, str]:
        if self._policy is None:
            raise TopicError("Not authorized to DescribeConfigs.")
        return {"cleanup.policy": self._policy}

    def highest_version(self, message_class: Any) -> int:
        assert message_class is ListOffsetsRequest
        return 7 if self._local is None else 11

    def submit(self, request: Any, *, node_id: int) -> Future[Any]:
        assert node_id == 1
        future: Future[Any] = Future()
        [wanted] = request.topics[0].partitions
        if isinstance(request, ListOffsetsRequest):
            assert (wanted.timestamp, self._local is None) == (EARLIEST_LOCAL, False)
            told = SimpleNamespace(
                partition_index=wanted.partition_index, error_code=self._code, offset=self._local
            )
            topic = SimpleNamespace(name=request.topics[0].name, partitions=[told])
            future.set_result(SimpleNamespace(topics=[topic]))
            return future
        self.asked.append(wanted.fetch_offset)
        self.requests.append(request)
        said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(said, Exception):
            future.set_exception(said)
        else:
            for topic in said.responses:
                topic.topic = request.topics[0].topic
                topic.partitions[0].partition_index = wanted.partition
            future.set_result(said)
        return future


def read(wire: Any, until: int, **how: Any) -> list[int]:
    span = OffsetSpan("orders", 0, 0, until)
    return [b.base_offset for batches in read_span(wire, span, **how) for b in batches]


def test_a_batch_with_a_flipped_bit_is_an_error_that_names_topic_partition_and_offset():
    records = bytearray(built([ROW] * 3))
    records[-1] ^= 1
    with pytest.raises(
        InputError, match=r"offset 0 of partition 0 of topic 'orders' is garbled: its CRC"
    ):
        read(Scripted(answer(bytes(records))), 3)


def test_a_garbled_batch_behind_the_range_is_not_looked_at_and_the_one_before_it_is_read():
    """A person may have ruled to step over it; answers hold what follows, too."""
    good, bad = built([ROW] * 2), bytearray(built([ROW]))
    bad[:8] = struct.pack(">q", 2)
    bad[-1] ^= 1
    wire = Scripted(answer(good + bytes(bad)))
    assert read(wire, 2) == [0]
    assert wire.asked == [0]
    with pytest.raises(InputError, match="offset 2 of partition 0"):
        read(Scripted(answer(good + bytes(bad))), 3)


@pytest.mark.parametrize("follows", [True, False])
def test_the_way_around_a_garbled_batch_ends_before_the_next_one_or_with_the_range(follows):
    """Its own word of where it ends is under the CRC that does not hold."""
    bad, good = bytearray(built([ROW] * 3)), bytearray(built([ROW]))
    good[:8] = struct.pack(">q", 3)
    bad[23:27] = struct.pack(">i", 1 << 30)
    with pytest.raises(InputError, match="its CRC") as told:
        read(Scripted(answer(bytes(bad + good) if follows else bytes(bad))), 50)
    last = 2 if follows else 49
    _, step = told.value.remedies
    assert step.commands == (f"airflow-eos accept CHECKPOINT --skip-input orders:0:0-{last} --yes",)
    assert f"{last + 1} at most" in step.costs


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_from_before_kafka_0_11_are_refused_by_the_name_of_their_format(magic):
    """As the log of a topic that is older than its brokers has them, behind newer ones too."""
    old = bytearray(40)
    old[:12] = struct.pack(">qi", 1, len(old) - 12)
    old[16] = magic
    expected = rf"topic 'orders' has at offset 1 is a message of format {magic}.* Spark's Kafka"
    with pytest.raises(InputError, match=expected):
        read(Scripted(answer(built([ROW])), answer(bytes(old))), 2)


def test_batches_of_a_format_that_is_not_known_are_an_error_and_no_endless_loop():
    records = bytearray(built([ROW]))
    records[16] = 3
    with pytest.raises(InputError, match=r"topic 'orders' has at offset 0 is no record batch"):
        read(Scripted(answer(bytes(records))), 1)


def test_an_answer_that_ends_before_what_was_asked_for_is_an_error_and_no_endless_loop():
    span = OffsetSpan("orders", 0, 7, 9)
    with pytest.raises(InputError, match=r"from offset 7 on, and what came ends at offset 2"):
        list(read_span(Scripted(answer(built([ROW] * 3))), span))  # type: ignore[arg-type]


def test_a_garbled_length_is_an_error_that_names_topic_partition_and_offset():
    records = bytearray(built([ROW]))
    records[8:12] = struct.pack(">i", -12)
    with pytest.raises(InputError, match=r"topic 'orders' has at offset 1 is no record batch"):
        read(Scripted(answer(built([ROW])), answer(at(1, bytes(records)))), 2)


def test_what_the_broker_itself_finds_garbled_is_an_error_that_names_where_it_is():
    wire = Scripted(answer(built([ROW] * 3)), answer(code=CORRUPT))
    with pytest.raises(InputError, match=r"partition 0 .* has at offset 3 .*CORRUPT"):
        read(wire, 9)


def test_a_log_that_was_rewritten_while_it_was_read_is_an_error_and_no_row_comes_twice():
    """Unclean election: the new leader's batches do not begin where the old one's ended."""
    wire = Scripted(answer(built([ROW] * 3)), answer(at(1, built([ROW] * 5))))
    with pytest.raises(InputError, match=r"offset 1 of partition 0 of topic 'orders'.* offset 3"):
        read(wire, 6)


def test_a_range_may_begin_in_the_middle_of_a_batch():
    [[batch]] = read_span(Scripted(answer(built([ROW] * 5))), OffsetSpan("orders", 0, 3, 5))  # type: ignore[arg-type]
    assert batch.base_offset == 0


@pytest.mark.parametrize("in_one_answer", [True, False])
def test_rows_of_a_leader_that_is_none_any_more_are_an_error(in_one_answer):
    parts = [at(0, built([ROW]), epoch=5), at(1, built([ROW]), epoch=4)]
    answers = [answer(b"".join(parts))] if in_one_answer else [answer(part) for part in parts]
    with pytest.raises(InputError, match=r"offset 1 of .* epoch 4, .* epoch 5"):
        read(Scripted(*answers), 2)


def test_leaders_that_follow_one_another_or_do_not_count_are_no_error():
    parts = [at(n, built([ROW]), epoch=epoch) for n, epoch in enumerate([3, 3, 5, -1, 5, 6])]
    assert read(Scripted(answer(b"".join(parts))), 6) == list(range(6))


def at(offset: int, records: bytes, *, control: bool = False, epoch: int | None = None) -> bytes:
    """A batch put at an offset; as a marker where ``control``, whose CRC is then made anew.

    ``epoch``: of the leader that wrote it.
    """
    moved = bytearray(struct.pack(">q", offset) + records[8:])
    if epoch is not None:
        moved[12:16] = struct.pack(">i", epoch)
    if control:
        moved[22] |= 0x20
        moved[17:21] = struct.pack(">I", crc32c.crc32c(bytes(moved[21:])))
    return bytes(moved)


def of(producer: int, *rows: Any) -> bytes:
    whose = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    return bytes(built(rows or [ROW], transactional=True, **whose))


def marker(producer: int, *, commit: bool) -> bytes:
    return of(producer, (struct.pack(">hh", 0, int(commit)), b"\0" * 6, [], 1))


def emptied(records: bytes) -> bytes:
    """Its header alone; the CRC is :func:`at`'s to make."""
    header = bytearray(records[:61])
    header[8:12] = struct.pack(">i", len(header) - 12)
    header[57:61] = struct.pack(">i", 0)
    return bytes(header)


def test_rows_of_an_aborted_transaction_are_no_rows_and_those_of_the_next_one_are() -> None:
    records = [
        at(0, of(7)),  # aborted
        at(1, of(8)),  # committed
        at(2, built([ROW])),  # of no transaction
        at(3, marker(7, commit=False), control=True),
        at(4, marker(8, commit=True), control=True),
        at(5, of(7)),  # the same producer's next one, committed
        at(6, marker(7, commit=True), control=True),
    ]
    wire = Scripted(answer(b"".join(records), aborted=[(7, 0)]))
    assert read(wire, 7) == [1, 2, 5]
    assert read(wire, 7, committed_only=False) == [0, 1, 2, 5]


def test_a_transaction_that_begins_after_the_last_marker_of_its_producer_is_known_by_its_offset():
    records = [at(0, of(7)), at(1, marker(7, commit=True), control=True), at(2, of(7))]
    wire = Scripted(answer(b"".join(records), aborted=[(7, 2)]))
    assert read(wire, 3) == [0]


def test_a_marker_that_the_log_cleaner_has_emptied_ends_nothing_and_stops_nobody():
    """It keeps the last batch of a producer without its records (RETAIN_EMPTY)."""
    kept = [
        at(0, of(7)),
        at(1, emptied(marker(7, commit=False)), control=True),
        at(2, built([ROW])),
        at(3, of(7)),  # its next one, committed
    ]
    assert read(Scripted(answer(b"".join(kept), aborted=[(7, 0)])), 4) == [2, 3]


def test_a_leader_that_moves_or_dies_is_looked_for_again():
    wire = Scripted(
        answer(code=NOT_LEADER), KafkaUnavailableError("gone"), answer(built([ROW] * 3))
    )
    assert read(wire, 3) == [0]
    assert wire.refreshed == 2
    assert wire.asked == [0, 0, 0]


def test_a_partition_that_was_added_since_a_worker_looked_is_looked_for_again():
    wire = Scripted(answer(built([ROW] * 3)))
    [[batch]] = read_span(wire, OffsetSpan("orders", 3, 0, 3))  # type: ignore[arg-type]
    assert (batch.base_offset, wire.refreshed) == (0, 1)


def test_a_partition_that_is_gone_is_an_error():
    wire = Scripted(answer(built([ROW] * 3)))
    with pytest.raises(InputError, match=r"partition 4 .* is not there any more: .*\[0, 3\]"):
        list(read_span(wire, OffsetSpan("orders", 4, 0, 3)))  # type: ignore[arg-type]
    assert wire.refreshed == 1


def test_an_answer_that_a_quota_has_emptied_is_no_end_of_the_range():
    wire = Scripted(THROTTLED, THROTTLED, THROTTLED, answer(built([ROW] * 3)))
    assert read(wire, 3) == [0]


def test_an_answer_that_names_another_replica_is_no_end_of_the_range():
    """KIP-392: no rows and no error, though the log has them."""
    wire = Scripted(*[answer(end=3, elsewhere=2)] * 3, answer(built([ROW] * 3), end=3))
    assert read(wire, 3) == [0]
    with pytest.raises(KafkaUnavailableError, match=r"no rows from offset 0"):
        read(Scripted(answer(end=3, elsewhere=2)), 3, stalled_s=0.05)


def test_rows_are_asked_for_in_a_version_that_only_the_leader_answers_and_with_the_rows():
    """From version 11 on ``replica.selector.class`` is asked which replica is to be read."""
    wire = Scripted(answer(built([ROW] * 3)))
    read(wire, 3)
    [request] = wire.requests
    brokers = BrokerVersionData((4, 0))
    assert brokers.api_version(request) == 10
    assert brokers.api_versions[request.API_KEY][0] <= 10


def test_one_empty_answer_is_no_end_of_the_range():
    wire = Scripted(answer(end=3), answer(built([ROW] * 3), end=3))
    assert read(wire, 3) == [0]


@pytest.mark.parametrize("local", [0, 2, None])
def test_what_compaction_took_at_the_end_is_asked_for_twice_and_then_no_more(local):
    wire = Scripted(answer(built([ROW] * 2), end=9), answer(end=9), local=local)
    assert read(wire, 9) == [0]
    assert wire.asked == [0, 2, 2]


def test_rows_in_remote_storage_that_are_not_there_yet_are_waited_for():
    """A broker answers so, without an error, while it fetches them (KIP-405)."""
    wire = Scripted(*[answer(end=3)] * 5, answer(built([ROW] * 3), end=3), local=3)
    assert read(wire, 3) == [0]
    assert wire.asked == [0] * 6


@pytest.mark.parametrize(("local", "code"), [(3, 0), (1, 0), (0, NOT_LEADER), (-1, 0)])
def test_rows_in_remote_storage_that_do_not_come_are_an_error_and_never_left_out(local, code):
    wire = Scripted(answer(end=3), local=local, code=code)
    with pytest.raises(KafkaUnavailableError, match=r"no rows from offset 0 .* tiered storage"):
        read(wire, 3, stalled_s=0.05)


@pytest.mark.parametrize("policy", ["delete", None])
def test_nothing_of_a_broker_that_does_not_tell_what_is_remote_is_no_hole_of_compaction(policy):
    """Redpanda's tiered storage: no rows and no error, while they are not there yet."""
    late = Scripted(
        *[answer(end=3)] * 5, answer(built([ROW] * 3), end=3), local=None, policy=policy
    )
    assert read(late, 3) == [0]
    with pytest.raises(KafkaUnavailableError, match="no rows from offset 0") as caught:
        read(Scripted(answer(end=3), local=None, policy=policy), 3, stalled_s=0.05)
    assert "--skip-input orders:0:0-2" in str(caught.value)


def test_a_range_that_readers_may_not_have_yet_is_waited_for_and_never_left_out():
    wire = Scripted(answer(built([ROW] * 2), end=2), answer(end=2))
    with pytest.raises(KafkaUnavailableError, match=r"no rows from offset 2 .* up to 9"):
        read(wire, 9, stalled_s=0.05)


def test_an_error_beside_is_raised_where_the_items_are_asked_for():
    def items() -> Iterator[int]:
        yield 1
        raise InputError("gone")

    found = ahead(items(), 3)
    assert next(found) == 1
    with pytest.raises(InputError, match="gone"):
        next(found)


def test_no_more_is_fetched_ahead_than_was_allowed():
    made = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    for number in ahead(items(), 3):
        # this one, those that wait, and none besides
        assert len(made) <= number + 1 + 3


# --- Rows read back for a replay: what is overlooked here would be delivered twice ----------------


DELIVERED = PreparedTransaction("t-0-0", 7, 0, (OffsetRange("orders", 0, 0, 2),), 3, "", 0, 60_000)
WRITTEN = of(7, ROW, ROW, ROW)


def read_again(wire: Any, **how: Any) -> int:
    return sum(batch.num_rows for batch in delivered_rows(wire, [DELIVERED], **how))


@pytest.mark.parametrize("withheld", [THROTTLED, answer(elsewhere=2)], ids=["quota", "elsewhere"])
def test_an_answer_that_a_quota_has_emptied_is_asked_for_again(withheld: SimpleNamespace) -> None:
    assert read_again(Scripted(withheld, withheld, answer(WRITTEN))) == 3
    with pytest.raises(KafkaUnavailableError, match="gives no rows from offset 0"):
        read_again(Scripted(withheld), deadline_s=0.05)


@pytest.mark.parametrize("place", [-1, 50], ids=["a row", "whose it is"])
def test_a_flipped_bit_is_an_error_and_no_row_that_was_not_delivered(place: int) -> None:
    garbled = bytearray(WRITTEN)
    garbled[place] ^= 1
    with pytest.raises(TransactionError, match=r"offset 0 of partition 0 .* is garbled: its CRC"):
        read_again(Scripted(answer(bytes(garbled))))


def test_a_row_that_cannot_be_read_back_is_an_error_and_not_taken_for_undelivered() -> None:
    """Compaction took the middle one of three: written again, the replay would have it twice."""
    gap = at(2, of(7, ROW))
    with pytest.raises(TransactionError, match="delivered 3 rows, but only 2 can be read back"):
        read_again(Scripted(answer(of(7, ROW)), answer(gap)))


def test_rows_of_another_producer_in_the_range_do_not_make_up_for_ours() -> None:
    with pytest.raises(TransactionError, match="delivered 3 rows, but only 2 can be read back"):
        read_again(Scripted(answer(of(7, ROW, ROW)), answer(at(2, of(8, ROW)))))


def test_rows_of_ours_outside_the_range_are_not_read_back() -> None:
    last = structs.replace(DELIVERED, written=(OffsetRange("orders", 0, 1, 2),), rows=2)
    wire: Any = Scripted(answer(WRITTEN))
    assert [rows.column("offset").to_pylist() for rows in delivered_rows(wire, [last])] == [[1, 2]]


def test_a_large_record_batch_is_read_back_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record of seven bytes takes hundreds once it is read."""
    monkeypatch.setattr(outcomes, "_ROWS_AT_ONCE", 2)
    wire: Any = Scripted(answer(WRITTEN))
    assert [rows.num_rows for rows in delivered_rows(wire, [DELIVERED])] == [2, 1]


@pytest.mark.parametrize("place", [61, 64, 65], ids=["length", "offset", "key"])
def test_rows_that_are_garbled_under_a_right_crc_are_an_error(place: int) -> None:
    garbled = bytearray(WRITTEN)
    garbled[place] = 0x7F
    garbled[17:21] = struct.pack(">I", crc32c.crc32c(bytes(garbled[21:])))
    with pytest.raises(TransactionError, match=r"offset 0 of partition 0|only \d can be read back"):
        read_again(Scripted(answer(bytes(garbled))))


def test_a_time_that_no_row_of_ours_has_is_an_error_of_what_was_delivered() -> None:
    odd = bytearray(WRITTEN)
    odd[27:35] = struct.pack(">q", 1 << 62)
    odd[17:21] = struct.pack(">I", crc32c.crc32c(bytes(odd[21:])))
    with pytest.raises(TransactionError, match=r"What .* delivered is past retention, garbled"):
        read_again(Scripted(answer(bytes(odd))))


def test_a_time_that_the_topic_gave_its_rows_is_not_the_one_that_was_sent() -> None:
    stamped = bytearray(WRITTEN)
    stamped[22] |= 0x08
    stamped[17:21] = struct.pack(">I", crc32c.crc32c(bytes(stamped[21:])))
    for records, known in ((WRITTEN, True), (bytes(stamped), False)):
        wire: Any = Scripted(answer(records))
        [rows] = delivered_rows(wire, [DELIVERED])
        assert rows.schema == SCHEMA
        assert rows.column("timestamp").null_count == (0 if known else 3)


# --- What is asked of partitions and topics, in the words of those who asked before ---------------


def test_an_id_is_written_as_java_writes_it_or_a_checkpoint_of_sparks_source_would_be_refused() -> (
    None
):
    # org.apache.kafka.common.Uuid: URL-safe base 64 of its bytes, without padding.
    its = uuid.UUID("fbffbfff-ffff-4fff-bfff-fffffffffffe")
    told = SimpleNamespace(error_code=0, topic_id=its)
    wire: Any = SimpleNamespace(cluster=SimpleNamespace(describe_topic=lambda _topic: told))
    assert topic_ids(wire, ["t"]) == {"t": "-_-_____T_-_________" + "_g"}


@pytest.mark.parametrize("no_id", [None, uuid.UUID(int=0)], ids=["v8", "zero"])
def test_a_broker_without_topic_ids_is_not_watched_and_no_error(no_id: uuid.UUID | None) -> None:
    """Metadata version 8, as Redpanda speaks it; or later, and the cluster gives none."""
    told = SimpleNamespace(error_code=0, topic_id=no_id)
    wire: Any = SimpleNamespace(cluster=SimpleNamespace(describe_topic=lambda _topic: told))
    assert topic_ids(wire, ["t"]) == {}


def test_a_policy_that_the_broker_does_not_tell_is_not_known_and_no_error() -> None:
    told = {"events": {"cleanup.policy": "delete"}, "orders": {}}
    cluster = SimpleNamespace(topic_config=lambda topic, _names: told[topic])
    wire: Any = SimpleNamespace(cluster=cluster)
    assert cleanup_policies(wire, ["events", "orders"]) == {"events": "delete"}


@pytest.mark.parametrize(
    ("code", "answers"), [(faults.TOPIC_AUTHORIZATION_FAILED, True), (7, False), (13, False)]
)
def test_a_broker_that_had_no_time_to_tell_a_policy_has_not_refused_to(
    code: int, answers: bool
) -> None:
    """REQUEST_TIMED_OUT, NETWORK_EXCEPTION: taken for a refusal, the topic was not compacted."""
    told = SimpleNamespace(resource_name="events", error_code=code, configs=[])
    wire: Any = SimpleNamespace(request=lambda *_, **__: SimpleNamespace(results=[told]))
    known: Any = SimpleNamespace()
    wire.cluster = ClusterView(wire, known)
    if answers:
        assert cleanup_policies(wire, ["events"]) == {}
        return
    with pytest.raises(KafkaUnavailableError, match="while reading settings of 'events'"):
        cleanup_policies(wire, ["events"])


class Leader:
    """Of partition 0 of topic "t": gives these answers, then the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.cluster = SimpleNamespace(leaders=lambda _topic, **_: {0: 1})

    def submit(self, _message: Any, **_options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        return future

    def request(self, _message: Any) -> Any:
        return self.answers[0]


def ends(offset: int, topic: str = "t") -> Any:
    told = SimpleNamespace(partition_index=0, error_code=0, offset=offset)
    return SimpleNamespace(topics=[SimpleNamespace(name=topic, partitions=[told])])


@pytest.mark.parametrize("untold", [ends(-1), ends(9, "other")], ids=["-1", "another topic's"])
def test_an_end_that_is_not_told_is_asked_for_again_and_never_an_offset(
    monkeypatch: pytest.MonkeyPatch, untold: Any
) -> None:
    monkeypatch.setattr(faults, "time", VirtualTime())
    place = ("t", 0)
    wire: Any = Leader(untold, ends(7))
    assert positions(wire, [place], LATEST) == {place: 7}
    silent: Any = Leader(untold)
    with pytest.raises(KafkaUnavailableError, match="does not say where it begins and ends"):
        positions(silent, [place], LATEST)
    assert log_ends(silent, "t", 0, leader=1) is None
    moment: Any = Leader(ends(-1))
    assert positions(moment, [place], 1_700_000_000_000) == {place: -1}  # no row of then or later


def quorum(leader: int, told_ms: int = 5, code: int = 0) -> Any:
    voter = SimpleNamespace(replica_id=1, last_caught_up_timestamp=told_ms)
    found = SimpleNamespace(error_code=code, leader_id=leader, current_voters=[voter])
    topics = [SimpleNamespace(partitions=[found])]
    return SimpleNamespace(error_code=0, topics=topics)


@pytest.mark.parametrize(
    ("answer", "clock"),
    [
        (quorum(1), 5),
        (quorum(2), None),  # a leader that no voter is
        (quorum(1, -1), None),  # Kafka's "not known"
        (quorum(1, code=6), None),
        (SimpleNamespace(error_code=0, topics=[]), None),
    ],
)
def test_a_controller_that_does_not_tell_the_time_is_no_error_and_no_time(
    answer: Any, clock: int | None
) -> None:
    wire: Any = Leader(answer)
    assert cluster_clock_ms(wire) == clock


def fetched(topic: str, partition: int) -> Any:
    told = SimpleNamespace(partition_index=partition, preferred_read_replica=-1)
    return SimpleNamespace(topic=topic, partitions=[told])


def test_rows_of_another_partition_are_no_answer() -> None:
    both = SimpleNamespace(responses=[fetched("other", 0), fetched("t", 1), fetched("t", 0)])
    assert only_partition(both, ("t", 0)) is both.responses[2].partitions[0]
    assert only_partition(SimpleNamespace(responses=both.responses[:2]), ("t", 0)) is None


def test_an_offset_that_a_coordinator_could_not_read_is_not_one_that_nobody_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UNSTABLE_OFFSET_COMMIT and the like come with the partition, and with an offset of -1."""
    monkeypatch.setattr(faults, "time", VirtualTime())

    def told(code: int, offset: int) -> Any:
        each = SimpleNamespace(
            partition_index=0, error_code=code, committed_offset=offset, metadata=None
        )
        return SimpleNamespace(error_code=0, topics=[SimpleNamespace(name="t", partitions=[each])])

    unstable, refused = told(88, -1), told(faults.TOPIC_AUTHORIZATION_FAILED, -1)
    found = SimpleNamespace(error_code=0, node_id=1)
    for answers, expected in (([unstable, told(0, 7)], 7), ([unstable], None), ([refused], None)):
        wire: Any = Leader(*answers)
        wire.request = lambda _message, **_options: found
        group = GroupCoordinator(wire, "readers")
        if expected is not None:
            assert group.read()["t", 0].offset == expected
        else:
            with pytest.raises(KafkaError):
                group.read()


@pytest.mark.parametrize(
    ("members", "state", "listed", "said"),
    [
        (["b", "a"], "Stable", None, "2 consumers now, as client 'a'"),
        ([], "Empty", None, ""),
        ([], "Dead", [], ""),
        ([], "Dead", [("readers", "Empty", "consumer"), ("others", "Stable", "consumer")], ""),
        ([], "Dead", [("readers", "Stable", "consumer")], "by the protocol 'consumer'"),
        ([], "Dead", [("readers", "Reconciling", "streams")], "by the protocol 'streams'"),
    ],
)
def test_who_consumes_by_a_later_protocol_is_not_nobody(
    members: list[str], state: str, listed: list[tuple[str, str, str]] | None, said: str
) -> None:
    """Brokers describe its group as dead, and take our offsets for it: it reads elsewhere then."""
    classic = SimpleNamespace(
        error_code=0,
        group_state=state,
        members=[SimpleNamespace(client_id=each) for each in members],
    )
    answers = [SimpleNamespace(groups=[classic])]
    if listed is not None:
        groups = [SimpleNamespace(group_id=i, group_state=s, group_type=t) for i, s, t in listed]
        answers.append(SimpleNamespace(error_code=0, groups=groups))
    wire: Any = Leader(*answers)
    wire.request = lambda _message, **_options: SimpleNamespace(error_code=0, node_id=1)
    found = GroupCoordinator(wire, "readers").used_by()
    assert said in found
    assert bool(found) is bool(said)

"""What may go wrong between a record batch and its acknowledgement, one hazard a test.

The wire is played by :class:`FakeWire`: a test answers each request by hand, in any order.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as Code
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_eos.arrow.producer import sender as sender_module
from airflow_eos.arrow.producer.sender import (
    MAX_IN_FLIGHT,
    PartitionResponse,
    Sender,
    halves_of,
    produce_request,
)
from airflow_eos.arrow.records.columns import columns_of
from airflow_eos.arrow.records.encode import encode_runs, record_batch
from airflow_eos.errors import (
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    RowError,
    TopicError,
    TransactionError,
    exit_status,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.codecs import NAMES, codec
from airflow_eos.kafka.transactions.identity import OffsetRange
from airflow_eos.kafka.writer import translated
from tests.support.clocks import clock_of
from tests.unit.kafka.record_rows import STAMP, decoded, record_rows
from tests.unit.kafka.test_tables import built

OK, NOT_LEADER, CONCURRENT, OUT_OF_ORDER, DUPLICATE = 0, 6, 51, 45, 46


class FakeWire:
    """Keeps requests for the test to answer; ``requests`` are what the broker got, in order."""

    def __init__(self, leaders=None):
        self.leading = leaders or {0: 1}
        self.requests: list[Request] = []
        self.refreshes = 0
        self.cluster = self

    def leaders(self, _topic, *, refresh=False):
        self.refreshes += refresh
        return dict(self.leading)

    def submit(self, message, *, node_id):
        request = Request(message, node_id)
        self.requests.append(request)
        return request.future

    @property
    def unanswered(self):
        return [r for r in self.requests if not r.future.done()]


class Request:
    def __init__(self, message, node_id):
        self.message, self.node_id = message, node_id
        self.future: Future[SimpleNamespace] = Future()

    @property
    def payloads(self):
        return [p.records for t in self.message.topic_data for p in t.partition_data]

    def answer(self, code=OK, base_offset=0):
        topics = [
            SimpleNamespace(
                name=topic.name,
                partition_responses=[
                    SimpleNamespace(
                        index=part.index,
                        error_code=code,
                        base_offset=base_offset,
                        record_errors=[],
                        error_message=None,
                    )
                    for part in topic.partition_data
                ],
            )
            for topic in self.message.topic_data
        ]
        self.future.set_result(SimpleNamespace(responses=topics))

    def lose(self):
        self.future.set_exception(KafkaUnavailableError("the connection broke"))


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by a second when somebody sleeps or waits in vain."""
    now = SimpleNamespace(s=0.0)
    clock_of(monkeypatch, "airflow_eos.arrow.producer.sender", monotonic=lambda: now.s)
    return now


def sender_on(wire, **options):
    options = {"transactional_id": "t-0-0", "add_partitions": None, "delivery_timeout_s": 60.0} | (
        options
    )
    return Sender(wire, **options)


def add(sender, *names, partition=0, count=10):
    for name in names:
        sender.add("out", partition, name.encode(), count)


def opened(wire, *, base_offset=100):
    """A sender whose partition 0 has its first batch ``first`` acknowledged."""
    sender = sender_on(wire)
    add(sender, "first")
    sender.pump()
    wire.requests[-1].answer(base_offset=base_offset)
    sender.pump()
    return sender


def pumped(*names, behind=""):
    """A wire and a sender that has sent what it may; ``behind`` a batch that has arrived."""
    wire = FakeWire()
    sender = opened(wire) if behind else sender_on(wire)
    add(sender, *names)
    sender.pump()
    return wire, sender


def pump_again(sender, clock, *, after_s):
    """What failed is sent again only once it has waited."""
    sender.pump()
    clock.s += after_s
    sender.pump()


def sent(wire, since=0):
    return [p.decode() for r in wire.requests[since:] for p in r.payloads]


def test_sequence_numbers_count_rows_and_wrap_to_zero():
    sender = sender_on(FakeWire())

    assert sender.sequence("out", 0) == 0
    add(sender, "a", count=2**31 - 5)
    assert sender.sequence("out", 0) == 2**31 - 5
    add(sender, "b", count=7)
    assert sender.sequence("out", 0) == 2
    assert sender.sequence("out", 1) == 0


def test_the_first_batch_of_a_partition_travels_alone(clock):
    wire, sender = pumped("a", "b", "c")
    assert sent(wire) == ["a"]

    wire.requests[0].answer()
    sender.pump()
    assert sent(wire) == ["a", "b", "c"]


def test_at_most_five_requests_are_unanswered_a_broker(clock):
    wire, sender = pumped(*"abcdefgh", behind="first")
    assert len(wire.unanswered) == MAX_IN_FLIGHT

    wire.unanswered[0].answer()
    sender.pump()
    assert sent(wire) == ["first", *"abcdef"]


def test_a_request_has_one_batch_a_partition_and_all_partitions_of_a_broker(clock):
    wire = FakeWire({0: 1, 1: 2, 2: 1})
    sender = sender_on(wire)
    for partition in (0, 1, 2):
        add(sender, f"{partition}a", f"{partition}b", partition=partition)

    sender.pump()

    assert [(r.node_id, len(r.payloads)) for r in wire.requests] == [(1, 2), (2, 1)]
    assert sent(wire) == ["0a", "2a", "1a"]


def test_a_request_stays_under_its_size(clock, monkeypatch):
    monkeypatch.setattr(sender_module, "MAX_REQUEST_BYTES", 10)
    wire = FakeWire({0: 1, 1: 1, 2: 1})
    sender = sender_on(wire)
    for partition in (0, 1, 2):
        add(sender, "sixsix", partition=partition)

    sender.pump()

    assert [r.payloads for r in wire.requests] == [[b"sixsix"]] * 3


def test_a_lost_answer_is_resent_as_the_same_bytes(clock):
    wire, sender = pumped("a")

    wire.requests[0].lose()
    pump_again(sender, clock, after_s=1)

    assert sent(wire) == ["a", "a"]


def test_a_resend_does_not_overtake_and_is_not_overtaken(clock):
    wire, sender = pumped("a", "b", "c", behind="first")
    a, b, c = wire.unanswered

    a.answer(NOT_LEADER)
    pump_again(sender, clock, after_s=1)
    assert len(wire.requests) == 4, "b and c are still on their way: wait for them"

    b.answer(OUT_OF_ORDER)
    c.answer(OUT_OF_ORDER)
    pump_again(sender, clock, after_s=2)
    assert sent(wire, 4) == ["a", "b", "c"]


def test_a_later_batch_that_arrived_is_not_resent(clock):
    wire, sender = pumped("a", "b", behind="first")
    a, b = wire.unanswered

    a.lose()
    b.answer(base_offset=120)
    pump_again(sender, clock, after_s=1)
    assert sent(wire, 3) == ["a"]

    wire.unanswered[0].answer(base_offset=110)
    sender.pump()
    assert sender.bytes == 0
    assert sender.written() == (OffsetRange("out", 0, 100, 129),)


def test_what_the_broker_may_forget_stays_within_its_memory_of_five(clock):
    """Else a resend of ``a`` after ``g`` is out of order, though ``a`` was written long ago."""
    wire, sender = pumped(*"abcdefgh", behind="first")
    a, *others = wire.unanswered
    a.lose()
    for request in others:
        request.answer()
    pump_again(sender, clock, after_s=1)
    assert sent(wire, 6) == ["a"], "b to e are acknowledged: with f, a would be the sixth"

    wire.unanswered[0].lose()
    pump_again(sender, clock, after_s=1)
    wire.unanswered[0].answer()
    sender.pump()
    assert sent(wire, 6) == ["a", "a", "f", "g", "h"]


def test_out_of_order_without_an_earlier_failure_means_lost_rows(clock):
    wire, sender = pumped("a", behind="first")

    wire.unanswered[0].answer(OUT_OF_ORDER)
    with pytest.raises(TransactionError, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER|OutOfOrderSequence"):
        sender.pump()


def test_a_duplicate_is_a_success(clock):
    wire, sender = pumped("a", "b", behind="first")
    a, b = wire.unanswered

    a.answer(DUPLICATE, base_offset=-1)
    b.answer(base_offset=110)
    sender.pump()

    assert sender.bytes == 0
    assert sender.written() == (OffsetRange("out", 0, 100, 119),)


@pytest.mark.parametrize("unknown", [0, 1], ids=["first", "last"])
def test_a_range_whose_end_nobody_knows_is_refused(clock, unknown):
    wire = FakeWire()
    sender = opened(wire, base_offset=-1 if unknown == 0 else 100)
    add(sender, "b")
    sender.pump()
    wire.unanswered[0].answer(DUPLICATE, base_offset=-1 if unknown else 110)
    sender.pump()

    with pytest.raises(TransactionError, match="offsets of the rows in partition 0"):
        sender.written()


def test_a_transaction_before_that_still_ends_is_waited_for(clock):
    wire, sender = pumped("a", "b")

    wire.requests[0].answer(CONCURRENT)
    pump_again(sender, clock, after_s=1)
    assert sent(wire) == ["a", "a"], "b must not open the partition with its sequence number"


def test_a_partition_that_moves_is_written_at_its_new_leader(clock):
    wire = FakeWire({0: 1})
    sender = sender_on(wire)
    add(sender, "a")
    sender.pump()
    wire.leading = {0: 2}

    wire.requests[0].answer(NOT_LEADER)
    pump_again(sender, clock, after_s=1)

    assert [r.node_id for r in wire.requests] == [1, 2]
    assert wire.refreshes == 1


def test_a_partition_without_a_leader_is_waited_for(clock):
    wire = FakeWire({0: -1})
    sender = sender_on(wire)
    add(sender, "a")
    sender.pump()
    assert wire.requests == []

    wire.leading = {0: 1}
    clock.s += 1
    sender.pump()
    assert sent(wire) == ["a"]


def test_what_does_not_heal_within_the_delivery_timeout_is_raised_with_its_cause(clock):
    wire = FakeWire()
    sender = sender_on(wire, delivery_timeout_s=30.0)
    add(sender, "a")

    def keep_trying():
        for _ in range(100):
            sender.pump()
            for request in wire.unanswered:
                request.answer(NOT_LEADER)
            clock.s += 1

    with pytest.raises(KafkaUnavailableError, match=r"for 3. s.*NOT_LEADER|NotLeader"):
        keep_trying()
    assert 30 < clock.s < 35


def test_success_starts_the_delivery_timeout_anew(clock):
    wire = FakeWire()
    sender = sender_on(wire, delivery_timeout_s=30.0)
    for _ in range(5):
        add(sender, "a")
        sender.pump()
        wire.unanswered[0].answer(NOT_LEADER)
        sender.pump()
        clock.s += 20
        sender.pump()
        wire.unanswered[0].answer()
        sender.pump()

    assert sender.bytes == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (47, FencedError),  # INVALID_PRODUCER_EPOCH
        (90, FencedError),  # PRODUCER_FENCED
        (10, RowError),  # MESSAGE_TOO_LARGE: the topic's limit was lowered
        (87, RowError),  # INVALID_RECORD: no key in a compacted topic
        (29, TopicError),  # TOPIC_AUTHORIZATION_FAILED
        (53, TransactionError),  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        (48, TransactionError),  # INVALID_TXN_STATE
        (59, TransactionError),  # UNKNOWN_PRODUCER_ID
    ],
)
def test_a_refusal_is_final_and_names_the_partition(clock, code, kind):
    wire, sender = pumped("a")

    wire.requests[0].answer(code)
    with pytest.raises(kind, match="partition 0 of topic 'out'") as caught:
        sender.pump()
    assert isinstance(caught.value, KafkaError)


def test_a_missing_permission_names_the_acl(clock):
    wire, sender = pumped("a")
    wire.requests[0].answer(29)

    with pytest.raises(TopicError, match="Write on Topic 'out'"):
        sender.pump()


def test_back_pressure_waits_until_enough_is_acknowledged(clock, monkeypatch):
    wire = FakeWire()
    sender = opened(wire)
    add(sender, "12345", "67890", "abcde")

    def one_answer_a_wait(futures, **_):
        wire.unanswered[0].answer()

    monkeypatch.setattr(sender_module, "wait", one_answer_a_wait)
    sender.wait_below(5)

    assert sender.bytes == 5
    assert len(wire.unanswered) == 1


def test_partitions_join_an_old_transaction_once_before_their_first_batch(clock):
    """Transaction version 0 and 1: AddPartitionsToTxn, produce requests below version 12."""
    wire = FakeWire({0: 1, 1: 1})
    joined = []

    def join(partitions):
        joined.append((list(partitions), len(wire.requests)))

    sender = sender_on(wire, add_partitions=join)
    add(sender, "a", "b")
    add(sender, "c", partition=1)
    sender.pump()
    wire.requests[0].answer()
    sender.pump()

    assert joined == [([("out", 0), ("out", 1)], 0)]
    assert {r.message._max_version for r in wire.requests} == {11}


def test_a_new_transaction_version_adds_partitions_by_producing(clock):
    wire, _ = pumped("a")

    assert wire.requests[0].message._max_version == 12


def test_who_gives_up_ends_the_wait_of_another_thread():
    """An abort must not wait for the delivery timeout of rows that nobody wants any more."""
    wire = FakeWire()
    sender = sender_on(wire)
    add(sender, "never answered")
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(sender.wait_below, 0)
        sender.give_up()
        try:
            with pytest.raises(TransactionError, match="aborted the transaction"):
                waiting.result(30)
        finally:  # a thread that still waits would never let this test end
            for request in wire.unanswered:
                request.answer()
    add(sender, "more")
    with pytest.raises(TransactionError, match="aborted the transaction"):
        sender.pump()
    assert len(wire.requests) <= 1


def test_before_an_abort_nothing_more_is_sent(clock):
    wire, sender = pumped(*"abcdefgh", behind="first")
    for request in wire.unanswered:
        request.lose()

    sender.wait_for_in_flight(0)

    assert sent(wire) == ["first", *"abcde"]
    assert not wire.unanswered


def test_a_clock_that_is_hours_ahead_is_not_a_row_that_comes_again():
    """No restart heals a row: once the clock was right again, nobody started the pipeline."""
    now_ms = time.time_ns() // 1_000_000
    rows = bytes(built([(b"first", b"v", [], now_ms)]))
    refused = PartitionResponse("t", 0, faults.INVALID_TIMESTAMP, -1, "", row=0).error(rows)
    assert not isinstance(refused, RowError)
    assert "Set the clock of this machine" in str(refused)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (faults.INVALID_TIMESTAMP, r"timestamp 1 ms \(1970-01-01 00:00:00 UTC\).*KIP-937"),
        (faults.INVALID_RECORD, "a compacted one takes none without a key"),
        (faults.MESSAGE_TOO_LARGE, r"max\.message\.bytes"),
        (faults.RECORD_LIST_TOO_LARGE, r"segment\.bytes"),
        (faults.POLICY_VIOLATION, "a policy of the cluster"),
    ],
)
def test_a_row_that_the_broker_refuses_is_named_with_its_reason_and_the_ways_out(code, says):
    rows = bytes(built([(b"first", b"v", [], 1), (b"second", b"v", [], 1)]))
    refused = PartitionResponse("t", 0, code, -1, "as it says", row=1).error(rows)
    assert isinstance(refused, RowError)
    assert re.search(says, str(refused))
    assert "key b'second'" in str(refused)
    assert "partition 0 of topic 't'" in str(refused)
    assert ("max.message.bytes" in str(refused)) is (code == faults.MESSAGE_TOO_LARGE)
    assert refused.remedies
    of_librdkafka = translated(Code(code), "while writing to partition 0 of topic 't'", acl="")
    assert isinstance(of_librdkafka, RowError)
    assert of_librdkafka.remedies == refused.remedies


@pytest.mark.parametrize("code", [faults.MESSAGE_TOO_LARGE, faults.RECORD_LIST_TOO_LARGE])
def test_small_rows_that_are_too_large_together_are_no_reason_to_stop_for_good(code):
    """The topic's limit was lowered beneath the writer, which learns of it at the next start."""
    together = PartitionResponse("t", 0, code, -1, "as it says").error(
        bytes(built([(b"a", b"v", [], 1), (b"b", b"v", [], 1)]))
    )
    assert isinstance(together, TopicError)
    assert (together.remedies[0], exit_status(together)) == (Remedy(start=True), 1)
    alone = PartitionResponse("t", 0, code, -1, "as it says").error(
        bytes(built([(b"a", b"v", [], 1)]))
    )
    assert isinstance(alone, RowError)


def batch_of(numbers, sequence, compression="lz4"):
    rows = pa.RecordBatch.from_pydict({"value": [f"row {n}" for n in numbers]})
    (run,) = encode_runs(columns_of(rows, now_ms=5), [0, len(rows)])
    return record_batch(run, STAMP, sequence, codec(compression))


def rows_sent(payloads):
    """The first sequence number and the rows of each batch."""
    return [
        (int.from_bytes(each[53:57], "big"), [value.decode() for _, value, *_ in decoded(each)])
        for each in payloads
    ]


def test_a_batch_too_large_for_the_broker_goes_in_halves_and_nothing_behind_it_goes_before(clock):
    """What is behind it has a sequence number that the broker takes after the refused rows only."""
    wire = FakeWire()
    sender = opened(wire)  # 10 rows
    for numbers in (range(3), range(3, 5), range(5, 7)):
        sender.add("out", 0, batch_of(numbers, sender.sequence("out", 0)), len(numbers))
    sender.pump()
    refused, *behind = wire.unanswered
    assert len(behind) == 2
    refused.answer(faults.MESSAGE_TOO_LARGE)
    sender.pump()
    assert wire.unanswered == behind, "the halves wait for what is in flight"
    for each in behind:
        each.answer(OUT_OF_ORDER)
    since = len(wire.requests)
    sent_again = []
    while sender.bytes:
        clock.s += 1
        sender.pump()
        for each in wire.unanswered:
            sent_again += rows_sent(each.payloads)
            first = sent_again[-1][0]
            each.answer(base_offset=100 + first)
    assert sent_again == [
        (10, ["row 0"]),
        (11, ["row 1", "row 2"]),
        (13, ["row 3", "row 4"]),
        (15, ["row 5", "row 6"]),
    ]
    assert len(wire.requests) == since + 4
    assert sender.written() == (OffsetRange("out", 0, 100, 116),)


def test_a_row_that_is_alone_in_its_batch_is_refused_by_what_limits_it(clock):
    wire = FakeWire()
    sender = sender_on(wire)
    sender.add("out", 0, batch_of(range(2), 0), 2)
    sender.pump()
    wire.unanswered[0].answer(faults.MESSAGE_TOO_LARGE)
    sender.pump()
    wire.unanswered[0].answer(faults.MESSAGE_TOO_LARGE)
    with pytest.raises(RowError, match=r"compression\.type has it stored.*max\.message\.bytes"):
        sender.pump()


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(record_rows(), st.sampled_from(NAMES), st.integers(0, (1 << 31) - 1))
def test_the_halves_of_a_batch_have_its_rows_as_they_were(rows, compression, sequence):
    columns = columns_of(rows, now_ms=7)
    (run,) = encode_runs(columns, [0, len(rows)])
    whole = record_batch(run, STAMP, sequence, codec(compression))
    halves = halves_of(whole)
    if len(rows) < 2:
        assert halves == ()
        return
    assert [row for payload, _ in halves for row in decoded(payload)] == decoded(whole)
    assert [count for _, count in halves] == [len(rows) // 2, len(rows) - len(rows) // 2]
    assert [int.from_bytes(payload[53:57], "big") for payload, _ in halves] == [
        sequence,
        (sequence + len(rows) // 2) % (1 << 31),
    ]
    (first, _), (second, _) = halves
    for each in (first, second):
        assert each[43:53] == whole[43:53], "the producer"
        assert each[21:23] == whole[21:23], "the codec, and that it is transactional"


@pytest.mark.parametrize("transactional_id", ["t-0-0", None])
@pytest.mark.parametrize("implicit_add", [True, False])
def test_rows_are_acknowledged_by_all_replicas(transactional_id, implicit_add):
    """By its leader alone, a promised row goes with the leader's disk."""
    asked = produce_request(transactional_id, [("t", 0, b"x")], implicit_add=implicit_add)
    assert asked.acks == -1

"""Who owns a prefix and whose a transaction is: by the topic of all prefixes, or by its id."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_eos.core.checkpoint import Decision
from airflow_eos.core.protocol.decision import WorkIdentity
from airflow_eos.core.protocol.participant import Note, Owner, same_location
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    KafkaError,
    KafkaUnavailableError,
    OwnershipError,
)
from airflow_eos.kafka.client import compacted_topic
from airflow_eos.kafka.client import compacted_topic as compacted
from airflow_eos.kafka.client import errors as deadline
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    OpenTransaction,
    PreparedTransaction,
    TransactionIdentity,
    as_transaction,
    as_work,
    belongs_to_prefix,
    named,
    not_ours,
    owner_of,
    transaction_of,
    transactional_id_of,
    whose,
)
from airflow_eos.kafka.transactions.ownership import GIVEN_UP, ownership
from tests.model.wire import VirtualTime
from tests.support.pipelines import commit_of, owner_at

Record = tuple[bytes, bytes | None]


def claimed(location: str | None, nonce: str = "n1", prefix: str = "etl") -> Record:
    key = msgspec.json.encode({"prefix": prefix, "claim": nonce})
    return key, None if location is None else msgspec.json.encode(owner_at(location))


def noted(batch: int, attempt: int = 1, *, driver: str = "d1", decision: str = "x") -> Record:
    key = msgspec.json.encode({"prefix": "etl", "note": driver})
    value = Note(batch, attempt, decision, owner_at("/a").pipeline)
    return key, msgspec.json.encode(value)


def decided(batch: int, nonce: str) -> Decision:
    return commit_of(batch, nonce=nonce)


def require(
    records: list[Record],
    *,
    location: str = "/a",
    newest: int | None,
    settled: int | None = None,
    **nonces: str,
):
    found = ownership(records, "etl")
    decisions = {int(batch[1:]): (decided(int(batch[1:]), n),) for batch, n in nonces.items()}
    found.require(
        owner_at(location), newest_planned=newest, newest_settled=settled, decisions=decisions
    )


def test_the_earliest_claim_owns_the_prefix():
    records = [claimed("/a", "n1"), claimed("/b", "n2")]
    assert ownership(records, "etl").owner == owner_at("/a")


def test_another_prefix_owns_nothing_here():
    assert ownership([claimed("/a", prefix="etl-eu")], "etl").owner is None


def test_a_prefix_that_was_given_up_belongs_to_who_comes_next():
    records = [claimed("/a", "n1"), noted(7), claimed(None, "n1"), claimed("/b", "n2")]
    assert ownership(records, "etl").owner == owner_at("/b")


def test_a_persons_word_is_no_record_to_forget_once_more():
    word = msgspec.json.encode({"prefix": "etl", "note": "-1-0--"}), msgspec.json.encode(GIVEN_UP)
    assert len(ownership([claimed("/a"), noted(3)], "etl").keys) == 2
    found = ownership([claimed("/a"), claimed(None), word], "etl")
    assert found.given_up
    assert (found.notes, found.keys) == ((), ())


def test_a_sleeper_that_notes_an_old_batch_takes_nothing_back():
    records = [noted(250, driver="d2"), noted(101, driver="d1")]
    assert ownership(records, "etl").newest(owner_at("/a").pipeline).batch == 250


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=20), st.data())
def test_compaction_changes_neither_owner_nor_newest_note(
    notes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Compaction keeps the last record of a key, at its own offset; a driver's notes only grow."""
    records: list[Record] = [claimed("/a", "n1"), claimed("/b", "n2")]
    for driver, group in itertools.groupby(sorted(notes), key=lambda note: note[0] % 3):
        records += [noted(b, a, driver=f"d{driver}") for b, a in sorted(group)]
    cut = data.draw(st.integers(0, len(records)))
    last = {key: n for n, (key, _) in enumerate(records[:cut])}
    compacted = [records[n] for n in sorted(last.values())] + records[cut:]
    one, other = ownership(records, "etl"), ownership(compacted, "etl")
    assert (one.owner, one.newest()) == (other.owner, other.newest())


REFUSED: dict[str, tuple[list[Record], dict[str, Any], str]] = {
    "that of another checkpoint, whatever topic it writes to": (
        [], {"location": "/b", "newest": None}, r"belongs to the checkpoint /a.*disown etl",
    ),
    # It has planned batch 7, as the newest one has; and knows no decision of it.
    "a copy that lags by just the batch in flight": (
        [noted(7, decision="a" * 32)], {"newest": 7}, "does not hold the decision of batch 7",
    ),
    "a copy that has decided the batch otherwise": (
        [noted(7, decision="a" * 32)], {"newest": 7, "b7": "b" * 32}, "older copy",
    ),
    # Found by the chaos suite, history 6000016: it was put back in place under the driver.
    "a copy in which a driver that was alive has decided since": (
        [noted(4, decision="a" * 32)], {"newest": 1, "b4": "a" * 32}, "newest batch 1",
    ),
    "a lost checkpoint": ([noted(0, decision="a" * 32)], {"newest": None}, "it was lost"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_who_does_not_own_the_prefix_is_refused(what: str) -> None:
    notes, checkpoint, said = REFUSED[what]
    with pytest.raises(OwnershipError, match=said):
        require([claimed("/a"), *notes], **checkpoint)


@pytest.mark.parametrize(
    ("newest", "nonces"), [(7, {"b7": "a" * 32}), (8, {"b7": "a" * 32}), (300, {})]
)
def test_the_newest_copy_is_let_in(newest: int, nonces: dict[str, Any]) -> None:
    require([claimed("/a"), noted(7, decision="a" * 32)], newest=newest, **nonces)


def of_batch(batch: int, place: str) -> Record:
    """The note of another pipeline, under the same prefix."""
    note = Note(batch, 1, "z" * 32, owner_at(place).pipeline)
    return msgspec.json.encode({"prefix": "etl", "note": f"d-{place}"}), msgspec.json.encode(note)


def test_an_older_checkpoint_with_higher_numbers_is_another_pipeline():
    """It was put back after its prefix was given to a new one at the same place."""
    former = Owner("former", "/a")
    found = ownership([claimed("/a"), noted(0)], "etl")
    with pytest.raises(OwnershipError, match=r"another pipeline.*was at this place"):
        found.require(former, newest_planned=7, decisions={})


@pytest.mark.parametrize(
    ("note", "settled"), [(noted(3, decision="b" * 32), 7), (noted(7, decision="b" * 32), 7)]
)
def test_a_copy_whose_other_copy_has_gone_on_since_is_refused(note: Record, settled: int) -> None:
    """The name was given up for the other copy, so its lower note is all that is remembered."""
    with pytest.raises(OwnershipError, match="another copy of this checkpoint has gone on"):
        require([claimed("/a"), note], newest=8, settled=settled, b7="a" * 32)


@pytest.mark.parametrize("note", [7, 8])
def test_a_copy_that_has_noted_all_that_it_has_settled_is_let_in(note: int) -> None:
    """Batch 8 may be noted and not be over; and its decision is that of the checkpoint."""
    records = [claimed("/a"), noted(note, decision="a" * 32)]
    require(records, newest=9 if note == 8 else 8, settled=7, **{f"b{note}": "a" * 32})


def test_a_sleeper_of_a_pipeline_that_was_given_up_writes_no_number_for_the_next():
    records = [claimed("/a"), noted(3, decision="a" * 32), of_batch(400, "/former")]
    require(records, newest=3, b3="a" * 32)
    assert ownership(records, "etl").newest().batch == 3


def test_two_copies_of_one_checkpoint_never_both_deliver():
    """They have one id: which of them is where the claim says goes on, the other is refused."""
    found = ownership([claimed("/a"), noted(3)], "etl", "h:1")
    copy = Owner(owner_at("/a").pipeline, "/copy")
    with pytest.raises(OwnershipError, match=r"is a copy.*disown etl -b h:1 --moved --yes"):
        found.require(copy, newest_planned=9, decisions={})
    found.require(owner_at("/a"), newest_planned=9, decisions={})


NEIGHBOURS = [
    b'{"prefix":"other","note":"n1","epoch":3}',
    b'{"prefix":"etl-eu","claim":"c"}',
    b'{"prefix":7}',
    b'{"name":"etl"}',
    b"etl",
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"prefix":"' + b"x" * 1_000_000 + b'"}',
    b'["etl"]',
    b"null",
]


@pytest.mark.parametrize("key", NEIGHBOURS, ids=lambda key: repr(key[:30]))
@pytest.mark.parametrize("value", [b"{}", b"", b"\xff", None])
def test_records_of_neighbours_and_of_nobody_are_passed_over(key: bytes, value: bytes | None):
    own = [claimed("/a"), noted(7)]
    for records in ([(key, value), *own], [*own, (key, value)]):
        assert ownership(records, "etl") == ownership(own, "etl")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'{"prefix":"etl","claim":"c","epoch":3}', b"{}"),
        (b'{"prefix":"etl"}', b"{}"),
        (b'{"prefix":"etl","lease":"c"}', b"{}"),
        (b'{"prefix":"etl","note":"d9"}', b'{"batch":1}'),
        (b'{"prefix":"etl","note":"d9"}', b"\xff"),
        (b'{"prefix":"etl","claim":"c"}', b'{"location":"/a"}'),
    ],
)
def test_what_is_not_understood_of_the_own_prefix_is_said_and_can_be_removed(
    key: bytes, value: bytes
) -> None:
    records = [claimed("/a"), noted(7, decision="a" * 32), (key, value)]
    with pytest.raises(OwnershipError, match=r"cannot be understood.*airflow-eos disown etl"):
        require(records, newest=7, b7="a" * 32)
    assert key in ownership(records, "etl").keys
    require([*records, (key, None)], newest=7, b7="a" * 32)


def test_a_later_release_may_say_more_of_a_claim_or_a_note() -> None:
    key, value = noted(7, decision="a" * 32)
    assert value is not None
    grown = value.removesuffix(b"}") + b',"cluster":"c"}'
    require([claimed("/a"), (key, grown)], newest=7, b7="a" * 32)


@pytest.mark.parametrize(
    ("one", "other"),
    [("s3a://b/c", "s3://b/c"), ("abfss://x@y/z", "abfs://x@y/z"), ("/a/b", "/a/b")],
)
def test_one_place_by_two_schemes(one: str, other: str) -> None:
    assert same_location(one) == same_location(other)


# --- The topic of all prefixes is read whole: a claim that is overlooked lets two pipelines in ----


TOPIC = "airflow-eos.prefixes"


def record(offset: int) -> Any:
    key = b"%d" % offset
    return SimpleNamespace(
        error=lambda: None, key=lambda: key, value=lambda: b"v", offset=lambda: offset
    )


def the_end(offset: int) -> Any:
    return SimpleNamespace(error=lambda: Code(Code._PARTITION_EOF), offset=lambda: offset)


class Consumer:
    """``fetched``: what librdkafka gives, one by one; ``end``: said where it is asked, or an error.

    A new leader refuses that question, and what is in ``refusals`` comes first.
    """

    def __init__(self, *fetched: Any, end: int, refusals: int = 0) -> None:
        self._fetched, self._end, self._refusals = list(fetched), end, refusals
        self.is_assigned = False

    def list_topics(self, topic: str, **_options: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None})})

    def get_watermark_offsets(self, _place: Any, **_options: Any) -> tuple[int, int]:
        if self._refusals:
            self._refusals -= 1
            raise KafkaException(Code(Code.OFFSET_NOT_AVAILABLE))
        return 0, self._end

    def assign(self, _places: Any) -> None:
        self.is_assigned = True

    def unassign(self) -> None:
        self.is_assigned = False

    def poll(self, _within_s: float) -> Any:
        return self._fetched.pop(0) if self._fetched else None


def keys(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setattr(deadline, "time", VirtualTime())
    reader: Any = compacted.CompactedTopicReader.__new__(compacted.CompactedTopicReader)
    reader._topic, reader._consumer = TOPIC, consumer
    try:
        return [key for key, _ in reader.read()]
    finally:
        assert not consumer.is_assigned


class Refused:
    """A producer whose login is refused while a record waits."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._hear = config["error_cb"]
        self._waiting: list[Any] = []

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        self._waiting.append(on_delivery)

    def flush(self, _seconds: float) -> int:
        self._hear(Code(Code._ALL_BROKERS_DOWN))
        self._hear(Code(Code._AUTHENTICATION, "wrong password"))
        while self._waiting:
            self._waiting.pop()(Code(Code._MSG_TIMED_OUT), None)
        return 0


def test_a_note_whose_login_is_refused_is_not_said_to_have_timed_out(monkeypatch):
    monkeypatch.setattr(compacted, "Producer", Refused)
    notes = compacted.Appender(
        KafkaSettings.from_librdkafka({"bootstrap.servers": "127.0.0.1:1"}), "prefixes"
    )
    notes.append(b"k", b"v")
    with pytest.raises(KafkaError, match=r"did not accept this client.*wrong password") as error:
        notes.flush()
    assert not isinstance(error.value, KafkaUnavailableError)


def test_an_end_before_what_was_acknowledged_is_none(monkeypatch):
    """A new leader says so, as long as it does not know how far its log was acknowledged."""
    consumer = Consumer(the_end(0), record(0), the_end(1), record(1), end=2)
    assert keys(consumer, monkeypatch) == [b"0", b"1"]


def test_records_of_others_that_come_meanwhile_are_not_waited_for(monkeypatch):
    consumer = Consumer(record(0), record(1), the_end(2), end=1)
    assert keys(consumer, monkeypatch) == [b"0"]


def test_where_the_last_place_holds_no_record_the_end_is_told(monkeypatch):
    """As where compaction, or a transaction's marker, has it."""
    assert keys(Consumer(record(0), the_end(2), end=2), monkeypatch) == [b"0"]


def test_a_new_leader_is_asked_until_it_says_how_far_its_log_was_acknowledged(monkeypatch):
    consumer = Consumer(record(0), end=1, refusals=2)
    assert keys(consumer, monkeypatch) == [b"0"]


def test_a_topic_that_does_not_come_to_its_end_is_an_error_and_not_read_whole(monkeypatch):
    monkeypatch.setattr(compacted, "_TIMEOUT_S", 0.1)
    with pytest.raises(KafkaUnavailableError, match="cannot be read to its end"):
        keys(Consumer(record(0), the_end(1), end=2), monkeypatch)


def test_a_leader_that_never_says_is_an_error(monkeypatch):
    monkeypatch.setattr(compacted_topic, "_TIMEOUT_S", 30.0)
    with pytest.raises(KafkaUnavailableError, match="OFFSET_NOT_AVAILABLE"):
        keys(Consumer(the_end(0), end=0, refusals=99), monkeypatch)


def test_a_broker_that_is_silent_while_the_topic_is_looked_at_is_one_that_did_not_answer(
    monkeypatch,
):
    """librdkafka's own time may end a moment later than the one that its answer is waited for."""
    monkeypatch.setattr(compacted, "_TIMEOUT_S", 0.01)
    monkeypatch.setattr(deadline, "time", VirtualTime())
    silent: Any = SimpleNamespace(describe_configs=lambda asked, **_: {asked[0]: Future()})
    with pytest.raises(KafkaUnavailableError, match=f"_TIMED_OUT.* for topic '{TOPIC}'"):
        compacted._policy(silent, TOPIC)


# --- Whose a transactional id is, by its form alone; what more than one program uses is nobody's --


UUID = "5f7e0c0e-2b5c-4a39-9d0d-6a7b8c9d0e1f"


@pytest.mark.parametrize(
    ("transactional_id", "owner"),
    [
        ("orders-eos-3-0", "airflow-eos"),
        ("orders-3-17", "Flink"),
        ("Sink: Unnamed-cbc357ccb763df2852fee8c4fc7d55f2-4", "Flink"),
        (f"shop-{UUID}-1", "Kafka Streams"),
        (f"_confluent-ksql-default_query_CTAS_1-{UUID}-2", "Kafka Streams"),
        ("shop-0_3", "Kafka Streams"),
        ("connect-cluster-workers", "Kafka Connect"),
        ("workers-jdbc-source-0", ""),
        ("orders-service-1", ""),
        ("tx", ""),
        (UUID, ""),
        ("", ""),
    ],
)
def test_whose_an_id_is(transactional_id: str, owner: str) -> None:
    assert owner_of(transactional_id) == owner


# --- Whose a transaction is, by the form of its id ------------------------------------------------


@pytest.mark.parametrize(
    ("transactional_id", "program"),
    [
        ("etl-0-7", "Flink"),
        ("etl-12-100000", "Flink"),
        ("etl-0b1e5a39-6d2c-4f0e-9d43-3a6c5f8b7e21-1", "Kafka Streams"),
        ("etl-0_1", "Kafka Streams"),
        ("etl-jdbc.source-0", "Kafka Connect"),
        ("etl-3", "a producer of its own"),
        ("etl", "a producer of its own"),
        ("etl-eos-0-7", ""),
        ("etl-eu-eos-0-1", ""),
        ("etl-eu-0-1", ""),
        ("etl2-0-1", ""),
        ("orders-0-1", ""),
    ],
)
def test_ids_of_others_are_told_by_their_form_and_are_never_ours(transactional_id, program):
    assert whose(transactional_id, "etl").startswith(program)
    assert bool(program) == bool(whose(transactional_id, "etl"))
    assert belongs_to_prefix(transactional_id, "etl") is (transactional_id == "etl-eos-0-7")


def test_our_own_ids_are_ours():
    assert belongs_to_prefix(transactional_id_of("etl", 3, 1), "etl")
    assert not belongs_to_prefix(transactional_id_of("etl-eu", 3, 1), "etl")


# --- A transaction as prepared work, and back; what is no transaction is refused ------------------


PREPARED = PreparedTransaction(
    "orders-etl-3-0", 7, 2, (OffsetRange("out", 1, 5, 9),), 5, "0" * 32, 1_000, 60_000
)


@pytest.mark.parametrize("transactional_id", ["etl-0-0", "-0-0", "a.b-1-2-3-4", "..-0-0"])
def test_a_key_names_one_transaction(transactional_id):
    identity = TransactionIdentity(transactional_id, 2**63 - 1, 2**15 - 1)
    assert transaction_of(named(identity, "sink")) == identity


def test_a_transaction_comes_back_from_what_a_decision_keeps_of_it():
    stored = msgspec.json.encode(as_work(PREPARED, "orders"))
    work = msgspec.json.decode(stored, type=type(as_work(PREPARED, "orders")))
    assert work == as_work(PREPARED, "orders")
    assert as_transaction(work) == PREPARED


@pytest.mark.parametrize(
    "key", ["etl", "etl-0", "etl-0-x", f"etl-0-0-{2**63}-0", f"etl-0-0-7-{2**15}", "etl-0-0-7--1"]
)
def test_a_key_of_another_grammar_is_refused(key):
    with pytest.raises(ConfigurationError, match="names no transaction"):
        transaction_of(WorkIdentity("kafka", "sink", key))


def test_work_of_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match="files 'sink'"):
        transaction_of(WorkIdentity("files", "sink", "etl-0-0-7-3"))


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"written": []},
        {"written": [{"topic": "out"}]},
        {"written": [{"topic": "out", "partition": 0, "first": -1, "last": 2}]},
        {"written": [{"topic": "out", "partition": 0, "first": 0, "last": 2}], "more": 1},
    ],
)
def test_a_detail_without_a_witness_is_never_guessed_at(detail):
    work = msgspec.structs.replace(as_work(PREPARED, "sink"), detail=detail)
    with pytest.raises(CheckpointFormatError, match="not Kafka's"):
        as_transaction(work)


@pytest.mark.parametrize("theirs", ["other-eos-0-0", "etl-eu-eos-0-0", "etl-0-7"])
def test_a_decision_of_another_pipeline_ends_nothing_of_either(theirs):
    """Its file was copied over ours: theirs were committed, and ours, which it lacks, aborted."""
    nobody: Any = None
    ledger: Any = SimpleNamespace(prefix="etl")
    participant = KafkaParticipant(nobody, ledger, name="sink")
    ours, foreign = (
        as_work(msgspec.structs.replace(PREPARED, transactional_id=each), "sink")
        for each in ("etl-eos-3-0", theirs)
    )
    participant.check([ours])
    for asked in (participant.check, participant.commit, participant.outcome):
        with pytest.raises(CheckpointFormatError, match="another pipeline's decision"):
            asked([ours, foreign])


@pytest.mark.parametrize(
    ("number", "timeout_ms", "is_theirs"),
    [
        (0, 60_000, False),
        (3, 60_000, False),
        (100, 60_000, True),
        (7, 600_000, True),
        (0, 600_000, False),
    ],
    ids=["ours", "a retry", "no attempt of Spark's", "another timeout", "the next task takes it"],
)
def test_a_flink_job_under_ids_like_ours_is_told_by_what_ours_never_have(
    number: int, timeout_ms: int, is_theirs: bool
) -> None:
    listed = OpenTransaction(f"etl-eos-0-{number}", 7, 0, 1_000, timeout_ms)
    assert bool(not_ours(listed, {60_000})) is is_theirs
    assert bool(not_ours(listed, ())) is (number >= 100), "where ours are not known"

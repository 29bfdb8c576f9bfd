"""The audit on a real broker: it sees what a read_committed reader sees, and what is wrong."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_eos.cli.audit import audit_view
from airflow_eos.core.checkpoint.topics import require_same_topics
from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
from airflow_eos.errors import AuditError, ConfigurationError, KafkaUnavailableError, TopicError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import topic_ids
from airflow_eos.ops.audit.rows import topic_id
from airflow_eos.ops.tables import as_text
from airflow_eos.recovery import audit
from tests.integration.recovery.conftest import BATCH


@pytest.fixture
def source(topic, kafka_broker):
    """Twenty orders of two customers, and one row that is no JSON."""
    name = topic("in")
    send(kafka_broker, name, [order(n) for n in range(20)])
    send(kafka_broker, name, [(None, b"no json")])
    return name


def order(n):
    return f"customer-{n % 2}".encode(), json.dumps({"id": n, "amount": 10 * n}).encode()


def send(broker, topic, rows):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in rows:
        producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(30) == 0


def values(rows):
    return [value.decode() for _, value in rows]


def commit(dead, rows, *, named=True, attempt=1):
    transaction = dead.write(0, values(rows))
    if named:
        dead.decided(transaction, attempt=attempt)
    dead.end(transaction, commit=True)
    return transaction


def run(dead, source, dead_letters=None, checkpoint=None):
    return audit(
        dead.settings, source, dead.topic, dead_letter_topic=dead_letters, checkpoint=checkpoint
    )


@pytest.mark.long
def test_clean(dead, source, topic, kafka_broker):
    letters = topic("dead")
    send(kafka_broker, letters, [(None, b"no json")])
    commit(dead, [order(n) for n in range(20)])
    dead.spark_wrote(offsets=BATCH, commits=BATCH, reads=source)

    report = run(dead, source, letters, dead.store.location)

    assert report.ok, report.summary()
    assert (report.rows_in, report.rows_out) == (21, {dead.topic: 20, letters: 1})
    assert (report.unidentified, report.visible_undecided) == (1, 0)
    report.require_ok()


@pytest.mark.long
def test_aborted_rows_are_not_counted(dead, source):
    """The eye is a read_committed reader: an attempt that was aborted leaves no duplicate."""
    aborted = dead.write(1, values([order(n) for n in range(20)]))
    dead.end(aborted, commit=False)
    commit(dead, [order(n) for n in range(20)])

    assert run(dead, source).duplicated == 0


@pytest.mark.long
def test_lost_duplicated_and_reordered_are_found_with_their_ids(dead, source):
    kept = [order(n) for n in range(20) if n != 7]
    kept[3], kept[5] = kept[5], kept[3]  # both of customer-1
    commit(dead, [*kept, order(11)])

    report = run(dead, source)

    assert not report.ok
    assert (report.lost, report.duplicated, report.reordered) == (2, 1, 1)
    named = {(o.kind, o.id) for o in report.offenders}
    assert {("lost", "7"), ("duplicated", "11"), ("reordered", "3")} <= named
    assert ("lost", None) in named  # the row that is no JSON
    with pytest.raises(AuditError, match="duplicated 1"):
        report.require_ok()


@pytest.mark.long
def test_still_open_is_found(dead, source):
    commit(dead, [order(n) for n in range(20)])
    dead.write(1, values([order(99)]))

    report = run(dead, source)

    assert report.open_partitions == ((dead.topic, 0),)
    assert report.open_rows == 1
    assert not report.ok


@pytest.mark.long
def test_visible_without_a_decision_is_found(dead, source):
    """The negative control of the decision step: rows that nobody promised became visible."""
    commit(dead, [order(n) for n in range(10)])
    commit(dead, [order(n) for n in range(10, 20)], named=False)

    report = run(dead, source, checkpoint=dead.store.location)

    assert report.visible_undecided == 10
    assert "visible_undecided" in {o.kind for o in report.offenders}


@pytest.mark.long
def test_rows_out_of_nowhere_are_found(dead, source):
    commit(dead, [order(n) for n in [*range(20), 500]])

    report = run(dead, source)

    assert report.unexpected == 1
    assert "500" in {o.id for o in report.offenders}


def test_a_missing_topic_is_an_error(dead):
    with pytest.raises(TopicError, match="no-such-topic"):
        audit(dead.settings, "no-such-topic", dead.topic)


def test_a_wrong_id_is_an_error_and_not_a_verdict(dead, source):
    with pytest.raises(ConfigurationError, match=r"value\.order_id"):
        audit(dead.settings, source, dead.topic, id_expression="value.order_id")


@pytest.mark.long
def test_an_unreachable_broker_is_an_error(dead):
    with pytest.raises(KafkaUnavailableError, match="did not answer"):
        audit({"bootstrap.servers": "127.0.0.1:1"}, "in", "out", timeout_s=2)


@pytest.mark.long
@pytest.mark.parametrize(("complete", "status"), [(True, 0), (False, 1)])
def test_exit_status_says_it(dead, source, complete, status):
    commit(dead, [*(order(n) for n in range(20 if complete else 19)), (None, b"no json")])

    process = dead.cli("audit", source, dead.topic, "--json")
    out, errors = process.communicate(timeout=300)

    assert process.returncode == status, errors
    assert json.loads(out)["ok"] is complete


@pytest.mark.long
def test_the_table_names_the_offenders(dead, source):
    commit(dead, [order(n) for n in range(20)])

    process = dead.cli("audit", source, dead.topic)
    out, _ = process.communicate(timeout=300)

    assert process.returncode == 1
    assert "VIOLATED" in out
    assert f"{source}/0@20" in out


@pytest.mark.long
def test_what_the_inputs_retention_took_is_not_known_and_twice_is_twice(dead, source, kafka_broker):
    commit(dead, [*(order(n) for n in range(20)), (None, b"no json")])
    passed(kafka_broker, source, 2)

    process = dead.cli("audit", source, dead.topic)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 3, errors
    assert "NOT KNOWN" in out
    assert "exactly once." not in out
    assert run(dead, source).verdict == "unknown"

    commit(dead, [order(0), order(1)], attempt=2)
    report = run(dead, source)
    assert (report.verdict, report.duplicated) == ("violated", 2)


@pytest.mark.parametrize(
    ("order_by", "status", "said"),
    [("key", 0, "kept"), ("value.custommer", 3, "not judged"), ("none", 0, "not asked")],
)
def test_an_order_that_was_not_judged_is_not_called_kept(dead, source, order_by, status, said):
    commit(dead, [*(order(n) for n in range(20)), (None, b"no json")])

    process = dead.cli("audit", source, dead.topic, "--order-by", order_by, "--json")
    out, errors = process.communicate(timeout=300)

    assert process.returncode == status, errors
    assert json.loads(out)["order"] == said
    report = audit(dead.settings, source, dead.topic, order_by=order_by)
    assert ("and in order" in as_text(audit_view(report))) == (said == "kept")


def test_rows_without_keys_have_no_order_that_could_be_judged(dead, kafka_broker, topic):
    name = topic("in")
    send(kafka_broker, name, [(None, order(n)[1]) for n in range(3)])
    commit(dead, [order(n) for n in range(3)])
    report = run(dead, name)
    assert (report.verdict, report.order) == ("unknown", "not judged")
    assert "have no 'key'" in report.summary()


@pytest.mark.long
def test_rows_that_the_input_aborted_are_gaps_and_no_rows(dead, kafka_broker, topic):
    """A transactional writer of the input: markers and aborted rows take offsets, too."""
    name = topic("in")
    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": name}
    producer = Producer(settings)
    producer.init_transactions()
    for n, end in enumerate(["commit", "abort", "commit"]):
        producer.begin_transaction()
        key, value = order(n)
        producer.produce(name, key=key, value=value, partition=0)
        getattr(producer, f"{end}_transaction")()
    commit(dead, [order(0), order(2)])
    assert run(dead, name).verdict == "exact"
    commit(dead, [order(1)], attempt=2)
    assert run(dead, name).unexpected == 1, "an app that reads uncommitted rows"


@pytest.mark.long
def test_a_compacted_topic_is_not_judged(dead, kafka_broker, topic):
    name = topic("in", config={"cleanup.policy": "compact"})
    send(kafka_broker, name, [order(n) for n in range(3)])
    commit(dead, [order(n) for n in range(3)])
    report = run(dead, name)
    assert report.verdict == "unknown"
    assert f"{name} is compacted" in report.summary()


@pytest.mark.long
def test_several_topics_of_the_input_are_compared_as_one(dead, source, kafka_broker, topic):
    other = topic("in")
    send(kafka_broker, other, [order(n) for n in range(20, 25)])
    commit(dead, [*(order(n) for n in range(25)), (None, b"no json")])
    assert run(dead, source).unexpected == 5
    assert run(dead, [source, other]).verdict == "exact"


@pytest.mark.long
def test_a_topic_made_again_since_the_query_read_it_is_not_judged(dead, source, kafka_broker):
    commit(dead, [*(order(n) for n in range(20)), (None, b"no json")])
    dead.spark_wrote(offsets=BATCH, commits=BATCH, reads=source)
    its = topic_id(dead.settings, source, 10)
    assert its is not None
    require_same_topics(dead.store, {source: its})
    assert run(dead, source, checkpoint=dead.store.location).verdict == "exact"
    with ConnectionPool(dead.settings) as wire:
        assert topic_ids(wire, [source]) == {source: its}, "as the product notes it"
    dead.store.delete(["eos/topics.json"])
    require_same_topics(dead.store, {source: "A"})
    report = run(dead, source, checkpoint=dead.store.location)
    assert report.verdict == "unknown"
    assert "made again" in report.summary()


@pytest.mark.long
def test_rows_that_the_app_has_not_come_to_are_unread_and_not_lost(dead, source):
    commit(dead, [order(n) for n in range(15) if n != 7])
    dead.spark_wrote(offsets=BATCH, commits=BATCH, reads=source, until=15)
    report = run(dead, source, checkpoint=dead.store.location)
    assert (report.verdict, report.lost) == ("violated", 1)
    assert [each.rows for each in report.unjudged] == [6]


def test_where_a_query_began_is_not_known_and_rows_that_it_never_came_to_are_not_lost(dead, source):
    """The file that says so is put aside where it was damaged; it had begun with the newest."""
    commit(dead, [*(order(n) for n in range(10, 20)), (None, b"no json")])
    dead.spark_wrote(offsets=BATCH, commits=BATCH, reads=source)
    dead.store.delete(["sources/0/0"])
    report = run(dead, source, checkpoint=dead.store.location)
    assert (report.verdict, report.lost) == ("unknown", 0)
    assert [each.rows for each in report.unjudged] == [10]


def test_rows_of_another_guarantee_are_inside_no_promise_and_nobody_did_wrong(dead, source):
    commit(dead, [order(n) for n in range(10)])
    commit(dead, [*(order(n) for n in range(10, 20)), (None, b"no json")], named=False)
    dead.spark_wrote(offsets=BATCH + 1, commits=BATCH + 1, reads=source)
    marks = VisibilityMarkers(dead.store)
    marks.begin_again(BATCH)  # of a driver that was superseded before it wrote
    assert run(dead, source, checkpoint=dead.store.location).visible_undecided == 11
    marks.begin_again(BATCH + 1)
    report = run(dead, source, checkpoint=dead.store.location)
    assert (report.verdict, report.visible_undecided) == ("exact", None)


def passed(broker, topic, before):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_records([TopicPartition(topic, 0, before)])[TopicPartition(topic, 0)].result(30)

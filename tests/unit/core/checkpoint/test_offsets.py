"""Spark's offset and commit logs: which are understood, what they say, of which topics."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, OffsetLog, claim
from airflow_eos.core.checkpoint import spark_log as logs
from airflow_eos.core.checkpoint.mending import mend
from airflow_eos.core.checkpoint.offsets import require_same_sources
from airflow_eos.core.checkpoint.progress import SourceProgress, read_state
from airflow_eos.core.checkpoint.snapshot import start_facts
from airflow_eos.core.checkpoint.topics import (
    TopicsRead,
    input_change,
    lost_input,
    require_same_topics,
    same_topics_watched,
    warn_of_lost_rows,
)
from airflow_eos.core.delivery.visibility_markers import VisibilityMarkers
from airflow_eos.core.protocol.participant import Owner, decision_lost
from airflow_eos.errors import (
    CheckpointFormatError,
    ContinuityError,
    InputLostError,
    SupersededError,
    TopicError,
)
from tests.support.pipelines import kafka_pipeline
from tests.unit.core.checkpoint.conftest import decision


def content(end: int, planned_at_ms: int = 7) -> str:
    stamp = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": planned_at_ms})
    return f'v1\n{stamp}\n{{"in":{{"0":{end}}}}}'


def plan(store, batch: int, *, end: int, planned_at_ms: int = 7) -> str:
    text = content(end, planned_at_ms)
    store.put(f"offsets/{batch}", text.encode())
    return text


def complete(store, batch: int) -> None:
    plan(store, batch, end=10 * batch)
    store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def decisions(store) -> DecisionLog:
    return DecisionLog(store)


@pytest.fixture
def log(store, decisions) -> OffsetLog:
    return OffsetLog(store, decisions)


def test_the_entry_is_believed_where_spark_evaluates_what_it_says(store, log):
    text = plan(store, 3, end=30)
    assert log.evaluated(3, 7) == text


def test_an_entry_that_another_driver_has_replaced_is_not(store, log):
    """Both adders won; the file has the other one's end, and what runs here has ours."""
    plan(store, 3, end=45, planned_at_ms=8)
    with pytest.raises(SupersededError, match="planned at 8, but this driver evaluates"):
        log.evaluated(3, 7)


def test_an_entry_that_is_gone_is_not(log):
    with pytest.raises(SupersededError, match="is gone"):
        log.evaluated(3, 7)


def test_a_damaged_entry_is_refused_by_its_name(store, log):
    store.put("offsets/3", b"v1\n")
    with pytest.raises(CheckpointFormatError, match="offsets/3"):
        log.evaluated(3, 7)


@pytest.mark.parametrize("replaced", [4, 5])
def test_a_starting_driver_puts_the_newest_two_entries_right(
    store, decisions, log, make_decision, replaced
):
    delivered = {batch: plan(store, batch, end=10 * batch) for batch in (3, 4, 5)}
    complete(store, 4)
    for batch, text in delivered.items():
        assert decisions.record(make_decision(batch, offsets=text))
    plan(store, replaced, end=99, planned_at_ms=8)
    store.put(f"offsets/.{replaced}.crc", b"the other one's sum")
    log.repair()
    assert store.get(f"offsets/{replaced}") == delivered[replaced].encode()
    assert store.get(f"offsets/.{replaced}.crc") is None, "Hadoop would refuse the file"
    log.require_as_decided(replaced)


def test_what_was_replaced_after_the_repair_is_found_by_the_first_batch(
    store, decisions, log, make_decision
):
    complete(store, 3)
    assert decisions.record(make_decision(4, offsets=plan(store, 4, end=40)))
    log.repair()
    plan(store, 4, end=99, planned_at_ms=8)
    with pytest.raises(SupersededError, match="is not what batch 4 was delivered with"):
        log.require_as_decided(4)


def test_a_batch_that_nobody_promised_is_taken_as_it_is_planned(
    store, decisions, log, make_decision
):
    complete(store, 3)
    plan(store, 4, end=40)
    sealed = make_decision(
        4, verdict=type(make_decision(4).verdict).ABORT, works=(), offsets=None, reason="x"
    )
    assert decisions.record(sealed)
    plan(store, 4, end=99, planned_at_ms=8)
    log.repair()
    log.require_as_decided(4)
    assert store.get("offsets/4") == content(99, 8).encode()


def test_where_nothing_is_planned_nothing_is_repaired(log):
    log.repair()


def done(store, batch: int, *, end: int) -> str:
    store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    return plan(store, batch, end=end)


def promised(store, decisions, make_decision, batch: int, *, end: int) -> None:
    assert decisions.record(make_decision(batch, offsets=done(store, batch, end=end)))


def test_a_batch_that_begins_before_the_newest_promise_ended_is_refused(
    store, decisions, log, make_decision
):
    """Spark was told to skip batch 1, which was promised: 2 is its control batch."""
    promised(store, decisions, make_decision, 0, end=10)
    promised(store, decisions, make_decision, 1, end=20)
    done(store, 2, end=10)
    with pytest.raises(ContinuityError, match=r"3 would begin at .*10.*batch 1 at .*20") as refused:
        log.require_begins_where_promised(3)
    [remedy] = refused.value.remedies
    assert "offsets/2 and commits/2 and commits/1" in remedy.change
    asked = start_facts(store, SimpleNamespace(), Owner("", store.location))
    assert isinstance(asked.refused, CheckpointFormatError)  # decisions, and nothing says whose
    assert "eos/pipeline.json is missing" in str(asked.refused)
    claim(store, kafka_pipeline())
    asked = start_facts(store, SimpleNamespace(), Owner("", store.location))
    assert isinstance(asked.refused, ContinuityError)


@pytest.mark.parametrize("left", [5, 99])
def test_a_control_batch_of_an_entry_that_a_superseded_driver_left_is_undone(
    store, decisions, log, make_decision, left
):
    """Found by the model: no decision was lost, so that no copy can have it."""
    promised(store, decisions, make_decision, 0, end=10)
    promised(store, decisions, make_decision, 1, end=20)
    plan(store, 1, end=left, planned_at_ms=8)  # its rename came late
    done(store, 2, end=left)
    done(store, 3, end=left)
    claim(store, kafka_pipeline())
    [remedy] = start_facts(store, SimpleNamespace(), Owner("", store.location)).refused.remedies
    assert "move offsets/2 and commits/2, offsets/3 and commits/3 out" in remedy.change
    for batch in (2, 3):
        store.delete([f"offsets/{batch}", f"commits/{batch}"])
    log.repair()
    log.require_begins_where_promised(2)


def test_a_batch_that_begins_after_the_newest_promise_ended_is_refused(
    store, decisions, log, make_decision
):
    promised(store, decisions, make_decision, 0, end=10)
    done(store, 1, end=99)
    with pytest.raises(ContinuityError, match="99") as refused:
        log.require_begins_where_promised(2)
    assert "repartition" not in str(refused.value)
    assert refused.value.remedies == decision_lost(1)


def test_a_control_batch_that_ends_where_the_promise_did_is_spark_s_own(
    store, decisions, log, make_decision
):
    promised(store, decisions, make_decision, 0, end=10)
    done(store, 1, end=10)
    log.require_begins_where_promised(2)
    done(store, 2, end=99)  # planned, and nobody promised it; then skipped
    done(store, 3, end=10)
    log.require_begins_where_promised(4)


def test_a_batch_that_is_promised_began_where_it_had_to(store, decisions, log, make_decision):
    """Found by the model: a sleeper promised the skipped batch in vain, and advice led astray."""
    promised(store, decisions, make_decision, 0, end=10)
    skipped = done(store, 1, end=20)
    done(store, 2, end=10)
    following = plan(store, 3, end=30)
    assert decisions.record(make_decision(1, offsets=skipped))
    with pytest.raises(ContinuityError):
        log.require_begins_where_promised(3)
    assert decisions.record(make_decision(3, offsets=following))
    log.require_begins_where_promised(3)


def test_what_another_guarantee_has_written_since_counts(store, decisions, log, make_decision):
    promised(store, decisions, make_decision, 0, end=10)
    done(store, 1, end=20)
    VisibilityMarkers(store).begin_again(1)
    log.require_begins_where_promised(2)


def test_a_source_that_came_since_began_after_the_promise(store, decisions, log, make_decision):
    head = '{"batchWatermarkMs":0,"batchTimestampMs":7}'
    before = f'v2\n{head}\norders:{{"in":{{"0":10}}}}'
    store.put("offsets/0", before.encode())
    assert decisions.record(make_decision(0, offsets=before))
    store.put("offsets/1", f'{before}\nreturns:{{"in2":{{"0":5}}}}'.encode())
    log.require_begins_where_promised(2)
    store.put("offsets/1", f'v2\n{head}\nreturns:{{"in2":{{"0":5}}}}'.encode())
    with pytest.raises(ContinuityError):
        log.require_begins_where_promised(2)


def test_the_same_end_under_numbers_and_under_names_is_one_end(
    store, decisions, log, make_decision
):
    """Spark's offset log v2 names its sources."""
    promised(store, decisions, make_decision, 0, end=10)
    head = '{"batchWatermarkMs":0,"batchTimestampMs":7}'
    store.put("offsets/1", f'v2\n{head}\norders:{{"in":{{"0":10}}}}'.encode())
    log.require_begins_where_promised(2)


# --- the sources of a query -----------------------------------------------------------------------


def two_sources(store, *, version: str = "v1", batch: int = 0) -> None:
    head = '{"batchWatermarkMs":0,"batchTimestampMs":7}'
    lines = ['{"a":{"0":1}}', '{"b":{"0":1}}']
    if version == "v2":
        lines = [f"{number}:{line}" for number, line in enumerate(lines)]
    store.put(f"offsets/{batch}", "\n".join([version, head, *lines]).encode())


def test_the_sources_that_the_checkpoint_is_of_are_let_in(store):
    require_same_sources(store, [{"a"}])  # nothing is planned yet
    two_sources(store)
    require_same_sources(store, [{"a", "new"}, {"b"}])
    require_same_sources(store, [None, None])


def test_sources_do_not_come_or_go(store):
    two_sources(store)
    for count in (1, 3):
        with pytest.raises(ContinuityError, match=f"of 2 sources, and the query has {count}"):
            require_same_sources(store, [None] * count)


def test_sources_that_change_places_are_told_by_their_topics(store):
    """Spark plans a batch with the offsets of the other topic, and no start gets past it."""
    two_sources(store)
    with pytest.raises(ContinuityError, match="is of topic a in source 0, which reads b"):
        require_same_sources(store, [{"b"}, {"a"}])


def test_a_log_that_spark_does_not_start_again_from_is_refused(store):
    two_sources(store, version="v2")
    with pytest.raises(ContinuityError, match=r"offset log 2: with it, Spark 4\.2\.0 does not"):
        require_same_sources(store, [{"a"}, {"b"}])


def test_an_entry_that_is_put_aside_tells_nothing_of_sources_and_the_one_before_does(store):
    two_sources(store)
    store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put("offsets/1", b"")
    with pytest.raises(ContinuityError, match="offsets/0 is of 2 sources"):
        require_same_sources(store, [None])


# --- Spark's files: what Spark 4.2.0 wrote is understood, what it did not write is refused --------


WRITTEN = Path(__file__).parent / "spark_4_2_0"
META = b'{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
KAFKA = '{"orders":{"0":12,"1":7},"refunds":{"0":0}}'


def test_every_offsets_file_that_spark_wrote_is_read():
    found = sorted(WRITTEN.glob("*/offsets/[0-9]*"))
    assert len(found) == 7
    for path in found:
        entry = logs.parse_offsets(path.read_bytes(), path.name)
        assert entry.version == (2 if path.parts[-3] == "offsets_v2" else 1)
        assert list(entry.ends) == ["0"]
        assert entry.batch_timestamp_ms is not None
        assert entry.batch_timestamp_ms > 1_700_000_000_000


def test_every_commits_file_that_spark_wrote_is_read():
    found = sorted(WRITTEN.glob("*/commits/[0-9]*"))
    assert len(found) == 6
    for path in found:
        entry = logs.parse_commit(path.read_bytes(), path.name)
        assert entry.version == (2 if path.parts[-3] == "commits_v2" else 1)
    assert entry.next_watermark_ms == 0


def test_the_query_id_that_spark_wrote_is_read():
    data = (WRITTEN / "in_flight/metadata").read_bytes()
    assert logs.parse_query_id(data, "metadata") == "851613dd-1760-43b2-8eb9-655d0fe77200"


def test_a_line_for_each_source_and_a_dash_for_none():
    entry = logs.parse_offsets(b"v1\n" + META + f"\n{KAFKA}\n-\n5".encode(), "offsets/7")
    assert entry.ends == {"0": KAFKA, "1": None, "2": "5"}


def test_named_sources_of_a_newer_spark():
    entry = logs.parse_offsets(b"v2\n" + META + f"\norders:{KAFKA}\n1:-".encode(), "offsets/7")
    assert entry.ends == {"orders": KAFKA, "1": None}


def test_an_old_file_without_batch_metadata():
    entry = logs.parse_offsets(b"v1\n\n5\n", "offsets/7")
    assert (entry.batch_timestamp_ms, entry.watermark_ms, entry.ends) == (None, None, {"0": "5"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: half written"),
        (b"v", "begins with 'v'"),
        (b"v1", "ends after 1 lines"),
        (b"v1\n" + META, "ends after 2 lines"),
        (b"v1\n" + META[:30] + b"\n5", "line 2 cannot be read"),
        (b"v1\n" + META + b"\n" + KAFKA[:20].encode(), "line 3 cannot be read"),
        (b"v1\n" + META + b"\n", "ends after 2 lines"),
        (b"v1\n[]\n5", "line 2 cannot be read"),
        (b'v1\n{"batchWatermarkMs":"0","batchTimestampMs":1}\n5', "line 2 cannot be read"),
        (b"v3\n" + META + b"\n5", "version v3.*newer Spark"),
        (b"v0\n" + META + b"\n5", "begins with 'v0'"),
        (b"1\n" + META + b"\n5", "begins with '1'"),
        (b"PK\x03\x04\xff\xfe", "not UTF-8"),
        (b"v2\n\n0:5", "line 2 cannot be read"),
        (b"v2\n" + META + b"\n5", "is not <source>:<offset>"),
        (b"v2\n" + META + b"\n0:1\n0:2", "source '0' twice"),
        (b"\0" * 300, "begins with"),
    ],
)
def test_an_offsets_file_that_is_not_whole_is_refused(data, message):
    with pytest.raises(CheckpointFormatError, match=message) as refused:
        logs.parse_offsets(data, "somewhere/offsets/7")
    assert "somewhere/offsets/7" in str(refused.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: half written"),
        (b"v1", "1 lines: expected the version and a line of JSON"),
        (b'v1\n{"nextBatch', "line 2 cannot be read"),
        (b"v4\n{}", "version v4"),
        (b"v1\n{}\nv1\n{}", "4 lines"),
        (b"\xff\xff", "not UTF-8"),
        (b"{}", "begins with"),
    ],
)
def test_a_commits_file_that_is_not_whole_is_refused(data, message):
    with pytest.raises(CheckpointFormatError, match=message) as refused:
        logs.parse_commit(data, "somewhere/commits/7")
    assert "somewhere/commits/7" in str(refused.value)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"id":"x"}', b'{"id":1}', b'{"id":"851613dd', b"\xff"]
)
def test_a_metadata_file_that_is_not_whole_is_refused(data):
    with pytest.raises(CheckpointFormatError, match="somewhere/metadata"):
        logs.parse_query_id(data, "somewhere/metadata")


def test_where_a_kafka_source_began():
    # The zero byte is Spark's own, for the sake of Spark 2.1.0 (SPARK-19517).
    assert logs.parse_kafka_start(b'\0v1\n{"orders":{"0":3}}', "sources/0/0") == {"orders": {0: 3}}


@pytest.mark.parametrize("data", [b"", b"\0", b"\0v1", b"\0v1\n0", b"\0v2\n{}", b'\0v1\n{"o":{"0"'])
def test_a_beginning_that_is_not_kafkas_is_refused(data):
    with pytest.raises(CheckpointFormatError, match="sources/0/0"):
        logs.parse_kafka_start(data, "sources/0/0")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (KAFKA, {"orders": {0: 12, 1: 7}, "refunds": {0: 0}}),
        ("5", None),
        ('{"logOffset":3}', None),
        ('{"orders":{}}', None),
        ("{}", None),
        ('{"orders":{"0":-2}}', None),
        ('{"orders":{"-1":2}}', None),
        ('{"orders":{"0":"12"}}', None),
        ('{"orders":{"0":1.5}}', None),
    ],
)
def test_only_offsets_of_kafka_are_taken_for_such(raw, expected):
    assert logs.kafka_offsets(raw) == expected


# --- Which topics a checkpoint's offsets are of ---------------------------------------------------


@pytest.fixture
def planned_store(tmp_path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "ck")


def test_a_topic_that_was_made_again_is_refused_for_ever(planned_store):
    require_same_topics(planned_store, {"in": "A", "other": "B"})
    for _ in range(2):
        with pytest.raises(TopicError, match="'in' was deleted and made again"):
            require_same_topics(planned_store, {"in": "C", "other": "B"})
    require_same_topics(planned_store, {"in": "A", "other": "B"})


def test_a_topic_that_comes_later_is_noted(planned_store):
    require_same_topics(planned_store, {"in": "A"})
    require_same_topics(planned_store, {"in": "A", "new": "N"})
    require_same_topics(planned_store, {"in": "A"})
    with pytest.raises(TopicError, match="'new'"):
        require_same_topics(planned_store, {"in": "A", "new": "M"})


def test_a_broker_that_gives_topics_ids_now_has_made_none_of_them_again(planned_store):
    """It was noted, as Java's client says it, that the topic had none."""
    noted = {"format_version": 1, "ids": {"in": "AAAAAAAAAAAAAAAAAAAAAA", "other": "B"}}
    planned_store.put("eos/topics.json", json.dumps(noted).encode())
    require_same_topics(planned_store, {"in": "A", "other": "B"})
    with pytest.raises(TopicError, match="'in' was deleted and made again"):
        require_same_topics(planned_store, {"in": "C", "other": "B"})


def test_a_topic_that_is_not_read_for_a_while_is_not_forgotten(planned_store):
    """A query leaves a topic out, takes a new one, and comes back to a topic made again."""
    require_same_topics(planned_store, {"in": "A"})
    require_same_topics(planned_store, {"new": "N"})
    with pytest.raises(TopicError, match="'in'"):
        require_same_topics(planned_store, {"in": "B", "new": "N"})


def test_topics_of_two_clusters_may_have_one_name(planned_store):
    """The first batch of such a query called the second one made again, on every checkpoint."""

    def asked(*ids: str) -> list[Any]:
        return [partial(dict, {"in": each}) for each in ids]

    for _ in range(2):
        same_topics_watched(planned_store, asked("A", "B"))()
    for ids in (("C", "B"), ("A", "C"), ("B", "A")):  # or they have changed places
        with pytest.raises(TopicError, match="The topic 'in' was deleted"):
            same_topics_watched(planned_store, asked(*ids))
    topics = [TopicsRead(ids=dict, begins=partial(dict, {("in", 0): at})) for at in (900, 0)]
    sources = [SourceProgress(n, "kafka", {"in": {0: 950}}, {"in": {0: 960}}, "-") for n in (0, 1)]
    assert not lost_input(topics, sources)
    assert not lost_input(topics, [sources[0], replace(sources[1], start={"in": {0: 5}})])


def test_a_partition_that_is_gone_is_not_there_because_another_cluster_has_one(planned_store):
    here, there = '{"in":{"0":4,"1":6}}', '{"in":{"0":9,"1":9}}'
    entry(planned_store, 0, f"{here}\n{there}", complete=True)
    entry(planned_store, 1, f"{here.replace('6', '8')}\n{there}")
    has = [{("in", 0): 0}, {("in", 0): 0, ("in", 1): 0}]
    topics = [TopicsRead(ids=dict, begins=partial(dict, each)) for each in has]
    with pytest.raises(InputLostError, match=r"Topic 'in' \(partitions 1\)"):
        input_change(planned_store, topics, available_now=False).require_accepted()
    lost = lost_input(topics, read_state(planned_store).sources)
    assert (lost.absent, lost.past_retention) == (True, {("in", 1): 2})
    both = [topics[1], topics[1]]
    input_change(planned_store, both, available_now=True).require_accepted()
    assert not lost_input(both, read_state(planned_store).sources)


def test_what_is_gone_of_a_range_is_told_by_partition_and_topics_that_compact_by_name():
    source = SourceProgress(
        0, "kafka", {"in": {0: 10, 1: 10, 2: 0}}, {"in": {0: 50, 1: 50, 2: 9, 3: 7}}, "-"
    )
    begins = {("in", 0): 30, ("in", 1): 90, ("in", 2): 0, ("in", 3): 0, ("other", 0): 9}
    topics = TopicsRead(
        ids=dict,
        policies=lambda: {"in": "compact,delete", "other": "compact"},
        begins=lambda: begins,
    )
    lost = lost_input([topics], [source])
    assert lost.past_retention == {("in", 0): 20, ("in", 1): 40}
    assert (lost.compacted, lost.skipped) == (("in",), False)
    assert "20 offsets of the batch's range in partition 0 of topic 'in'" in str(lost)
    assert not lost_input([TopicsRead(ids=dict)], [source])


def test_a_start_warns_once_of_the_topics_that_compact():
    told = {"a": "compact", "b": "delete"}
    with capture_logs() as logs:
        warn_of_lost_rows([TopicsRead(ids=dict, policies=lambda: told), TopicsRead(ids=dict)])
    assert [(each["event"], each["topics"]) for each in logs] == [("input_is_compacted", ["a"])]


def test_a_partition_that_nobody_reads_any_more_has_lost_all_of_its_range():
    source = SourceProgress(0, "kafka", {"in": {0: 10}}, {"in": {0: 50}, "out": {0: 7}}, "-")
    topics = TopicsRead(ids=dict, begins=lambda: {("in", 0): 0}, skips_lost=True)
    lost = lost_input([topics], [source])
    assert (lost.past_retention, lost.absent) == ({("out", 0): 7}, True)
    assert not lost_input([topics, TopicsRead(ids=dict)], [source]).absent, "not told is not gone"


def entry(store, batch: int, ends: str, *, complete: bool = False) -> str:
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{batch + 1}}}\n{ends}'
    store.put(f"offsets/{batch}", text.encode())
    if complete:
        store.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    return text


READ = '{"a":{"0":5},"b":{"0":5}}'
PLANNED = '{"a":{"0":8},"b":{"0":9}}'


def now(*topics: str, **more: Any) -> list[TopicsRead]:
    begins = {(topic, 0): 0 for topic in topics}
    return [TopicsRead(ids=dict, begins=lambda: begins, as_planned=True, **more)]


def test_a_planned_batch_of_a_topic_that_is_gone_is_named_and_then_planned_anew(planned_store):
    """Before anything is written, with the rows that it was to read; then by a person's word."""
    entry(planned_store, 0, READ, complete=True)
    entry(planned_store, 1, PLANNED)
    for available_now in (False, True):
        with pytest.raises(InputLostError, match=r"Topic 'b' \(partitions 0\)") as refused:
            input_change(planned_store, now("a"), available_now=available_now).require_accepted()
        remedy = refused.value.remedies[-1]
        assert remedy.settings == {"failOnDataLoss": "false"}
        assert remedy.costs.startswith("4 rows")
        change = input_change(planned_store, now("a", skips_lost=True), available_now=available_now)
        with capture_logs() as logs:
            change.require_accepted()
        assert [(each["event"], each["rows"]) for each in logs] == [("input_left_out", 4)]
        assert [each.path for each in change.mends()] == ["offsets/1"]
    mend(planned_store, change.mends())
    assert planned_store.get("offsets/1") is None
    entry(planned_store, 1, '{"a":{"0":8}}')  # as Spark plans it now
    assert input_change(planned_store, now("a", skips_lost=True), available_now=True).mends() == ()
    planned_store.put("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')
    input_change(planned_store, now("a"), available_now=True).require_accepted()


def test_a_topic_that_is_gone_is_named_where_no_batch_is_in_flight(planned_store):
    entry(planned_store, 0, READ, complete=True)
    with pytest.raises(InputLostError, match="'b'") as refused:
        input_change(planned_store, now("a"), available_now=True).require_accepted()
    assert "rows" not in refused.value.remedies[-1].costs
    input_change(planned_store, now("a", "b", "c"), available_now=True).require_accepted()
    input_change(planned_store, [TopicsRead(ids=dict)], available_now=True).require_accepted()


def test_a_batch_that_was_planned_before_a_partition_came_is_planned_anew(planned_store):
    """Spark runs it by no start with availableNow: MISMATCHED_TOPIC_PARTITIONS."""
    entry(planned_store, 0, READ, complete=True)
    text = entry(planned_store, 1, PLANNED)
    change = input_change(planned_store, now("a", "b", "c"), available_now=True)
    change.require_accepted()
    assert [each.path for each in change.mends()] == ["offsets/1"]
    assert input_change(planned_store, now("a", "b", "c"), available_now=False).mends() == ()
    own = [replace(each, as_planned=False) for each in now("a", "b", "c")]
    assert input_change(planned_store, own, available_now=True).mends() == ()

    assert DecisionLog(planned_store).record(decision(1, offsets=text))
    promised = input_change(planned_store, now("a", "b", "c"), available_now=True)
    assert promised.mends() == ()
    with pytest.raises(InputLostError, match="more partitions") as refused:
        promised.require_accepted()
    [remedy] = refused.value.remedies
    assert (remedy.settings, remedy.costs) == ({"trigger": "1 second"}, "")
    input_change(planned_store, now("a", "b", "c"), available_now=False).require_accepted()


def test_a_promise_of_a_topic_that_is_gone_keeps_its_plan(planned_store):
    entry(planned_store, 0, READ, complete=True)
    assert DecisionLog(planned_store).record(decision(1, offsets=entry(planned_store, 1, PLANNED)))
    change = input_change(planned_store, now("a", skips_lost=True), available_now=False)
    change.require_accepted()
    assert change.mends() == ()
    with pytest.raises(InputLostError) as refused:
        input_change(planned_store, now("a"), available_now=True).require_accepted()
    assert refused.value.remedies[-1].settings == {"failOnDataLoss": "false", "trigger": "1 second"}

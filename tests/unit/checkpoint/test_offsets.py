"""Spark's offset log is not exclusive: the decisions say what was delivered."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from airflow_eos.checkpoint import DecisionLog, OffsetLog, claim
from airflow_eos.checkpoint.offsets import require_same_sources
from airflow_eos.checkpoint.snapshot import start_facts
from airflow_eos.delivery.weaker_guarantees import VisibilityMarkers
from airflow_eos.errors import CheckpointFormatError, ContinuityError, SupersededError
from airflow_eos.protocol.participant import Owner, decision_lost
from tests.support.pipelines import kafka_pipeline


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

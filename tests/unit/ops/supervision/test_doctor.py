"""What the doctor says of each fact: the table of verdicts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_eos.core.checkpoint import Heartbeat, PipelineIdentity
from airflow_eos.core.checkpoint.store import RaceResult
from airflow_eos.core.protocol.participant import (
    Member,
    Note,
    Owner,
    Ownership,
    StartFacts,
    admission,
)
from airflow_eos.errors import StoreError
from airflow_eos.ops import doctor
from airflow_eos.ops import doctor as rights
from airflow_eos.ops.supervision.preflight import TimeoutBudget
from tests.support.beats import heartbeat
from tests.support.pipelines import commit_of

NOW_MS = 1_795_000_000_000


def beat(**changed: Any) -> Heartbeat:
    young: dict[str, Any] = {"host": "h", "beat_at_ms": NOW_MS - 1000, "term": 3}
    return heartbeat(**{"phase": "preparing", **young, **changed})


def owned(cluster: str = "c-1", prefix: str = "etl") -> PipelineIdentity:
    member = Member("sink", "kafka", {"cluster_id": cluster, "transactional_id_prefix": prefix})
    return PipelineIdentity(id="1", participants=(member,), created_at_ms=0, created_by="x")


def budget(timeout: int = 900, recovery: int = 300, broker: int = 900) -> doctor.Line:
    spans = (timedelta(seconds=each) for each in (1, 60, recovery, timeout))
    most = timedelta(seconds=broker)
    [line] = doctor.tried("timeouts", lambda: doctor.timeouts(TimeoutBudget(*spans), most))
    return line


US = Owner.at("ours", "s3a://b/q")
HERE = Ownership("prefix 'etl'", US, (Note(7, 1, "a" * 32, "ours"),))


def started(name: Ownership, asking: Owner = US, planned: int = 8) -> doctor.Line:
    settled = commit_of(7, nonce="a" * 32)
    found = StartFacts(
        asking,
        newest_planned=planned,
        newest_settled=7 if name.notes else None,
        decisions={7: (settled,)} if name.notes else {},
        names=(name,),
    )
    return doctor.start_on("prefix etl", admission(found), found)


WRITES, READS, ONLY_DESCRIBE = {4, 8}, {3, 8}, {8}


@pytest.mark.parametrize(
    ("line", "verdict", "said"),
    [
        (doctor.raced(RaceResult(8, 40, 0, 0, 0)), "ok", "one winner in each of 40 rounds"),
        (doctor.raced(RaceResult(8, 40, 3, 0, 0)), "fail", "several won in 3 of 40"),
        (doctor.raced(RaceResult(8, 40, 0, 1, 0)), "fail", "nobody won in 1 of 40"),
        (doctor.raced(RaceResult(8, 40, 0, 0, 2)), "fail", "torn in 2 of 40"),
        (doctor.clocks("store", 4_900), "ok", "+4.9 s"),
        (doctor.clocks("store", -60_000), "warn", "-60.0 s"),
        (doctor.driver(None, ()), "ok", "none has run here"),
        (doctor.watchdog("the watchdog w has not looked"), "warn", "has not looked"),
        (doctor.watchdog(None), "ok", "no look of one is missed"),
        (doctor.driver(beat(), ("it beats",)), "warn", "it beats"),
        (doctor.driver(beat(), ()), "ok", "'preparing', term 3"),
        (doctor.driver(beat(phase="failed"), ()), "ok", "'failed', term 3"),
        (doctor.owner(None, prefix="etl", cluster_id="c-1"), "ok", "nobody yet"),
        (doctor.owner(owned(), prefix="etl", cluster_id="c-1"), "ok", "_prefix 'etl'"),
        (doctor.owner(owned(), prefix="other", cluster_id="c-1"), "fail", "_prefix 'etl'"),
        (doctor.owner(owned(), prefix=None, cluster_id="c-2"), "fail", "cluster_id 'c-1'"),
        (started(Ownership("prefix 'etl'")), "ok", "nobody's"),
        (started(HERE), "ok", "batch 7 delivered"),
        (started(HERE, planned=6), "fail", "older copy"),
        (started(HERE, Owner("theirs", "s3://b/q")), "fail", "belongs to the checkpoint s3://b/q"),
        (started(HERE, Owner("ours", "s3://b/copy")), "fail", "is a copy"),
        (budget(), "ok", "needed 361 s"),
        (budget(broker=600), "fail", "transaction.max.timeout.ms of 600 s"),
        (budget(recovery=1200), "fail", "promised recovery"),
        (rights.topic("out", 3, WRITES), "ok", "3 partitions; may be written"),
        (rights.topic("out", 1, ONLY_DESCRIBE), "fail", "1 partition; no right to write"),
        (rights.topic("out", 1, None), "warn", "does not tell rights"),
        (rights.topic("out", 1, set()), "warn", "does not tell rights"),
        (rights.topic("in", 2, READS, "Read"), "ok", "2 partitions; may be read"),
        (rights.topic("in", 2, WRITES, "Read"), "fail", "2 partitions; no right to read"),
        (rights.group("lag", READS), "ok", "may be read, and its offsets set"),
        (rights.group("lag", ONLY_DESCRIBE), "fail", "no right to read"),
        (rights.group("lag", None), "warn", "does not tell rights"),
        (rights.sparks_group(rights.group("lag", None)), "warn", "does not tell rights"),
        (rights.sparks_group(rights.group("g", READS)), "ok", "may be read"),
        (rights.sparks_group(rights.group("g", ONLY_DESCRIBE)), "warn", "spark-kafka-source-…"),
        (doctor.java(17, 17), "ok", "17"),
        (doctor.java(11, 17), "warn", "11"),
        (doctor.java(None, 17), "warn", "none"),
        (doctor.spark("4.2.0", ["4.1.0", "4.2.0"]), "ok", "4.2.0"),
        (doctor.spark("4.3.0", ["4.1.0", "4.2.0"]), "warn", "4.3.0"),
        (doctor.spark(None, ["4.2.0"]), "warn", "no pyspark"),
        (doctor.sparks_own_logs("hdfs://n:1/q", "at_least_once"), "ok", "exclusive: a rename"),
        (doctor.sparks_own_logs("s3a://b/q", None), "warn", "not exclusive on s3a"),
        (doctor.sparks_own_logs("s3a://b/q", "at_least_once"), "warn", "not exclusive on s3a"),
        (doctor.sparks_own_logs("gs://b/q", "at_most_once"), "warn", "not exclusive on gs"),
        (doctor.sparks_own_logs("s3a://b/q", "exactly_once"), "ok", "not exclusive on s3a"),
        (doctor.sparks_own_logs("/q", None), "ok", "not exclusive on file"),
        (doctor.sparks_own_logs("/q", "at_least_once"), "warn", "not exclusive on file"),
        (doctor.sparks_raced(RaceResult(2, 20, 0, 0, 0)), "ok", "one winner in each of 20"),
        (doctor.sparks_raced(RaceResult(2, 20, 9, 0, 0)), "warn", "several won in 9 of 20"),
        (doctor.failed("store", StoreError("it is away")), "fail", "it is away"),
    ],
)
def test_a_fact_and_what_it_means(line, verdict, said):
    assert line.verdict == verdict, line
    assert said in line.found, line


@pytest.mark.parametrize(
    ("verdicts", "grave"),
    [(["ok", "fail", "warn"], "fail"), (["ok", "warn"], "warn"), (["ok"], "ok"), ([], "ok")],
)
def test_the_gravest_of_all_is_what_the_exit_status_says(verdicts, grave):
    assert doctor.worst([doctor.Line("x", each, "") for each in verdicts]) == grave


def test_a_member_without_a_prefix_is_no_fault_of_the_doctor():
    """What a damaged or foreign ``eos/pipeline.json`` may hold; its own check says so."""
    members = (Member("odd", "kafka", {}, "t"),)
    pipeline = PipelineIdentity(id="x", participants=members, created_at_ms=1, created_by="y")
    assert doctor._prefix_of(pipeline) is None

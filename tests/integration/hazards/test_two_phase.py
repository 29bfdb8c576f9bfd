"""Transactions that no timer ends (KIP-939): outages, both kinds in one pipeline, the costs."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import CreateAclsRequest
from typer.testing import CliRunner

from airflow_eos.arrow.producer.writer import TransactionalWriter
from airflow_eos.cli.app import app
from airflow_eos.core.delivery.task import HASH_COLUMN
from airflow_eos.errors import ConfigurationError, DecisionNeededError, TransactionError
from airflow_eos.kafka.client.cluster import TWO_PHASE_SETTING
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.offsets import LATEST, partitions_of, positions
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.local import EmbeddedKafka
from airflow_eos.ops import doctor
from airflow_eos.ops.blocked import find_blocked
from airflow_eos.ops.supervision.progress import TimeoutJudge, held_up_sentence
from airflow_eos.recovery import Action, Result, execute_recovery, plan_recovery
from tests.integration.hazards.direct import PULSE, Direct, Frame, arrow, wait_for
from tests.integration.hazards.guarded import Guarded
from tests.integration.hazards.test_least_acls import AUTHORIZED, of_role
from tests.integration.kafka.conftest import RawKafka

OFFERED = {TWO_PHASE_SETTING: "true", "unstable.api.versions.enable": "true"}
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
ALWAYS = {"two_phase": True, "unattended": True}
MS = timedelta(milliseconds=1)
SHORT = timedelta(seconds=0.2)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({**SOON, **OFFERED}) as running:
        yield running


@pytest.fixture
def pipeline(broker: EmbeddedKafka, tmp_path: Path) -> Direct:
    topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
    return Direct(broker.bootstrap_servers, tmp_path, topic, sink_options=ALWAYS)


def dies(pipeline: Direct, die_at: Callable[[str], None], place: str) -> None:
    die_at(place)
    with pytest.raises(RuntimeError, match=place):
        pipeline.run()
    die_at("")


def pass_time(pipeline: Direct, span: timedelta) -> None:
    """By the broker's clock: until it has ended a plain transaction with that timeout."""
    raw = RawKafka(pipeline.bootstrap)
    with closing(raw.wire):
        raw.prepare(f"{pipeline.topic}-eos-0-0", pipeline.topic, timeout_ms=span // MS)
        wait_for(lambda: not list_open(raw.wire, pipeline.topic))


def test_an_outage_longer_than_the_timeout_loses_no_promise_and_replays_nothing(
    broker: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    an_outage(broker, pipeline, die_at)


def an_outage(broker: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None]) -> None:
    pipeline.timeout = SHORT
    pipeline.feed_numbers(300)
    dies(pipeline, die_at, "decided")
    broker.kill()
    broker.start(1)
    pass_time(pipeline, 10 * SHORT)
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.COMMIT, Result.DONE)] * 3
    assert len(pipeline.visible()) == 300
    pipeline.run()
    pipeline.assert_exactly_once()
    promised = [each for each in pipeline.decisions.of_batch(0) if each.works]
    assert [[work.timeout_ms for work in each.works] for each in promised] == [[None] * 3]


@pytest.mark.long
def test_a_query_that_would_give_other_rows_is_exact_once_it_has_decided(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    """Its rows are those of the decision: nothing is evaluated again, whatever the timeout was."""
    pipeline.timeout = SHORT
    pipeline.feed_numbers(300)
    dies(pipeline, die_at, "settled-some")
    pass_time(pipeline, 10 * SHORT)
    promised = pipeline.batches[0]
    pipeline.batches[0] = Frame([[("k", "another row")]])
    pipeline.run()
    pipeline.batches[0] = promised
    pipeline.assert_exactly_once()


def test_what_was_never_decided_is_aborted_by_the_next_start(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(300)
    dies(pipeline, die_at, "prepared")
    assert len(pipeline.open_transactions()) == 3
    pipeline.run()
    pipeline.assert_exactly_once()


def test_a_watchdog_finds_undecided_work_that_no_timer_ends_and_its_recovery_aborts_it(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(300)
    dies(pipeline, die_at, "prepared")
    at_half_time = TimeoutJudge(None, str(pipeline.checkpoint), part_left=0.5, max_age_ms=600_000)
    assert at_half_time.look(pipeline.settings, {}) == [], "no half time of what has no timeout"
    watch = TimeoutJudge(None, str(pipeline.checkpoint), part_left=0.5, max_age_ms=1)
    found = wait_for(lambda: watch.look(pipeline.settings, {}))
    assert [each["timeout_ms"] for each in found] == [None] * 3
    report = execute_recovery(str(pipeline.checkpoint), pipeline.settings, force=True)
    assert [(r.step.action, r.result) for r in report.results] == [(Action.ABORT, Result.DONE)] * 3
    assert pipeline.open_transactions() == []


@pytest.mark.long
def test_both_kinds_live_in_one_pipeline_while_its_cluster_changes(
    tmp_path: Path, die_at: Callable[[str], None]
) -> None:
    """Plain on a cluster before 4.1's setting, then two-phase, then the setting is taken back."""
    with EmbeddedKafka(SOON, folder=tmp_path / "kafka") as kafka:
        pipeline = Direct(kafka.bootstrap_servers, tmp_path, kafka.create_topic("out", 2))
        pipeline.sink_options = {"unattended": True}
        kinds: list[set[int | None]] = []
        for offered in (False, True, False):
            restart(kafka, OFFERED if offered else {})
            pipeline.feed_numbers(30)
            pipeline.run()
            pipeline.feed_numbers(30)
            dies(pipeline, die_at, "decided")  # and is settled by the next one, on another cluster
            promised = [
                d for d in pipeline.decisions.of_batch(len(pipeline.batches) - 1) if d.works
            ]
            kinds.append({work.timeout_ms for each in promised for work in each.works})
        pipeline.run()
        pipeline.assert_exactly_once()
    assert kinds == [{60_000}, {None}, {60_000}]


def restart(kafka: EmbeddedKafka, properties: dict[str, str]) -> None:
    """The one broker again, with these two-phase properties alone."""
    kafka.stop()
    file = kafka._processes[1]._properties
    kept = [line for line in file.read_text().splitlines() if line.split("=")[0] not in OFFERED]
    given = [f"{name}={value}" for name, value in properties.items()]
    file.write_text("\n".join([*kept, *given, ""]))
    kafka.start(1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({}, "InitProducerId 6"),
        ({"unstable.api.versions.enable": "true"}, TWO_PHASE_SETTING),
    ],
)
def test_a_cluster_that_does_not_offer_it_is_refused_by_name(
    tmp_path: Path, properties: dict[str, str], named: str
) -> None:
    with EmbeddedKafka({**SOON, **properties}) as kafka:
        topic = kafka.create_topic("out", 2)
        pipeline = Direct(kafka.bootstrap_servers, tmp_path, topic, sink_options=ALWAYS)
        with pytest.raises(TransactionError, match=named):
            pipeline.run()
        assert pipeline.open_transactions() == []
        pipeline.sink_options = {"unattended": True}  # two_phase="auto"
        pipeline.feed_numbers(30)
        pipeline.run()
        pipeline.assert_exactly_once()


def test_nobody_who_looks_is_refused_and_auto_is_plain(
    broker: EmbeddedKafka, pipeline: Direct
) -> None:
    pipeline.sink_options = {"two_phase": True}
    with pytest.raises(ConfigurationError, match="no watchdog looks"):
        pipeline.run()
    pipeline.sink_options = {}
    pipeline.feed_numbers(30)
    pipeline.run()
    assert [w.timeout_ms for d in pipeline.decisions.of_batch(0) for w in d.works] == [60_000] * 3


def test_a_run_that_ends_in_order_leaves_nothing_open_that_no_timer_ends(
    pipeline: Direct,
) -> None:
    """A lost attempt of a task may open its transaction after the last batch has listed."""
    pipeline.feed_numbers(30)
    with pipeline.started() as batch:
        pipeline.deliver(batch, 0)
        straggler = pipeline.sink.opened(7, 1)
        straggler.write(arrow([("k", "late")]).drop_columns([HASH_COLUMN]))
        straggler.prepare("")
        assert pipeline.open_transactions() == [f"{pipeline.prefix}-eos-7-1"]
        PULSE.before_stopped()
    pipeline.assert_exactly_once()


def test_disown_ends_what_no_timer_ends_but_what_the_checkpoint_promises(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    pipeline.feed_numbers(30)
    dies(pipeline, die_at, "decided")
    straggler = pipeline.sink.opened(7, 1)
    straggler.write(arrow([("k", "late")]).drop_columns([HASH_COLUMN]))
    straggler.prepare("")
    told = airflow_eos("disown", pipeline.prefix, "-b", pipeline.bootstrap, "--yes")
    assert "1 transactions that no timer ends were aborted" in told
    assert f"3 stay open, as promised: start the app of {pipeline.checkpoint}" in told
    assert len(pipeline.open_transactions()) == 3, "promised, by a checkpoint that is there"
    shutil.rmtree(pipeline.checkpoint)
    told = airflow_eos("disown", pipeline.prefix, "-b", pipeline.bootstrap, "--yes")
    assert pipeline.open_transactions() == [], told


def airflow_eos(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_blocked_and_doctor_name_such_transactions_first(
    broker: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None], monkeypatch: Any
) -> None:
    pipeline.feed_numbers(30)
    pipeline.run()
    other = broker.create_topic(f"a-{uuid.uuid4().hex[:8]}")
    with ConnectionPool(pipeline.settings) as wire:
        plain = TransactionalWriter(wire, topic=other)
        plain.begin(f"{other}-plain", 60_000)
        plain.write(arrow([("k", "v")]).drop_columns([HASH_COLUMN]))
        plain.prepare()
        pipeline.feed_numbers(30)
        dies(pipeline, die_at, "prepared")
        found = find_blocked(wire, [other, pipeline.topic]).partitions
        monkeypatch.setattr(doctor, "HELD_UP_AFTER_MS", 0)
        line = wait_for(lambda: _warned(doctor._two_phase(wire, pipeline.prefix)))
    assert found[0].topic == pipeline.topic
    assert found[-1].topic == other
    assert "no timer ends it" in held_up_sentence(found[0])
    assert found[0].ends_in_ms is None
    assert "3 transactions that no timer ends" in line.found


def _warned(line: doctor.Line) -> doctor.Line | None:
    return line if line.verdict == "warn" else None


TWO_PHASE_COMMIT = 15
"""Of ``org.apache.kafka.common.acl.AclOperation``; no client of ours has a name for it."""


@pytest.mark.long
def test_an_acl_that_is_missing_is_named_and_auto_does_without(tmp_path: Path) -> None:
    authorized = {**AUTHORIZED, **OFFERED}
    with EmbeddedKafka(authorized, listeners={"SASL": "SASL_PLAINTEXT"}) as kafka:
        guarded = Guarded(kafka, tmp_path)
        guarded.grant(*of_role("app"))
        pipeline = guarded.direct
        pipeline.sink_options = {"unattended": True}
        pipeline.feed_numbers(10)
        pipeline.run()
        pipeline.sink_options = ALWAYS
        pipeline.feed_numbers(10)
        with pytest.raises(TransactionError, match="ACL TwoPhaseCommit is missing"):
            pipeline.run()
        allow_two_phase(kafka, f"{pipeline.prefix}-")
        wait_for(lambda: _starts(pipeline))
        pipeline.assert_exactly_once()
        promised = [{w.timeout_ms for d in of_batch(pipeline, n) for w in d.works} for n in (0, 1)]
        assert promised == [{60_000}, {None}]


def of_batch(pipeline: Direct, number: int) -> tuple[Any, ...]:
    return pipeline.decisions.of_batch(number)


def _starts(pipeline: Direct) -> bool:
    """Whether the grant is in force: the authorizer follows its answer a little later."""
    try:
        pipeline.run()
    except TransactionError:
        return False
    return True


def allow_two_phase(kafka: EmbeddedKafka, prefix: str) -> None:
    creation = CreateAclsRequest.AclCreation(
        resource_type=5,  # transactional id
        resource_name=prefix,
        resource_pattern_type=4,  # prefixed
        principal="User:app",
        host="*",
        operation=TWO_PHASE_COMMIT,
        permission_type=3,  # allow
    )
    settings = KafkaSettings.from_librdkafka({"bootstrap.servers": kafka.bootstrap_servers})
    with ConnectionPool(settings) as wire:
        [result] = wire.request(CreateAclsRequest(creations=[creation])).results
    assert result.error_code == 0, result


def test_a_promise_whose_rows_are_past_retention_is_replayed_and_not_lost_in_silence(
    pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    """Retention goes on while a transaction is open, and no reader has seen its rows."""
    pipeline.feed_numbers(30)
    dies(pipeline, die_at, "decided")
    with closing(RawKafka(pipeline.bootstrap).wire) as wire:
        ends = positions(wire, partitions_of(wire, [pipeline.topic]), LATEST, committed_only=False)
    for (topic, partition), end in ends.items():
        delete_records(pipeline, topic, partition, end)
    plan = plan_recovery(str(pipeline.checkpoint), pipeline.settings)
    assert [each.action for each in plan.steps] == [Action.COMMIT] * 3, "open, by its coordinator"
    pipeline.run()
    pipeline.assert_exactly_once()
    assert sum(bool(each.works) for each in pipeline.decisions.of_batch(0)) == 2, "a replay"


@pytest.mark.long
def test_a_promise_into_a_topic_that_was_made_again_is_no_commit_for_who_starts_either(
    broker: EmbeddedKafka, pipeline: Direct, die_at: Callable[[str], None]
) -> None:
    """Its coordinator commits it, and writes its markers into the new topic."""
    pipeline.feed_numbers(30)
    dies(pipeline, die_at, "decided")
    raw = RawKafka(pipeline.bootstrap)
    with closing(raw.wire):
        raw.delete_topic(pipeline.topic)
    broker.create_topic(pipeline.topic, 2)
    with pytest.raises(DecisionNeededError):
        pipeline.run()
    [promise] = [each for each in pipeline.decisions.of_batch(0) if each.works]
    for work in promise.works:
        told = ("--transaction", work.key, "--assume", "aborted")
        asked = ("recover", str(pipeline.checkpoint), "-b", pipeline.bootstrap, "--force", *told)
        CliRunner().invoke(app, asked)
    pipeline.run()
    pipeline.assert_exactly_once()


def delete_records(pipeline: Direct, topic: str, partition: int, before: int) -> None:
    raw = RawKafka(pipeline.bootstrap)
    with closing(raw.wire):
        raw.delete_records(topic, before, partition)

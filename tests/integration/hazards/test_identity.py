"""Who a pipeline is: copies, moves, neighbours and lost memory, on a broker."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from airflow_eos.cli.app import app
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.errors import CheckpointFormatError, OwnershipError
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import Direct
from tests.support.beats import beating, heartbeat
from tests.support.topics import read_topic


@pytest.fixture
def pipeline(kafka_broker: EmbeddedKafka, topic: Callable[..., str], tmp_path: Path) -> Direct:
    """With a topic of prefixes of its own, so that a test may delete it."""
    prefixes = f"prefixes-{uuid.uuid4().hex[:8]}"
    config = {"airflow-eos.prefixes.topic": prefixes}
    return Direct(kafka_broker.bootstrap_servers, tmp_path, topic("out", 2), kafka_config=config)


@pytest.fixture
def flink(kafka_broker: EmbeddedKafka, topic: Callable[..., str]) -> Iterator[Any]:
    """Pre-commits under an id; ``committed()`` says how many of its rows arrive."""
    out, opened = topic("flink", 1), []

    class Flink:
        def prepare(self, transactional_id: str) -> None:
            config = {
                "bootstrap.servers": kafka_broker.bootstrap_servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 600_000,
            }
            opened.append(producer := Producer(config))
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce(out, b"a row of its checkpoint")
            producer.flush(30)

        def committed(self) -> int:
            while opened:
                opened.pop().commit_transaction(30)
            return len(read_topic(kafka_broker.bootstrap_servers, out))

    yield Flink()
    for producer in opened:
        with suppress(KafkaException):  # a person has ended it
            producer.abort_transaction(30)


def cli(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def said(found: Result) -> str:
    return " ".join(f"{found.output} {found.exception or ''}".split())


def config_of(pipeline: Direct) -> list[str]:
    file = pipeline.folder / "kafka.json"
    file.write_text(json.dumps({**pipeline.kafka_config, "bootstrap.servers": pipeline.bootstrap}))
    return ["--kafka-config", str(file)]


def run(pipeline: Direct, batches: int = 1) -> None:
    for _ in range(batches):
        pipeline.feed_numbers(30)
    pipeline.run()


def disown(pipeline: Direct, *more: str) -> Result:
    return cli("disown", pipeline.prefix, *config_of(pipeline), "--yes", *more)


@pytest.mark.long
def test_an_older_checkpoint_with_higher_numbers_is_refused(pipeline: Direct) -> None:
    run(pipeline, 3)
    aside = pipeline.folder / "aside"
    shutil.move(pipeline.checkpoint, aside)
    assert disown(pipeline).exit_code == 0
    new = Direct(
        pipeline.bootstrap,
        pipeline.folder,
        pipeline.topic,
        prefix=pipeline.prefix,
        kafka_config=pipeline.kafka_config,
    )
    run(new)
    shutil.rmtree(new.checkpoint)
    shutil.move(aside, pipeline.checkpoint)
    pipeline.feed_numbers(30)
    with pytest.raises(OwnershipError, match="another pipeline"):
        pipeline.run()
    assert len(pipeline.visible()) == 120


@pytest.mark.long
@pytest.mark.parametrize("form", ["{}-0-7", "{}-eos-0-7"])
def test_a_first_start_leaves_open_work_of_another_program_alone(
    pipeline: Direct, flink: Any, form: str
) -> None:
    theirs = form.format(pipeline.prefix)
    flink.prepare(theirs)
    pipeline.feed_numbers(10)
    with pytest.raises(OwnershipError, match=f"{theirs}.*another prefix") as refused:
        pipeline.run()
    assert "--allow orphan" in refused.value.remedies[1].commands[0]
    asked = [*config_of(pipeline), "--prefix", pipeline.prefix]
    plan = cli("plan", pipeline.checkpoint, *asked)
    assert plan.exit_code == 4
    assert "ORPHAN" in said(plan)
    assert "ABORT" not in said(plan)
    doctor = cli("doctor", pipeline.checkpoint, *asked, "--topic", pipeline.topic, "--json")
    assert doctor.exit_code == 1
    assert theirs in said(doctor)
    assert not (pipeline.checkpoint / "eos/pipeline.json").exists(), "another prefix is a way on"
    assert flink.committed() == 1
    pipeline.run()
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_a_persons_word_ends_what_another_program_left_and_then_the_start_goes_on(
    pipeline: Direct, flink: Any
) -> None:
    flink.prepare(f"{pipeline.prefix}-0-7")
    pipeline.feed_numbers(10)
    with pytest.raises(OwnershipError) as refused:
        pipeline.run()
    _, command, *arguments = refused.value.remedies[1].commands[0].split()
    assert cli(command, *arguments).exit_code == 0
    pipeline.run()
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_a_program_beside_us_under_our_prefix_is_never_ended(pipeline: Direct, flink: Any) -> None:
    run(pipeline)
    for form in ("{}-0-7", "{}-3", "{}-etl-eos-0-0"):
        flink.prepare(form.format(pipeline.prefix))
    run(pipeline)
    assert cli("recover", pipeline.checkpoint, *config_of(pipeline), "--force").exit_code == 0
    assert flink.committed() == 3
    pipeline.assert_exactly_once()


def refused_by_all(pipeline: Direct, words: str) -> None:
    """Start, plan, recover and doctor say one thing, and none of them exits 0."""
    at = [pipeline.checkpoint, *config_of(pipeline)]
    told = [
        cli("plan", *at),
        cli("recover", *at, "--force"),
        cli("doctor", *at, "--prefix", pipeline.prefix, "--topic", pipeline.topic, "--rounds", "1"),
    ]
    for found in told:
        assert found.exit_code != 0
        assert words in said(found).replace("│", " ") or words.replace(" ", "") in said(
            found
        ).replace(" ", ""), said(found)
    pipeline.feed_numbers(5)
    with pytest.raises(OwnershipError, match=words):
        pipeline.run()
    pipeline.batches.pop()


@pytest.mark.long
def test_an_older_copy_is_refused_by_every_command(pipeline: Direct) -> None:
    run(pipeline, 2)
    shutil.copytree(pipeline.checkpoint, night := pipeline.folder / "night")
    run(pipeline, 2)
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(night, pipeline.checkpoint)
    refused_by_all(pipeline, "older copy")


@pytest.mark.long
def test_a_copy_elsewhere_is_refused_until_a_person_says_that_it_was_moved(
    pipeline: Direct,
) -> None:
    run(pipeline, 2)
    former = pipeline.checkpoint
    shutil.copytree(former, copy := pipeline.folder / "copy")
    pipeline.checkpoint = copy
    refused_by_all(pipeline, "is a copy")
    pipeline.checkpoint = former
    run(pipeline)
    assert disown(pipeline, "--moved").exit_code == 0
    pipeline.checkpoint = copy
    pipeline.feed_numbers(5)
    with pytest.raises(OwnershipError, match="older copy"):
        pipeline.run()
    shutil.rmtree(copy)
    shutil.move(former, copy)
    pipeline.run()
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_a_copy_is_refused_once_another_copy_has_gone_on_with_the_name_given_up(
    pipeline: Direct,
) -> None:
    """One id, one place, and higher numbers: an older copy was let in by a person meanwhile."""
    run(pipeline, 3)
    shutil.copytree(pipeline.checkpoint, older := pipeline.folder / "older")
    run(pipeline, 3)
    shutil.move(pipeline.checkpoint, newer := pipeline.folder / "newer")
    shutil.move(older, pipeline.checkpoint)
    assert disown(pipeline).exit_code == 0
    pipeline.delivered = 3
    batches, pipeline.batches = pipeline.batches, [*pipeline.batches[:3]]
    run(pipeline)  # what a person was told: delivered again
    shutil.rmtree(pipeline.checkpoint)
    shutil.move(newer, pipeline.checkpoint)
    pipeline.batches, pipeline.delivered = batches, 6
    refused_by_all(pipeline, "another copy of this checkpoint has gone on")
    assert disown(pipeline).exit_code == 0
    pipeline.run()


@pytest.mark.long
def test_a_checkpoint_that_was_deleted_is_another_pipeline(pipeline: Direct) -> None:
    run(pipeline, 2)
    shutil.rmtree(pipeline.checkpoint)
    fresh = Direct(
        pipeline.bootstrap,
        pipeline.folder,
        pipeline.topic,
        prefix=pipeline.prefix,
        kafka_config=pipeline.kafka_config,
    )
    fresh.feed_numbers(5)
    with pytest.raises(OwnershipError, match="lost, deleted"):
        fresh.run()
    at = [*config_of(fresh), "--prefix", fresh.prefix, "--rounds", "1"]
    assert cli("doctor", fresh.checkpoint, *at).exit_code == 1
    assert len(pipeline.visible()) == 60


def test_a_memory_that_is_gone_is_noted_anew_and_refuses_an_older_copy(pipeline: Direct) -> None:
    run(pipeline, 2)
    shutil.copytree(pipeline.checkpoint, older := pipeline.folder / "older")
    run(pipeline)
    forget_all(pipeline)
    at = [pipeline.checkpoint, *config_of(pipeline)]
    assert "what was remembered is gone" in said(cli("plan", *at))
    pipeline.run()  # no batch of its own: the note is that of the start
    newest = PrefixLedger(pipeline.settings, prefix=pipeline.prefix).read().newest()
    assert newest is not None
    assert newest.batch == 2
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(older, pipeline.checkpoint)
    refused_by_all(pipeline, "older copy")


@pytest.mark.parametrize("number", [7, 4711], ids=["another timeout", "no attempt of Spark's"])
def test_a_flink_job_whose_ids_are_like_ours_keeps_what_it_has_open(
    pipeline: Direct, flink: Any, number: int
) -> None:
    """Its prefix is ``<ours>-eos``: no batch and no recovery aborts it, and a person is asked."""
    run(pipeline, 1)
    flink.prepare(f"{pipeline.prefix}-eos-0-{number}")
    run(pipeline, 2)
    at = [pipeline.checkpoint, *config_of(pipeline)]
    planned = cli("plan", *at)
    assert planned.exit_code == 4, said(planned)
    assert "Flink" in said(planned)
    assert cli("recover", *at, "--force").exit_code != 1
    doctor = cli("doctor", *at, "--prefix", pipeline.prefix, "--rounds", "1")
    assert "another program's" in said(doctor), said(doctor)
    pipeline.run()
    assert flink.committed() == 1
    pipeline.assert_exactly_once()


def test_a_first_start_beside_a_flink_job_whose_ids_are_like_ours_is_refused(
    pipeline: Direct, flink: Any
) -> None:
    flink.prepare(f"{pipeline.prefix}-eos-0-1")
    pipeline.feed_numbers(5)
    with pytest.raises(OwnershipError, match=r"another program's: .*Flink"):
        pipeline.run()
    assert flink.committed() == 1


def an_older_copy_without_a_memory(pipeline: Direct, forgets: bool = True) -> None:
    """Put back as it was two batches ago, after the topic of prefixes was deleted."""
    run(pipeline, 2)
    shutil.copytree(pipeline.checkpoint, older := pipeline.folder / "older")
    run(pipeline, 2)
    if forgets:
        forget_all(pipeline)
    shutil.rmtree(pipeline.checkpoint)
    shutil.move(older, pipeline.checkpoint)


def test_an_older_copy_is_refused_by_what_was_delivered_where_no_memory_is_left(
    pipeline: Direct,
) -> None:
    """One witness was deleted; the ids' coordinators have seen later transactions."""
    an_older_copy_without_a_memory(pipeline)
    refused_by_all(pipeline, "older copy")
    assert len(pipeline.visible()) == 120


def test_an_older_copy_is_refused_by_the_log_where_the_coordinators_tell_of_an_attempt(
    pipeline: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest transaction of each id was aborted: that says nothing of the one before."""
    run(pipeline, 2)
    shutil.copytree(pipeline.checkpoint, older := pipeline.folder / "older")
    run(pipeline, 1)
    pipeline.feed_numbers(30)
    with monkeypatch.context() as dying:
        dying.setenv("EOS_FAILPOINTS", "prepared=raise")
        with pytest.raises(RuntimeError):
            pipeline.run()
    forget_all(pipeline)
    newest = pipeline.folder / "newest"
    shutil.copytree(pipeline.checkpoint, newest)
    shutil.rmtree(pipeline.checkpoint)
    shutil.move(older, pipeline.checkpoint)
    refused_by_all(pipeline, "behind the last promised one")
    shutil.rmtree(pipeline.checkpoint)
    shutil.move(newest, pipeline.checkpoint)
    pipeline.run()  # the newest copy is let in, attempt and all
    pipeline.assert_exactly_once()


def test_an_older_copy_is_let_in_by_a_persons_word_and_the_next_one_is_not(
    pipeline: Direct,
) -> None:
    """Also where nothing was left to forget; the word goes with the first note."""
    an_older_copy_without_a_memory(pipeline)
    shutil.copytree(pipeline.checkpoint, again := pipeline.folder / "again")
    refused_by_all(pipeline, "older copy")
    assert disown(pipeline).exit_code == 0
    ledger = PrefixLedger(pipeline.settings, prefix=pipeline.prefix)
    assert ledger.read().given_up
    pipeline.delivered = 2
    pipeline.run()
    assert not ledger.read().given_up
    ledger.close()
    assert len(pipeline.visible()) == 180, "what it said it would cost"
    shutil.rmtree(pipeline.checkpoint)
    shutil.move(again, pipeline.checkpoint)
    refused_by_all(pipeline, "older copy")


@pytest.mark.long
def test_decisions_without_their_pipeline_are_nobodys(pipeline: Direct) -> None:
    """Under another prefix the checkpoint would pass for a new pipeline, and deliver again."""
    run(pipeline, 2)
    (pipeline.checkpoint / "eos" / "pipeline.json").unlink()
    other = Direct(pipeline.bootstrap, pipeline.folder, pipeline.topic, prefix="another")
    other.batches, other.delivered = [*pipeline.batches, pipeline.batches[0]], 2
    with pytest.raises(CheckpointFormatError, match=r"pipeline\.json is missing"):
        other.run()
    assert len(pipeline.visible()) == 60


@pytest.mark.long
def test_a_recovery_notes_although_the_topic_of_prefixes_was_deleted(
    pipeline: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pipeline, 1)
    pipeline.feed_numbers(30)
    with monkeypatch.context() as dying:
        dying.setenv("EOS_FAILPOINTS", "decided=raise")
        with pytest.raises(RuntimeError):
            pipeline.run()
    forget_all(pipeline)
    found = cli("recover", pipeline.checkpoint, *config_of(pipeline), "--force")
    assert found.exit_code == 0, said(found)
    assert len(pipeline.visible()) == 60
    pipeline.run()
    pipeline.assert_exactly_once()


def forget_all(pipeline: Direct) -> None:
    """The topic is deleted; without a leader for a moment, it would be looked for."""
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    name = pipeline.kafka_config["airflow-eos.prefixes.topic"]
    admin.delete_topics([name])[name].result(30)
    deadline = time.monotonic() + 300
    while name in admin.list_topics(timeout=60).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long
def test_a_checkpoint_remembers_its_topic_of_prefixes(pipeline: Direct) -> None:
    """Under another one nothing would be remembered: it is another address, and refused."""
    run(pipeline)
    pipeline.kafka_config = {}
    pipeline.feed_numbers(5)
    with pytest.raises(OwnershipError, match="prefixes_topic"):
        pipeline.run()
    plain = ["-b", pipeline.bootstrap]
    assert cli("plan", pipeline.checkpoint, *plain).exit_code == 0, "the checkpoint says it"


def test_a_checkpoint_that_names_a_topic_of_its_own_gets_nobodys_prefix(pipeline: Direct) -> None:
    """Whoever may write there would have its work ended by the login of who recovers it."""
    run(pipeline)
    hostile = Direct(
        pipeline.bootstrap,
        pipeline.folder / "hostile",
        pipeline.topic,
        prefix=pipeline.prefix,
        kafka_config={"airflow-eos.prefixes.topic": f"hostile-{uuid.uuid4().hex[:8]}"},
    )
    run(hostile)
    for command in ("plan", "recover"):
        found = cli(command, hostile.checkpoint, *config_of(pipeline))
        assert found.exit_code != 0, said(found)
        assert "another pipeline" in said(found)
    assert cli("plan", pipeline.checkpoint, *config_of(pipeline)).exit_code == 0


@pytest.mark.long
def test_a_living_owner_is_not_disowned(pipeline: Direct) -> None:
    run(pipeline)
    with beating(pipeline.store, heartbeat("waiting")):
        refused = disown(pipeline)
        assert refused.exit_code != 0
        assert "alive" in said(refused)
        assert ledger_of(pipeline).read().owner == owner_of(pipeline.store)
        assert disown(pipeline, "--force").exit_code == 0
    assert ledger_of(pipeline).read().owner is None


def test_disown_says_what_it_could_not_know(pipeline: Direct) -> None:
    run(pipeline)
    shutil.rmtree(pipeline.checkpoint)
    done = disown(pipeline)
    assert done.exit_code == 0
    assert "is not known: no heartbeat is there" in said(done)


@pytest.mark.long
def test_a_record_that_nobody_understands_is_removed_by_disown(pipeline: Direct) -> None:
    run(pipeline)
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    name = pipeline.kafka_config["airflow-eos.prefixes.topic"]
    for key in (f'{{"prefix":"{pipeline.prefix}","lease":1}}', '{"prefix":"other","x":1}', b"\xff"):
        producer.produce(name, key=key, value=b"{}", partition=0)
    assert producer.flush(30) == 0
    refused_by_all(pipeline, "cannot be understood")
    assert disown(pipeline).exit_code == 0
    pipeline.run()  # nothing is remembered now: it is noted anew
    run(pipeline)
    pipeline.assert_exactly_once()


def ledger_of(pipeline: Direct) -> PrefixLedger:
    return PrefixLedger(pipeline.settings, prefix=pipeline.prefix)

"""Topics that others write to as well: a cut is of this pipeline's rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from airflow_eos import cuts
from airflow_eos.errors import CheckpointError, InputError
from airflow_eos.local import EmbeddedKafka
from airflow_eos.recovery import execute_recovery
from tests.integration.kafka.conftest import RawKafka
from tests.integration.recovery.conftest import BATCH, DeadPipeline
from tests.support.topics import produce


def read(dead: DeadPipeline, cut: cuts.Cut) -> list[str]:
    kafka = {"bootstrap.servers": dead.settings.bootstrap_servers}
    found = [value for each in cuts.rows(cut, "sink", kafka) for value in each["value"].to_pylist()]
    return [value.decode() for value in found]


def recovered(dead: DeadPipeline) -> cuts.Cut:
    execute_recovery(
        dead.store.location, {"bootstrap.servers": dead.settings.bootstrap_servers}, force=True
    ).require_complete()
    return cuts.latest(dead.store.location)


def test_rows_of_a_foreign_writer_change_no_cut_that_was_taken(dead: DeadPipeline) -> None:
    """What it wrote before is in the first cut, since that looked; what it writes later is not."""
    servers = dead.settings.bootstrap_servers
    produce(servers, dead.topic, [("", "theirs, before")])
    dead.decided(dead.write(0, ["ours"]))
    cut = recovered(dead)
    assert cut.batch_id == BATCH
    assert read(dead, cut) == ["theirs, before", "ours"]
    produce(servers, dead.topic, [("", "theirs, after")])
    open_now = dead.write(9, ["of a later batch"], prefix="somebody-else")
    assert read(dead, cut) == ["theirs, before", "ours"], "also while it holds its readers up"
    dead.end(open_now, commit=True)
    assert read(dead, cut) == ["theirs, before", "ours"]
    assert cuts.latest(dead.store.location) == cut


def test_our_rows_behind_an_open_transaction_of_another_are_in_the_first_cut(
    dead: DeadPipeline, kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], RawKafka]
) -> None:
    """A batch before the first cut wrote them, into a partition that this batch did not write."""
    raw = raw_kafka(kafka_broker.bootstrap_servers)
    dead.topic = kafka_broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
    work = dead.write(0, ["ours"])
    (at,) = work.written
    other = 1 - at.partition
    foreign = raw.prepare(f"else-{dead.prefix}", dead.topic, partition=other)
    rows = [(b"k", b"ours, before")]
    raw.end(raw.prepare(f"former-{dead.prefix}", dead.topic, partition=other, rows=rows))
    dead.decided(work)
    cut = recovered(dead)
    raw.end(foreign, commit=False)
    assert sorted(read(dead, cut)) == ["ours", "ours, before"]


def test_a_topic_made_again_gives_no_other_rows_for_those_of_a_cut(
    dead: DeadPipeline, kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], RawKafka]
) -> None:
    dead.decided(dead.write(0, ["ours"]))
    cut = recovered(dead)
    raw_kafka(kafka_broker.bootstrap_servers).delete_topic(dead.topic)
    kafka_broker.create_topic(dead.topic)
    produce(kafka_broker.bootstrap_servers, dead.topic, [("", "another's")] * 9)
    with pytest.raises(CheckpointError, match="was made again since cut 5"):
        read(dead, cut)


def test_retention_that_overtakes_a_reader_of_a_cut_is_said_as_it_is(
    dead: DeadPipeline, kafka_broker: EmbeddedKafka, raw_kafka: Callable[[str], RawKafka]
) -> None:
    """It was told to skip offsets of an app's input."""
    raw = raw_kafka(kafka_broker.bootstrap_servers)
    dead.topic = kafka_broker.create_topic(f"out-{uuid.uuid4().hex[:8]}", 2)
    for partition in (0, 1):  # ours is in one of them
        former = f"former-{partition}-{dead.prefix}"
        raw.end(raw.prepare(former, dead.topic, partition=partition, rows=[(b"k", b"1")] * 3))
    dead.decided(dead.write(0, ["ours"]), dead.write(1, ["and", "others", "of", "ours"]))
    cut = recovered(dead)
    reading = cuts.rows(cut, "sink", {"bootstrap.servers": dead.settings.bootstrap_servers})
    next(reading)
    for partition in (0, 1):
        raw.delete_records(dead.topic, -1, partition)
    with pytest.raises(InputError, match=r"cannot be read whole any more.*Read a newer cut"):
        list(reading)
    assert read(dead, cut) == [], "who begins later finds what is left"


def test_a_recovery_that_leaves_rows_to_the_app_writes_no_cut(dead: DeadPipeline) -> None:
    """Some of the batch is committed; what a timeout took away, the app replays."""
    lost, kept = dead.write(0, ["lost"]), dead.write(1, ["kept"])
    dead.end(lost, commit=False)
    dead.decided(lost, kept)
    execute_recovery(
        dead.store.location, {"bootstrap.servers": dead.settings.bootstrap_servers}, force=True
    )
    assert not dead.store.list("eos/cuts")

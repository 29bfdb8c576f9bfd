"""The whole store against an S3 server of its own, over plain HTTP on the loopback interface."""

from __future__ import annotations

import re
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, take_term, write_heartbeat
from airflow_eos.core.checkpoint.layout import newest_planned
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.errors import CheckpointFormatError, StoreError
from airflow_eos.ops.supervision.heartbeat_monitor import HeartbeatReading, is_refusal
from tests.support.beats import heartbeat
from tests.support.servers.s3 import EmbeddedS3
from tests.support.stores import moto

RACERS = 8


@pytest.fixture(scope="module")
def s3() -> Iterator[EmbeddedS3]:
    with EmbeddedS3() as server:
        yield server


@pytest.fixture
def store(s3: EmbeddedS3) -> CheckpointStore:
    return opened(s3, uuid.uuid4().hex)


def opened(s3: EmbeddedS3, name: str) -> CheckpointStore:
    return CheckpointStore.open(
        f"s3a://bucket/{name}", storage_options={**s3.storage_options, "timeout": "60s"}
    )


@pytest.mark.long
def test_a_checkpoint_on_s3_with_client_options_among_the_storage_options(
    store: CheckpointStore,
) -> None:
    store.check_create_if_absent()
    assert store.list("eos") == []
    assert store.create("eos/decisions/7/1.json", b"first") is True
    assert store.create("eos/decisions/7/1.json", b"second") is False
    assert store.get("eos/decisions/7/1.json") == b"first"
    assert store.get("eos/decisions/7/2.json") is None
    assert [entry.name for entry in store.list("eos/decisions/7")] == ["1.json"]
    assert list(store.folders("eos/decisions")) == ["7"]
    store.put("eos/driver.json", b"1")
    store.put("eos/driver.json", b"22")
    beat = store.head("eos/driver.json")
    assert beat is not None
    assert beat.size == 2
    assert store.delete_folder("eos/decisions/7") is True
    assert store.head("eos/decisions/7/1.json") is None


@pytest.mark.long
def test_of_all_who_create_at_once_one_wins_and_his_content_stands(s3: EmbeddedS3) -> None:
    """Each with a client of its own, as drivers on other machines."""
    name = uuid.uuid4().hex
    racers = [opened(s3, name) for _ in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as pool:
        for place in range(20):
            path = f"eos/decisions/{place}/1.json"
            won = list(
                pool.map(lambda n: racers[n].create(path, f"{n}".encode() * 50_000), range(RACERS))  # noqa: B023
            )
            assert won.count(True) == 1, won
            assert racers[0].get(path) == f"{won.index(True)}".encode() * 50_000


def test_no_two_drivers_on_s3_have_one_term(s3: EmbeddedS3) -> None:
    """Those who list while this server writes see its temporary file, as on Amazon nobody does.

    It is refused as a foreign one, and they start again.
    """
    name = uuid.uuid4().hex

    def take(number: int) -> int:
        while True:
            try:
                return take_term(opened(s3, name), taken_by=f"driver {number}").term.number
            except CheckpointFormatError as error:
                if not re.search(r"/[0-9]+\.json-[0-9a-f-]{36} is foreign", str(error)):
                    raise

    with ThreadPoolExecutor(RACERS) as pool:
        taken = list(pool.map(take, range(RACERS)))
    assert len(set(taken)) == RACERS, taken


@pytest.mark.long
def test_a_listing_has_what_was_written_before_it_also_past_a_page(store: CheckpointStore) -> None:
    """Amazon lists 1,000 at a time; a superseded driver must see the newest of all."""
    with ThreadPoolExecutor(RACERS) as pool:
        list(pool.map(lambda n: store.put(f"offsets/{n}", b"v1"), range(1_020)))
    assert newest_planned(store) == 1_019
    assert len(store.list("offsets")) == 1_020


@pytest.mark.long
def test_the_mark_that_s3a_makes_of_a_folder_is_no_batch() -> None:
    """A recovery of a checkpoint that Spark keeps on S3 called it foreign."""
    with moto() as where:
        store = where.opened("query")
        store.put("offsets/0", b"v1")
        mark = f"{where.options['aws_endpoint']}/bucket/query/offsets/"
        asked = urllib.request.Request(mark, method="PUT", data=b"")
        urllib.request.urlopen(asked, timeout=60).close()
        newest = SparkLog(store).newest("offsets")
        assert newest is not None
        assert newest.name == "0"
        assert [entry.name for entry in store.list("offsets")] == ["0"]


@pytest.mark.long
def test_a_bucket_that_is_not_there_is_refused(s3: EmbeddedS3) -> None:
    nowhere = CheckpointStore.open("s3://nobucket/query", storage_options=s3.storage_options)
    with pytest.raises(StoreError, match="nobucket"):
        nowhere.check_create_if_absent()


@pytest.mark.long
def test_who_watches_an_app_opens_its_bucket_with_the_keys_of_now() -> None:
    """It asked on with the former keys for ever: no client says that a listing is refused."""
    with EmbeddedS3() as bucket:
        reading = HeartbeatReading(opened(bucket, "query"), reopen=lambda: opened(bucket, "query"))
        write_heartbeat(reading.store, heartbeat("waiting", term=1))
        assert reading.look().heartbeat is not None
        bucket.change_keys()
        with pytest.raises(StoreError) as refused:
            reading.look()
        assert is_refusal(refused.value)
        assert reading.look().heartbeat is not None

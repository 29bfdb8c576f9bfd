"""Upserts into a real Redis: each hazard of absolute values that may come late, or again."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import (
    ConfigurationError,
    DeliveryError,
    LocalEnvironmentError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.upsert.participant import UpsertParticipant, connect, made
from airflow_eos.kinds.upsert.redis import RedisTarget, RedisUpsert
from airflow_eos.kinds.upsert.target import RowSchema, keys_of
from tests.integration.kept.keeping import decided, keep
from tests.integration.kept.table import Again
from tests.support.pipeline import wait_until
from tests.support.pipelines import owner_at, require_at
from tests.support.servers.redis import EmbeddedRedis

redis = pytest.importorskip("redis")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


def opened(
    server: EmbeddedRedis, store: CheckpointStore, name: str = "totals"
) -> UpsertParticipant:
    return made(store, name, RedisUpsert(server.url, "t:").open(timeout_s=30))


@pytest.fixture
def again(server: EmbeddedRedis, client: Any) -> Again:
    """The server is empty by then."""
    del client
    return partial(opened, server)


@pytest.mark.parametrize("prefix", ["t:a:", "t"])
def test_a_prefix_that_begins_like_another_targets_is_refused(
    upsert: UpsertParticipant, server: EmbeddedRedis, client: Any, prefix: str, tmp_path: Path
) -> None:
    """Its row ``1`` was our row ``a:1``: the newer version of the two left the other's out."""
    del upsert
    other = CheckpointStore.open(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="begin alike") as refused:
        made(other, "totals", RedisUpsert(server.url, prefix).open(timeout_s=30))
    made(other, "totals", RedisUpsert(server.url, "u:").open(timeout_s=30)).close()
    command = refused.value.remedies[1].change.partition("SREM ")[2]
    client.srem(*(each.strip("'") for each in command.split()))  # as it says
    made(other, "totals", RedisUpsert(server.url, prefix).open(timeout_s=30)).close()


def prepare(
    store: CheckpointStore, batch: int, task: int = 0, *, deleted: str | None = None, **rows: Any
) -> PreparedWork:
    """``rows``: the value of each key, in their order."""
    about = RowSchema(("id",), deleted).metadata()
    columns: dict[str, Any] = {"id": list(rows), "value": list(rows.values())}
    if deleted:
        columns[deleted] = [value is None for value in rows.values()]
    table = pa.table(columns).replace_schema_metadata(about)
    return keep(store, table, kind="upsert", name="totals", batch=batch, task=task)


def seen(client: Any) -> dict[str, str | None]:
    return {
        key.removeprefix("t:"): client.hget(key, "value") for key in sorted(client.scan_iter("t:*"))
    }


def test_nothing_is_written_before_the_commit_and_all_of_it_after(upsert, store, client):
    work = prepare(store, 0, a=1, b=2)
    assert seen(client) == {}
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "1", "b": "2"}
    assert client.hgetall("t:a").keys() == {"id", "value", "_eos"}


@pytest.mark.long
def test_rows_of_more_columns_than_one_command_takes_for_hundreds_of_rows_are_written(
    upsert, store, client
):
    """Of 2,100 columns, 500 rows are a million arguments; of 5,000, one row is too much for Lua."""
    for width, count in ((2_100, 500), (5_000, 2)):
        columns = {f"c{number}": [number] * count for number in range(width)}
        table = pa.table({"id": [f"{width}-{row}" for row in range(count)], **columns})
        work = prepare(store, width, a=1)
        upsert.apply(work, table.replace_schema_metadata(RowSchema(("id",)).metadata()))
        for row in (0, count - 1):
            found = client.hgetall(f"t:{width}-{row}")
            assert found.keys() == {"id", "_eos", *columns}
            assert found[f"c{width - 1}"] == str(width - 1)


def test_what_keeps_a_row_out_is_refused_before_it_is_decided(upsert, server, client):
    """A key of another type, a time to live, memory that ended; nothing is left of the trial."""
    rows = pa.table({"id": ["a"], "value": [1]})
    with closing(RedisUpsert(server.url, "t:").open(timeout_s=30)) as task:
        client.rpush("t:a", "a list")
        with pytest.raises(DeliveryError, match=r"OTHER.*Nothing of its batch was written"):
            task.tried(rows, RowSchema(("id",)))
        client.delete("t:a")
        client.hset("t:a", "_eos", "0" * 45)
        client.expire("t:a", 1000)
        with pytest.raises(DeliveryError, match="EXPIRY"):
            task.tried(rows, RowSchema(("id",)))
        client.persist("t:a")
        try:
            client.config_set("maxmemory", "1")
            with pytest.raises(DeliveryError, match="maxmemory"):
                task.tried(rows, RowSchema(("id",)))
        finally:
            client.config_set("maxmemory", "0")
        task.tried(rows, RowSchema(("id",)))
    assert client.keys("t:*") == ["t:a"]
    assert client.hgetall("t:a") == {"_eos": "0" * 45}


def test_a_row_of_a_greater_epoch_is_refused_before_it_is_decided(upsert, server, client):
    client.hset("t:a", "_eos", f"{10**15:016}{'0' * 29}")
    with closing(RedisUpsert(server.url, "t:").open(timeout_s=30)) as task:
        with pytest.raises(OwnershipError, match="rows of a greater epoch"):
            task.tried(pa.table({"id": ["a"], "value": [1]}), RowSchema(("id",)))
        task.tried(pa.table({"id": ["b"], "value": [1]}), RowSchema(("id",)))


def test_a_late_driver_never_puts_an_older_value_over_a_newer_one(upsert, server, store, client):
    older, newer = prepare(store, 9, a=1, b=1), prepare(store, 10, a=2)
    upsert.commit([newer])
    assert opened(server, store).commit([older]) == {older.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "2", "b": "1"}


def test_a_sleeper_in_the_middle_of_a_commit_changes_nothing(upsert, store, client):
    """It has read the rows, and slept; the batch was ended by others, and the next one too."""
    work = prepare(store, 3, a=1)
    table = pa.table({"id": ["a"], "value": [1]}).replace_schema_metadata(
        RowSchema(("id",)).metadata()
    )
    upsert.commit([work, prepare(store, 4, a=2)])
    upsert.apply(work, table)
    assert seen(client) == {"a": "2"}


def test_repeating_a_commit_that_was_cut_short_is_harmless(upsert, server, store, client):
    """Killed after it was applied and before its mark."""
    work = prepare(store, 0, a=1, b=2)
    stream = upsert._kept.read(work.key)
    upsert.commit([work])
    (Path(store.location) / upsert._kept._marker_path("done", work.key)).unlink()
    upsert._kept.store.create(upsert._kept._rows(work.key), stream)
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    before = client.hgetall("t:a")
    assert opened(server, store).commit([work]) == {work.identity: Outcome.COMMITTED}
    assert client.hgetall("t:a") == before


def test_a_key_twice_in_a_batch_has_the_last_row_of_the_highest_task(upsert, store, client):
    """In whatever order the works are applied."""
    first, second = prepare(store, 0, 9, a=1), prepare(store, 0, 10, a=2)
    upsert.commit([second, first])
    assert seen(client) == {"a": "2"}
    about = RowSchema(("id",)).metadata()
    table = pa.table({"id": ["b", "c", "b"], "value": [1, 2, 3]}).replace_schema_metadata(about)
    upsert.commit([keep(store, table, kind="upsert", name="totals", batch=1)])
    assert seen(client) == {"a": "2", "b": "3", "c": "2"}


def test_a_delete_leaves_a_tombstone_that_no_late_row_brings_back(upsert, store, client):
    late = prepare(store, 5, deleted="gone", a=1, b=1)
    upsert.commit([prepare(store, 4, deleted="gone", a=1)])
    upsert.commit([prepare(store, 6, deleted="gone", a=None, b=2)])
    assert client.hgetall("t:a").keys() == {"_eos"}
    upsert.commit([late])
    assert client.hgetall("t:a").keys() == {"_eos"}
    assert seen(client) == {"a": None, "b": "2"}
    upsert.commit([prepare(store, 7, deleted="gone", a=3)])
    assert seen(client) == {"a": "3", "b": "2"}


def test_a_row_replaces_all_that_its_key_had(upsert, store, client):
    client.hset("t:a", mapping={"value": "x", "old": "y"})
    upsert.commit([prepare(store, 0, a=None)])
    assert client.hgetall("t:a").keys() == {"id", "_eos"}


def test_values_are_text_as_arrow_writes_them_and_bytes_as_they_are(upsert, store, server):
    rows = pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "text": ["é\n"],
            "bytes": pa.array([b"\xff\x00+"], pa.binary()),
            "flag": [True],
            "money": [decimal.Decimal("1.50")],
            "day": [dt.date(2026, 1, 2)],
            "empty": [""],
            "ratio": [0.5],
        }
    ).replace_schema_metadata(RowSchema(("id",)).metadata())
    upsert.commit([keep(store, rows, kind="upsert", name="totals")])
    with redis.Redis.from_url(server.url) as client:
        found = client.hgetall("t:7")
    found.pop(b"_eos")
    assert found == {
        b"id": b"7",
        b"text": "é\n".encode(),
        b"bytes": b"\xff\x00+",
        b"flag": b"true",
        b"money": b"1.50",
        b"day": b"2026-01-02",
        b"empty": b"",
        b"ratio": b"0.5",
    }


def test_keys_of_several_columns_never_meet(upsert, store, client):
    rows = pa.table({"x": ["a:b", "a", "a%3A"], "y": ["c", "b:c", "c"], "value": [1, 2, 3]})
    rows = rows.replace_schema_metadata(RowSchema(("x", "y")).metadata())
    upsert.commit([keep(store, rows, kind="upsert", name="totals")])
    assert seen(client) == {"a%3Ab:c": "1", "a:b%3Ac": "2", "a%253A:c": "3"}


def test_more_rows_than_a_script_takes(upsert, store, client):
    rows: dict[str, Any] = {f"k{n}": n for n in range(9001)}
    upsert.commit([prepare(store, 0, **rows)])
    assert len(list(client.scan_iter("t:*", count=5000))) == 9001
    assert client.hget("t:k9000", "value") == "9000"


def test_a_row_that_would_expire_is_refused_by_name_and_written_once_it_does_not(
    upsert, store, client
):
    """It would be forgotten together with its version."""
    client.hset("t:b", "value", "0")
    client.expire("t:b", 1000)
    work = prepare(store, 0, a=1, b=1)
    with pytest.raises(DeliveryError, match=r"t:b has a time to live.*PERSIST"):
        upsert.commit([work])
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    client.persist("t:b")
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "1", "b": "1"}


def test_a_redis_that_evicts_is_refused(server, store, client):
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigurationError, match=r"maxmemory-policy allkeys-lru.*noeviction"):
            opened(server, store)
    finally:
        client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("name", "becomes", "was"),
    [("maxmemory-policy", "allkeys-lru", "noeviction"), ("appendonly", "no", "yes")],
)
def test_a_redis_that_begins_to_forget_while_a_query_runs_is_refused_before_more_is_written(
    upsert, store, client, name: str, becomes: str, was: str
):
    """A person has set it so, or a replica that is set otherwise has taken over: queries run on
    for months, and the rows that it forgets nobody delivers again."""
    upsert.commit([prepare(store, 0, a=1)])
    work = prepare(store, 1, a=2)
    client.config_set(name, becomes)
    try:
        with pytest.raises(ConfigurationError, match=f"{name} {becomes}.*CONFIG SET"):
            upsert.commit([work])
        assert seen(client) == {"a": "1"}
    finally:
        client.config_set(name, was)
    # Before its log is written anew, who kills this server finds the data of before.
    wait_until(lambda: is_logged(client), what="the log to be written anew", timeout=30)
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "2"}


def is_logged(client: Any) -> bool:
    told = client.info("persistence")
    return not (told["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"])


def test_a_replica_is_refused(server, store, client):
    with (
        EmbeddedRedis("--replicaof", "127.0.0.1", str(server.port)) as replica,
        pytest.raises(StoreError, match="a slave: expected one master"),
    ):
        opened(replica, store)


def test_killed_and_started_again_redis_has_what_was_committed(upsert, server, store, client):
    upsert.commit([prepare(store, 0, a=1)])
    work = prepare(store, 1, a=2)
    server.kill()
    with pytest.raises(DeliveryError, match=r"did not answer while asking which server.*harmless"):
        upsert.commit([work])
    server.start()
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "2"}


def test_a_redis_that_lost_its_data_is_never_taken_for_the_same(upsert, store, server, client):
    member, work = upsert.members[0], prepare(store, 0, a=1)
    client.flushall()
    with pytest.raises(OwnershipError, match=r"belongs to nobody.*restore it"):
        upsert.commit([work])
    with pytest.raises(StoreError, match="its mark is missing"):
        connect(member, server.url, store=store, timeout_s=30)
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}


def test_a_target_has_one_writer(upsert, server, store, tmp_path):
    require_at(upsert, store.location)
    other = CheckpointStore.open(tmp_path / "other")
    theirs = opened(server, other)
    theirs.claim(owner_at(other.location))
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint .*redis-cli HDEL"):
        require_at(theirs, other.location)
    sibling = opened(server, store, "counts")
    sibling.claim(owner_at(store.location))
    with pytest.raises(OwnershipError, match="another output of this one"):
        require_at(sibling, store.location)


def test_an_older_copy_of_the_checkpoint_is_refused(upsert, store):
    upsert.note(decided(7), owner_at("/a"))
    upsert.note(decided(3, "c"), owner_at("/a"))
    require_at(upsert, store.location, 7, b7=(decided(7),))
    with pytest.raises(OwnershipError, match="decision of batch 7"):
        require_at(upsert, store.location, 6)


def disown(client: Any) -> None:
    target = RedisTarget("redis://127.0.0.1:1/0", "t:", timeout_s=1)
    command = target.give_up.replace("'", "").split()
    assert command[:2] == ["redis-cli", "HDEL"]
    client.hdel(*command[2:])


def test_a_new_checkpoint_has_a_greater_epoch_and_the_former_one_writes_nothing_more(
    upsert, server, store, client, tmp_path
):
    """Its batches begin at 0 again, and a driver of the former one may still be asleep."""
    upsert.commit([prepare(store, 500, a="old")])
    disown(client)
    fresh = CheckpointStore.open(tmp_path / "fresh")
    theirs = opened(server, fresh)
    theirs.claim(owner_at(fresh.location))
    theirs.commit([prepare(fresh, 0, a="new")])
    assert seen(client) == {"a": "new"}
    with pytest.raises(OwnershipError, match="Nothing was written"):
        upsert.commit([prepare(store, 501, a="late")])
    with pytest.raises(OwnershipError):
        upsert.note(decided(501), owner_at("/a"))
    assert seen(client) == {"a": "new"}
    disown(client)
    upsert.claim(owner_at(store.location))
    upsert.commit([prepare(store, 501, a="again")])
    assert seen(client) == {"a": "again"}


def test_the_epoch_is_greater_also_where_the_targets_own_hash_was_removed(
    upsert, server, store, client
):
    upsert.commit([prepare(store, 500, a="old")])
    client.delete("eos-upsert:t:")
    again = opened(server, store)
    again.claim(owner_at(store.location))
    again.commit([prepare(store, 0, a="new")])
    assert seen(client) == {"a": "new"}


def test_rows_of_another_redis_are_never_taken_for_newer_ones_in_silence(upsert, store, client):
    """Copied, as by MIGRATE: its epoch is another clock's, or of more checkpoints than ours."""
    client.hset("t:a", mapping={"value": "9", "_eos": f"{10**15:016}" + "0" * 29})
    work = prepare(store, 0, a=1, b=1)
    with pytest.raises(OwnershipError, match="rows of a greater epoch") as told:
        upsert.commit([work])
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    for command in told.value.remedies[0].change.replace("'", "").split(" and "):  # as it says
        client.execute_command(*command.split()[1:])
    upsert.claim(owner_at(store.location))
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "1", "b": "1"}


@pytest.mark.parametrize("version", ["x", "9", "v" + "9" * 44, "1" * 44, " " * 45])
def test_a_version_that_is_none_never_keeps_a_promised_row_out(upsert, store, client, version):
    """As text it was the greater one: the row counted as an older one, and as delivered."""
    client.hset("t:a", mapping={"value": "9", "_eos": version})
    work = prepare(store, 0, a=1, b=1)
    with pytest.raises(DeliveryError, match=r"t:a has a version that is none of ours.*HDEL"):
        upsert.commit([work])
    assert upsert.outcome([work]) == {work.identity: Outcome.OPEN}
    client.hdel("t:a", "_eos")  # as it says
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "1", "b": "1"}


def test_recovery_reaches_it_by_its_name_and_a_url(upsert, store, server, client):
    work = prepare(store, 0, a=1)
    member = upsert.members[0]
    assert "redis" in str(member)
    with pytest.raises(ConfigurationError, match=r"Which redis holds 't:'.*'totals': 'redis://"):
        connect(member, None, store=store, timeout_s=30)
    with pytest.raises(ConfigurationError, match="in the checkpoint of its pipeline"):
        connect(member, server.url, timeout_s=30)
    reached = connect(member, server.url, store=store, timeout_s=30)
    assert reached.members == upsert.members
    assert reached.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(client) == {"a": "1"}


def test_a_password_is_told_to_nobody(store, tmp_path):
    url = f"redis://:hunter2@127.0.0.1:{1}/0"
    assert "hunter2" not in repr(RedisUpsert(url, "t:"))
    with pytest.raises(DeliveryError) as refused:
        made(store, "totals", RedisUpsert(url, "t:").open(timeout_s=1))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigurationError) as wrong:
        RedisUpsert("http://:hunter2@127.0.0.1", "t:").open(timeout_s=1)
    assert "hunter2" not in str(wrong.value)
    assert wrong.value.__cause__ is None


@pytest.mark.parametrize("prefix", ["", "eos-upsert:x", "a\n"])
def test_a_prefix_that_could_hide_rows_is_refused(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisUpsert("redis://127.0.0.1", prefix)


def test_without_the_program_its_package_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LocalEnvironmentError, match="apt-get install redis-server"):
        EmbeddedRedis().start()


@pytest.mark.parametrize("number", [-719163, 2932897, 2**31 - 1])
def test_a_day_that_has_no_name_is_refused_before_it_is_decided(number: int):
    """Arrow would write "value out of range", and that would be the value."""
    days = pa.array([number], pa.int32()).cast(pa.date32())
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), days], names=["id", "day"])
    with pytest.raises(DeliveryError, match="column day is before the year 1 or after 9999"):
        RedisUpsert("redis://x", "t:").refuse_rows(rows, ("id",))


def test_an_instant_is_one_key_whatever_the_zone_of_the_session():
    """A driver in another zone would write a second row for it, and the first one would stay."""
    at = pa.array([0], pa.int64())
    zones = ("UTC", "America/New_York")
    tables = [pa.table({"at": at.cast(pa.timestamp("us", zone))}) for zone in zones]
    assert len({keys_of(each, ("at",), "t:")[0] for each in tables}) == 1


def test_a_prefix_under_which_our_own_key_could_be_a_row_is_refused():
    with pytest.raises(ConfigurationError, match="expected one for the keys of the rows"):
        RedisUpsert("redis://x", "eos-")


def test_a_redis_that_forgets_when_it_ends_is_refused_by_name():
    """What it did since its last snapshot is gone then, and nothing delivers it again."""
    with (
        EmbeddedRedis("--appendonly", "no", "--save", "60", "1") as server,
        pytest.raises(ConfigurationError, match=r"appendonly no.*Expected appendonly yes"),
    ):
        RedisUpsert(server.url, "t:").open(timeout_s=30).check()


@pytest.mark.parametrize("lacking", ["~t:*", "+pttl"])
def test_a_user_who_may_not_write_rows_is_refused_before_the_first(server, client, lacking: str):
    """Once decided they would stand there, refused at every start again."""
    rights = ["~eos-upsert:*", "~t:*", "+@all", "-@dangerous", "+info", "-pttl", "+pttl"]
    given = [each for each in rights if each != lacking]
    client.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">x", *given)
    target = RedisUpsert(server.url.replace("//", "//clerk:x@"), "t:").open(timeout_s=30)
    with pytest.raises(ConfigurationError, match=r"takes no row under 't:'.*ACL SETUSER"):
        target.check()
    client.execute_command("ACL", "SETUSER", "clerk", lacking)
    target.check()
    assert not client.keys("t:*")
    target.close()


def test_a_key_of_another_program_in_the_place_of_a_row_is_named(upsert, store, client):
    client.set("t:a", "theirs")
    work = prepare(store, 0, a=1, b=2)
    for _ in range(2):
        with pytest.raises(DeliveryError, match=r"the key t:a is no row.*RENAME it or DEL it"):
            upsert.commit([work])
    assert client.get("t:a") == "theirs"
    client.rename("t:a", "theirs")  # as it says
    assert upsert.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert (client.hget("t:a", "value"), client.hget("t:b", "value")) == ("1", "2")


def test_a_redis_that_may_forget_the_last_second_says_so_at_the_start(server, client):
    client.config_set("appendfsync", "everysec")
    try:
        with structlog.testing.capture_logs() as logs:
            RedisUpsert(server.url, "t:").open(timeout_s=30).check()
        assert [(each["event"], each["what"]) for each in logs] == [
            ("redis_may_forget", "the last second before a power cut")
        ]
    finally:
        client.config_set("appendfsync", "always")
    with structlog.testing.capture_logs() as logs:
        RedisUpsert(server.url, "t:").open(timeout_s=30).check()
    assert not logs


def test_a_replica_is_never_asked_how_far_it_has_counted(server, client):
    """It lags, and a target that was not set back would look as if it was."""
    target = RedisUpsert(server.url, "t:").open(timeout_s=30)
    assert target.tally() == 0
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreError, match="a slave: expected one master"):
            target.tally()
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    target.close()

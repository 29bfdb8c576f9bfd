"""Reading, listing, deleting, creating inside one checkpoint folder, whatever the store replies."""

from __future__ import annotations

import errno
import os
import time
from typing import Any, Literal

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.store import check_create_if_absent, race_create, sentence_of
from airflow_eos.errors import StoreError
from tests.support.stores import disk_of


def test_what_was_created_is_read_listed_and_seen(store):
    before_ms = time.time_ns() // 1_000_000
    assert store.create("eos/pipeline.json", b"abc") is True
    assert store.get("eos/pipeline.json") == b"abc"
    [listed] = store.list("eos")
    assert (listed.path, listed.name, listed.size) == ("eos/pipeline.json", "pipeline.json", 3)
    assert abs(listed.modified_at_ms - before_ms) < 60_000
    assert store.head("eos/pipeline.json") == listed


def test_an_object_that_would_fill_the_memory_is_not_read(tmp_path, monkeypatch):
    """Whoever may write to one pipeline's checkpoint has no say over the page that shows all."""
    store = CheckpointStore.open(tmp_path)
    store.put("eos/driver.json", b"12345")
    monkeypatch.setattr("airflow_eos.core.checkpoint.backend.MOST_BYTES", 4)
    with pytest.raises(StoreError, match=r"driver.json has 5 bytes: at most 4 are read"):
        store.get("eos/driver.json")


def test_what_could_not_be_read_once_it_is_promised_is_not_written(tmp_path, monkeypatch):
    """A task's kept rows, of which each start would say that they are too large to be read."""
    store = CheckpointStore.open(tmp_path)
    monkeypatch.setattr("airflow_eos.core.checkpoint.backend.MOST_BYTES", 4)
    with pytest.raises(StoreError, match=r"rows/0-0 has 5 bytes.*Nothing was written") as refused:
        store.create("eos/kept/sink/rows/0-0", b"12345")
    assert "let more tasks write" in refused.value.remedies[0].change
    assert store.list("eos/kept/sink/rows") == []


def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(tmp_path):
    store = CheckpointStore.open(tmp_path)
    store.put("eos/x", b"")
    os.mkfifo(tmp_path / "eos" / "drain.json")
    (tmp_path / "eos" / "driver.json").symlink_to("/dev/zero")
    for path in ("eos/drain.json", "eos/driver.json"):
        with pytest.raises(StoreError, match="is no file"):
            store.get(path)


def test_absent_is_none_and_an_empty_list_never_an_error(store):
    assert store.get("eos/driver.json") is None
    assert store.head("offsets/0") is None
    assert store.list("offsets") == []
    assert list(store.folders("eos/decisions")) == []
    store.delete(["eos/drain.json"])


def test_a_second_create_is_refused_and_changes_nothing(store):
    assert store.create("eos/x", b"first") is True
    assert store.create("eos/x", b"second") is False
    assert store.get("eos/x") == b"first"


def test_put_replaces(store):
    store.put("eos/driver.json", b"1")
    store.put("eos/driver.json", b"2")
    assert store.get("eos/driver.json") == b"2"


def test_a_listing_is_one_level_and_leaves_hidden_files_out(store):
    for path in ("offsets/0", "offsets/.0.crc", "offsets/.1.3f2a.tmp", "offsets/deeper/9"):
        store.put(path, b"x")
    assert [entry.name for entry in store.list("offsets")] == ["0"]
    assert list(store.folders("offsets")) == ["deeper"]


def test_the_mark_that_hadoop_makes_of_a_folder_is_no_object_in_it(troubled, backend):
    """S3A puts an empty ``offsets/``, which obstore lists as ``offsets``."""
    real = backend.real
    real.put("offsets/0", b"x")
    marked = real.list_with_delimiter("offsets")
    [entry] = marked["objects"]
    backend.list_with_delimiter = lambda _prefix: {
        **marked,
        "objects": [entry, {**entry, "path": "offsets", "size": 0}],
    }
    assert [found.name for found in troubled.list("offsets")] == ["0"]


def test_a_folder_is_deleted_with_its_hidden_files(store):
    for path in ("eos/decisions/1/1.json", "eos/decisions/1/.1.json.tmp", "eos/decisions/2/1.json"):
        store.put(path, b"x")
    assert store.delete_folder("eos/decisions/1") is True
    assert store.delete_folder("eos/decisions/1") is False
    assert list(store.folders("eos/decisions")) == ["2"]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../other",
        "eos/../../other",
        "eos/./x",
        "eos//x",
        "eos/\0",
        "a\\b",
        "a\nb",
    ],
)
def test_a_path_that_could_leave_the_checkpoint_is_refused(store, tmp_path, path):
    (tmp_path / "other").write_bytes(b"secret")
    for method, arguments in (
        (store.get, (path,)),
        (store.head, (path,)),
        (store.list, (path,)),
        (store.folders, (path,)),
        (store.create, (path, b"x")),
        (store.put, (path, b"x")),
        (store.delete, ([path],)),
        (store.delete_folder, (path,)),
        (store.make_durable, (path,)),
    ):
        with pytest.raises(StoreError, match="not a path inside a checkpoint"):
            method(*arguments)
    assert (tmp_path / "other").read_bytes() == b"secret"


@pytest.mark.parametrize("name", ["with space", "ünïcode", "per%20cent", "a#1", "dotted..name"])
def test_a_checkpoint_folder_may_have_any_name(tmp_path, name):
    store = CheckpointStore.open(tmp_path / name / "query")
    assert store.create("eos/x", b"1") is True
    assert (tmp_path / name / "query" / "eos" / "x").read_bytes() == b"1"
    assert [entry.path for entry in store.list("eos")] == ["eos/x"]


def test_looking_at_a_mistyped_path_leaves_no_folder_behind(local, tmp_path):
    assert local.get("metadata") is None
    assert local.list("offsets") == []
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_fails_is_never_read_as_absent(troubled, backend):
    backend.reading = [GenericError("connection reset")]
    with pytest.raises(StoreError, match="reading eos/x failed: GenericError: connection reset"):
        troubled.get("eos/x")


def test_a_signed_url_in_a_store_error_is_not_shown(troubled, backend):
    backend.reading = [PermissionDeniedError("403 for https://h/c?sig=SECRET (x)\nDebug: SECRET")]
    with pytest.raises(StoreError) as refused:
        troubled.get("eos/x")
    assert "SECRET" not in str(refused.value)
    assert "403 for https://h/c?*** (x)" in str(refused.value)


def test_the_check_of_create_if_absent_passes_and_leaves_nothing(store):
    store.check_create_if_absent()
    assert store.list("eos") == []
    assert store.delete_folder("eos") is False, "a hidden probe was left"


def test_the_check_of_create_if_absent_leaves_not_even_a_folder(local, tmp_path):
    local.check_create_if_absent()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_overwrites_is_refused(troubled, backend):
    backend.overwrites = True
    with pytest.raises(StoreError, match="let a second create replace the first"):
        troubled.check_create_if_absent()
    assert backend.real.list_with_delimiter("eos")["objects"] == []


# --- Creating an object when the reply is lost, late or a lie: rule 6, an error is no outcome -----


PATH = "eos/decisions/7/1.json"
LOST = GenericError("error sending request: connection reset")
# What befalls a put; whether it is a win all the same; and how often it is put.
TROUBLE: dict[str, tuple[dict[str, list[Any]], bool, int]] = {
    "a reply lost after the write took effect is a win": ({"after": [LOST]}, True, 1),
    "a request lost before it arrived is sent again": ({"before": [LOST]}, True, 2),
    "already exists after our own write is a win": (
        {"after": [AlreadyExistsError("an internal retry met our own object")]}, True, 1,
    ),
    "already exists with the bytes of another is a loss": ({"instead": [b"theirs"]}, False, 1),
    # S3 answers 409 while two conditional puts race, and both may then be refused.
    "already exists where nothing stands is asked again": (
        {"before": [AlreadyExistsError("409 ConditionalRequestConflict")]}, True, 2,
    ),
    "a read back that fails too is asked again": (
        {"after": [LOST], "reading": [GenericError("still no network")]}, True, 2,
    ),
    "an error of the operating system is no outcome either": (
        {"after": [TimeoutError("timed out")]}, True, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TROUBLE)
def test_an_error_of_a_create_is_no_outcome(troubled, backend, what):
    trouble, is_win, puts = TROUBLE[what]
    for when, errors in trouble.items():
        setattr(backend, when, list(errors))
    assert troubled.create(PATH, b"ours") is is_win
    assert troubled.get(PATH) == (b"ours" if is_win else b"theirs")
    assert backend.calls["put"] == puts, "read back first, and not written again"


def test_a_lost_reply_with_the_bytes_of_another_is_a_loss(troubled, backend):
    backend.before = [LOST]
    backend.real.put(PATH, b"theirs")
    assert troubled.create(PATH, b"ours") is False


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "Make room"), (errno.EROFS, "Mount the disk")]
)
def test_a_full_or_read_only_disk_is_said_and_no_credentials_are_asked_for(
    troubled, backend, number, said
):
    for ask in (troubled.create, troubled.put):
        backend.before = [OSError(number, "the disk refuses")] * 4
        with pytest.raises(StoreError, match=said) as refused:
            ask(PATH, b"ours")
        assert "credentials" not in str(refused.value)
    backend.before = []
    assert troubled.get(PATH) is None


def test_a_store_that_stays_away_is_unknown_never_lost(troubled, backend):
    backend.before = [LOST] * 99
    with pytest.raises(StoreError, match="not known whether it was written"):
        troubled.create(PATH, b"ours")
    assert backend.calls["put"] == 4


def test_a_refusal_is_not_repeated(troubled, backend):
    backend.before = [PermissionDeniedError("403")] * 99
    with pytest.raises(StoreError, match="PermissionDeniedError: 403"):
        troubled.create(PATH, b"ours")
    assert backend.calls["put"] == 1


# --- The race that refuses a store, on stores that fail it in each way ----------------------------


class LooksFirst(MemoryStore):
    """As s3mock and fsspec: it looks whether the name is free, and then writes."""

    def put(  # type: ignore[override]
        self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]
    ) -> Any:
        if mode == "create" and _there(self, path):
            raise AlreadyExistsError(path)
        time.sleep(0.01)
        return super().put(path, file, mode="overwrite")


class Torn(MemoryStore):
    """One wins, and another's content stands there."""

    def put(  # type: ignore[override]
        self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]
    ) -> Any:
        done = super().put(path, file, mode=mode)
        super().put(path, b"other")
        return done


def _there(store: MemoryStore, path: str) -> bool:
    try:
        store.head(path)
    except FileNotFoundError:
        return False
    return True


def test_a_store_that_looks_and_then_writes_passes_one_after_another_and_not_the_race():
    store = CheckpointStore(LooksFirst(), "memory://looks-first")
    check_create_if_absent(store, rounds=0)
    with pytest.raises(StoreError, match=r"race of 8 creates at once: several won in [1-8] of 8"):
        check_create_if_absent(store, rounds=8)
    assert store.delete_folder("eos") is False, "a probe was left"


def test_what_a_start_asks_of_a_store_has_the_race_in_it():
    with pytest.raises(StoreError, match="race of 8 creates"):
        CheckpointStore(LooksFirst(), "memory://looks-first").check_create_if_absent()


def test_a_winner_whose_content_does_not_stand_is_seen():
    found = race_create(CheckpointStore(Torn(), "memory://torn"), rounds=20)
    assert not found.is_exclusive
    assert "torn in" in sentence_of(found)


def test_a_store_with_one_winner_passes_and_nothing_is_left():
    store = CheckpointStore(MemoryStore(), "memory://good")
    found = race_create(store, rounds=20)
    assert (found.is_exclusive, sentence_of(found)) == (True, "one winner in each of 20 rounds")
    assert store.delete_folder("eos") is False


@pytest.mark.parametrize(
    "write", [lambda store, rows: store.create("a", rows), lambda store, rows: store.put("a", rows)]
)
def test_the_full_disk_is_named(tmp_path, monkeypatch, write):
    """Data may be on another disk than the checkpoint, on which room was to be made."""
    monkeypatch.setattr("airflow_eos.core.checkpoint.store._PAUSES_S", (0.0,))
    with disk_of("8k", tmp_path / "disk") as disk:
        folder = disk / "out"
        with pytest.raises(StoreError, match=f"Make room on the disk of {folder}, then start"):
            write(CheckpointStore.open(folder), bytes(1 << 16))

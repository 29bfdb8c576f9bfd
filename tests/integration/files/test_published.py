"""Files on a disk and in a bucket, one by one and by batches: interrupted, raced, late."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from airflow_eos.core import failpoints
from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import ConfigurationError, DeliveryError, EosError, StoreError
from airflow_eos.kinds.files.folder import files_of
from airflow_eos.kinds.files.manifest import ManifestLog, ManifestOutcome
from airflow_eos.kinds.files.sink import LINE_COLUMN
from airflow_eos.sinks import FileSink
from tests.integration.files.staged import Stage, claimed, outcomes


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(stage):
    works = stage.promised(["a1", "b1"], ["a2", "c1"])
    assert stage.seen() == Counter()
    assert outcomes(stage.recovery.outcome(works)) == {Outcome.OPEN}
    assert {each.key for each in stage.recovery.open()} == {work.key for work in works}
    assert outcomes(stage.participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "a2", "b1", "c1"])
    assert stage.recovery.open() == ()
    assert outcomes(stage.recovery.outcome(works)) == {Outcome.COMMITTED}


def test_a_commit_again_from_another_process_changes_nothing_twice(stage):
    works = stage.promised(["a1", "b1"])
    stage.participant.commit(works)
    assert outcomes(stage.recovery.commit(works)) == {Outcome.COMMITTED}
    assert outcomes(stage.recovery.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "b1"])


def test_published_by_several_processes_at_once_it_is_published_once(stage):
    works = stage.promised(*[[f"a{n}", f"b{n}"] for n in range(4)])
    start = threading.Barrier(4)

    def commit(_: int) -> set[Outcome]:
        mine = stage.recovery
        start.wait()
        return outcomes(mine.commit(works))

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(commit, range(4))) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(f"{day}{n}" for n in range(4) for day in "ab")


@pytest.mark.parametrize("nth", [1, 7], ids=["after a file", "after the log"])
def test_the_driver_dies_in_the_middle_of_publishing_and_a_recovery_ends_it(
    stage, monkeypatch, tmp_path, nth
):
    """Readers of the log see the whole batch or nothing of it."""
    works = stage.promised(["a1", "b1", "c1"], ["a2", "b2", "c2"])
    if nth > 6 and not stage.by_batches:
        pytest.skip("there is no log")
    participant = stage.participant
    monkeypatch.setattr(failpoints, "_passes", Counter())
    monkeypatch.setenv("EOS_FAILPOINTS", f"settled-some=raise@{nth}")
    monkeypatch.setenv("EOS_FAILPOINTS_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="settled-some"):
        participant.commit(works)
    seen = stage.seen().total()
    assert seen == (6 if nth > 6 else 0) if stage.by_batches else 0 < seen <= 6
    assert outcomes(stage.recovery.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "b1", "c1", "a2", "b2", "c2"])
    assert stage.recovery.open() == ()


def test_whatever_is_left_open_by_a_dead_driver_is_removed_by_key(stage):
    work, other = stage.prepare("a1", "b1"), stage.prepare("a2", task=1)
    recovery = stage.recovery
    assert recovery.abort([work.identity]) == {work.identity: True}
    assert recovery.abort([work.identity]) == {work.identity: False}
    assert [each.key for each in recovery.open()] == [other.key]
    stage.decide(other)
    assert outcomes(recovery.commit([other])) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a2"])


def test_an_abort_takes_nothing_from_readers(stage, monkeypatch, tmp_path):
    """Killed after the commit and before the leftovers went, it is found open once more."""
    works = stage.promised(["a1", "b1"])
    monkeypatch.setattr(type(stage.sink.storage()), "remove", lambda *_: False)
    stage.participant.commit(works)
    monkeypatch.undo()
    told = stage.recovery.abort([work.identity for work in works])
    assert not (stage.by_batches and any(told.values())), "the log names it"
    assert stage.seen() == Counter(["a1", "b1"])
    assert stage.recovery.open() == ()


def test_a_zombie_that_publishes_after_all_is_over_publishes_nothing(stage):
    """Readers have moved the files away since, and the decision was pruned."""
    works = stage.promised(["a1", "b1"])
    zombie = stage.recovery
    stage.participant.commit(works)
    storage = stage.sink.storage()
    storage.remove(stage.paths())
    for path in (stage.checkpoint / "eos" / "decisions" / "0").iterdir():
        path.unlink()
    assert outcomes(zombie.commit(works)) == {Outcome.UNKNOWN}
    assert not any(storage.sizes(stage.paths()))


def test_a_zombie_that_looked_before_the_other_published_publishes_nothing(stage, monkeypatch):
    works = stage.promised(["a1", "b1"])
    zombie = stage.recovery
    storage = type(stage.sink.storage())
    late: list[int] = []
    really = storage.sizes

    def slept(self: Any, paths: Sequence[str]) -> Any:
        found = really(self, paths)
        if not late:
            late.append(1)
            stage.participant.commit(works)
        return found

    monkeypatch.setattr(storage, "sizes", slept)
    assert outcomes(zombie.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "b1"])


def test_work_that_was_aborted_while_it_was_written_is_not_prepared(stage):
    writer = stage.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: ['"a1"'], "day": ["a"]}))
    recovery = stage.recovery
    found = recovery.open()
    recovery.abort([each.identity for each in found])
    if found:  # a bucket's staged objects are sent when they are whole: there is nothing before
        with pytest.raises((DeliveryError, StoreError)):
            writer.prepare("0" * 32)
    writer.abort()
    assert stage.recovery.open() == ()
    assert stage.seen() == Counter()


def test_a_decision_that_lacks_a_file_is_never_published_in_part(stage):
    works = stage.promised(["a1", "b1"], ["a2"])
    storage = stage.sink.storage()
    lost = files_of(works[0])[0]
    storage.remove([lost.prepared])
    told = stage.recovery.commit(works)
    by_log = Outcome.ABORTED if stage.by_batches else Outcome.UNKNOWN
    assert told[works[0].identity] is by_log
    assert not {"a1", "b1"} & set(stage.seen())


def test_what_a_person_gave_up_is_never_published(stage):
    works = stage.promised(["a1", "b1"])
    identities = [work.identity for work in works]
    assert set(stage.recovery.abandon(identities).values()) == {True}
    assert Outcome.COMMITTED not in outcomes(stage.participant.commit(works))
    assert stage.seen() == Counter()
    assert stage.recovery.open() == ()


def test_a_task_that_fails_leaves_nothing(stage):
    writer = stage.sink.opened(0, 0)
    writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: ['"a1"', '"b1"'], "day": ["a", "b"]}))
    writer.abort()
    assert stage.recovery.open() == ()
    assert stage.seen() == Counter()


def test_rows_that_nothing_decides_are_seen_at_once(stage):
    """At least once."""
    for task in range(12):
        writer = stage.sink.opened(task, 0, transactional=False)
        writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: [f'"a{task}"'], "day": ["a"]}))
        assert writer.prepare("0" * 32) is None
    assert stage.recovery.open() == ()
    assert stage.seen() == Counter(f"a{n}" for n in range(12))


def test_another_name_for_the_same_folder_is_refused_where_a_log_has_one_writer(stage, tmp_path):
    sink = FileSink(
        stage.sink.folder,
        "json",
        publish="manifest",
        name="totals",
        storage_options=stage.sink.storage_options,
    ).bound(stage.store)
    if stage.by_batches:
        with pytest.raises(ConfigurationError, match="one writer"):
            sink.connect(timedelta())
    else:
        stage.participant.commit(stage.promised(["a1"]))
        with pytest.raises(ConfigurationError, match="would not see any more"):
            sink.connect(timedelta())


def test_a_listing_beside_a_log_is_refused(stage):
    sink = FileSink(
        stage.sink.folder, "json", name="totals", storage_options=stage.sink.storage_options
    )
    if stage.by_batches:
        with pytest.raises(ConfigurationError, match="would never see other files"):
            sink.connect(timedelta())
    else:
        assert sink.connect(timedelta()).members != stage.participant.members


def test_a_folder_that_another_one_has_marked_concludes_nothing(stage):
    works = stage.promised(["a1"])
    recovery = stage.recovery
    stage.sink.storage().beside.put("orders/mark", b"another")
    for asked in (recovery.open, lambda: stage.sink.storage() and recovery.outcome(works)):
        if asked is recovery.open or stage.by_batches:
            with pytest.raises(StoreError, match="its mark is another"):
                asked()


def test_a_store_that_lets_two_copies_win_is_refused(s3, tmp_path):
    """s3proxy takes a copy with a header for one without: the negative control of the race."""
    given = {**s3.storage_options, "aws_copy_if_not_exists": "header: x-if-none: 1"}
    with pytest.raises(StoreError, match="copies to one name win, expected one"):
        FileSink(f"{s3.url}/{tmp_path.name}", storage_options=given).connect(timedelta())
    probes = [path for path in s3.data.rglob("*probe*") if path.is_file()]
    left = [path for path in probes if tmp_path.name in path.parts]
    assert left == []


def test_a_bucket_whose_keys_are_wrong_says_so_by_name(s3, tmp_path):
    given = {**s3.storage_options, "aws_secret_access_key": "wrong"}
    with pytest.raises(EosError, match="credentials") as caught:
        FileSink(f"{s3.url}/{tmp_path.name}", storage_options=given).connect(timedelta())
    assert "wrong" not in str(caught.value)


def test_pyarrow_reads_a_bucket_and_passes_over_what_is_prepared(s3, tmp_path):
    sink = FileSink(
        f"{s3.url}/{tmp_path.name}", partition_by=["day"], storage_options=s3.storage_options
    )
    stage = Stage(sink, tmp_path / "checkpoint")
    writers = [sink.opened(task, 0) for task in range(2)]
    works = []
    for writer in writers:
        days = ["a/b ö%", "a/b ö%", None]
        writer.write(pa.RecordBatch.from_pydict({"id": [1, 2, 3], "day": days}))
        works.append(writer.prepare("0" * 32))
    stage.participant.commit(works[:1])
    store = fs.S3FileSystem(
        access_key="eos",
        secret_key=s3.storage_options["aws_secret_access_key"],
        endpoint_override=s3.storage_options["aws_endpoint"],
        region="us-east-1",
    )
    found = ds.dataset(
        f"bucket/{tmp_path.name}",
        filesystem=store,
        partitioning=ds.partitioning(pa.schema([("day", pa.string())]), flavor="hive"),
        exclude_invalid_files=False,
    ).to_table()
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "day": "a/b ö%"},
        {"id": 2, "day": "a/b ö%"},
        {"id": 3, "day": None},
    ]


def test_a_secret_is_neither_shown_nor_kept_in_the_checkpoint(s3, tmp_path):
    sink = FileSink(f"{s3.url}/{tmp_path.name}", storage_options=s3.storage_options)
    secret = s3.storage_options["aws_secret_access_key"]
    assert secret not in repr(sink)
    assert secret not in repr(sink.connect(timedelta()).members)


def test_of_two_that_append_after_one_look_one_wins(folder, tmp_path):
    """One saw all files, the other found one gone: what readers have is what the log tells."""
    where, options = folder
    sink = FileSink(where, "json", ["day"], publish="manifest", storage_options=options)
    store = CheckpointStore.open(tmp_path)
    us = claimed(store)
    sink = sink.bound(store)
    mark = sink.connect(timedelta()).members[0].address["mark"]
    log = ManifestLog(sink.storage(), sink.name, mark)
    looked = log.look()
    assert log.append(looked, (), ManifestOutcome(0, 1, is_committed=True, pipeline=us.id, at_ms=0))
    assert not log.append(
        looked, (), ManifestOutcome(0, 1, is_committed=False, pipeline=us.id, at_ms=0)
    )
    assert log.look().witnessed(0, 1, us) is Outcome.COMMITTED


def test_a_bucket_never_says_aborted_of_what_a_copy_may_still_bring(s3, tmp_path):
    """A zombie's copy that has begun completes after the staged object is gone."""
    sink = FileSink(
        f"{s3.url}/{tmp_path.name}", "json", ["day"], storage_options=s3.storage_options
    )
    stage = Stage(sink, tmp_path / "checkpoint")
    (work,) = works = stage.promised(["a1"])
    stage.participant.abort([work.identity])
    assert outcomes(stage.participant.outcome(works)) == {Outcome.UNKNOWN}
    assert outcomes(stage.participant.commit(works)) == {Outcome.UNKNOWN}
    assert sink.storage().disk is None

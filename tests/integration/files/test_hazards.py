"""What lies in the way of files, or comes between two of their steps: nothing is lost by it."""

from __future__ import annotations

import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import obstore.exceptions as failures
import pyarrow as pa
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, PipelineIdentity
from airflow_eos.core.checkpoint.backend import PIPELINE
from airflow_eos.core.checkpoint.locations import Guarded
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.checkpoint.rulings import resolve
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, encode
from airflow_eos.core.recovery.execute import execute
from airflow_eos.core.recovery.facts import gather
from airflow_eos.core.recovery.plan import make_plan
from airflow_eos.errors import ConfigurationError, DeliveryError, OwnershipError, StoreError
from airflow_eos.kinds.files.folder import files_of
from airflow_eos.kinds.files.manifest import LOG, ManifestLog
from airflow_eos.kinds.files.participant import FilesParticipant
from airflow_eos.kinds.files.sink import LINE_COLUMN
from airflow_eos.recovery import Action, Result
from airflow_eos.sinks import FileSink
from tests.integration.files.staged import Stage, entries, outcomes
from tests.integration.files.test_advice import start
from tests.support.stores import disk_of

ODD = ["a\u00a0b", "\u3000", "a\u200bb", "\U0001f469\u200d\U0001f469", "\x85"]

one_by_one = pytest.mark.parametrize("stage", ["listing"], indirect=True)
by_batches = pytest.mark.parametrize("stage", ["manifest"], indirect=True)
on_a_disk = pytest.mark.parametrize("folder", ["disk"], indirect=True)
in_a_bucket = pytest.mark.parametrize("folder", ["bucket"], indirect=True)


def of_days(stage: Stage, days: list[str]) -> PreparedWork:
    writer = stage.sink.opened(0, 0)
    lines = [msgspec.json.encode(day).decode() for day in days]
    writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: lines, "day": days}))
    work = writer.prepare("0" * 32)
    assert work is not None
    return work


@pytest.mark.long
def test_a_partition_whose_value_does_not_print_is_settled(stage):
    """A space that does not break, a joiner of an emoji: they come with the data."""
    work = of_days(stage, ODD)
    stage.decide(work)
    assert [each.key for each in stage.recovery.open()] == [work.key]
    assert outcomes(stage.recovery.outcome([work])) == {Outcome.OPEN}
    assert outcomes(stage.recovery.commit([work])) == {Outcome.COMMITTED}
    assert outcomes(stage.recovery.outcome([work])) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(ODD)
    assert stage.recovery.open() == ()


def test_a_partition_whose_value_does_not_print_is_given_up(stage):
    work = of_days(stage, ODD)
    stage.decide(work)
    assert stage.recovery.abandon([work.identity]) == {work.identity: True}
    assert stage.recovery.open() == ()
    other = of_days(stage, ODD)
    assert stage.recovery.abort([other.identity]) == {other.identity: True}
    assert not any(stage.sink.storage().sizes([file.visible for file in files_of(other)]))


@in_a_bucket
@pytest.mark.parametrize("value", ["\ufffe", "a\uffff"])
def test_a_value_that_no_xml_holds_is_refused_before_it_is_promised(stage, value):
    """S3 takes such a name and is not asked to remove it: each settle failed, for ever."""
    writer = stage.sink.opened(0, 0)
    with pytest.raises(StoreError, match="no XML can hold"):
        writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: ['"a"'], "day": [value]}))
    writer.abort()
    assert stage.participant.open() == ()


@on_a_disk
def test_a_value_that_is_longer_than_a_name_says_so(stage):
    with pytest.raises(StoreError, match="longer than a name may be there"):
        of_days(stage, ["x" * 300])


@one_by_one
def test_work_of_which_a_part_is_visible_is_not_given_up_as_a_whole(stage):
    """The port says so: what was made visible stays, and is False."""
    part, none = stage.promised(["a1", "b1"], ["a2", "b2"])
    published = files_of(part)[0]
    stage.sink.storage().publish([(published.prepared, published.visible)])
    told = stage.recovery.abandon([part.identity, none.identity])
    assert told == {part.identity: False, none.identity: True}
    assert stage.seen() == Counter(["a1"])
    assert stage.recovery.open() == ()


def misses(stage: Stage, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Publishing finds something missing, though nothing of the work is.

    On a disk, a retention job removes the empty folder between its making and the link; in a
    bucket, 404 is the answer about an upload.
    """
    left = [times]
    link, copy = Path.hardlink_to, Guarded.copy_if_absent

    def linked(visible: Path, prepared: Path) -> None:
        if left[0] and visible.name.endswith(".json"):
            left[0] -= 1
            visible.parent.rmdir()
        link(visible, prepared)

    def copied(store: Guarded, source: str, target: str) -> None:
        if left[0]:
            left[0] -= 1
            raise FileNotFoundError("NoSuchUpload")
        copy(store, source, target)

    if stage.sink.folder.startswith("/"):
        monkeypatch.setattr(Path, "hardlink_to", linked)
    else:
        monkeypatch.setattr(Guarded, "copy_if_absent", copied)


@one_by_one
@pytest.mark.parametrize("rows", [["a1"], ["a1", "b1"]], ids=["a file", "two files"])
def test_work_that_is_whole_is_published_again_where_publishing_missed(stage, monkeypatch, rows):
    works = stage.promised(rows)
    participant = stage.participant
    misses(stage, monkeypatch, 1)
    assert outcomes(participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(rows)


@one_by_one
def test_work_that_is_whole_is_never_removed_by_a_commit(stage, monkeypatch):
    """Rule 5: it stays promised, however often publishing misses."""
    works = stage.promised(["a1", "b1"])
    participant = stage.participant
    misses(stage, monkeypatch, 1000)
    with pytest.raises(StoreError, match="all there, and could not be published"):
        participant.commit(works)
    assert outcomes(participant.outcome(works)) == {Outcome.OPEN}
    monkeypatch.undo()
    assert outcomes(participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "b1"])


@on_a_disk
@one_by_one
@pytest.mark.parametrize("in_the_way", ["a file as the partition", "a folder as the file"])
def test_what_is_there_already_and_no_file_of_ours_is_not_taken_for_it(stage, in_the_way):
    """Else the prepared file, the only one, would go."""
    works = stage.promised(["a1", "b1"])
    at = Path(stage.sink.folder, "day=a")
    if in_the_way == "a file as the partition":
        at.write_bytes(b"")
    else:
        at = at / f"{works[0].key}.json"
        at.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"in the way .* Nothing was guessed"):
        stage.participant.commit(works)
    assert outcomes(stage.participant.outcome(works)) == {Outcome.OPEN}
    at.unlink() if at.is_file() else at.rmdir()
    assert outcomes(stage.participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "b1"])


@in_a_bucket
@one_by_one
def test_a_name_that_is_said_to_be_taken_is_looked_for(stage, monkeypatch):
    """409 (ConditionalRequestConflict) says that somebody was about to, not that it is there."""
    works = stage.promised(["a1"])
    participant = stage.participant

    def conflict(*_: object) -> None:
        raise failures.AlreadyExistsError("ConditionalRequestConflict")

    monkeypatch.setattr(Guarded, "copy_if_absent", conflict)
    with pytest.raises(StoreError, match="is taken, and nothing is there"):
        participant.commit(works)
    assert outcomes(participant.outcome(works)) == {Outcome.OPEN}
    monkeypatch.undo()
    assert outcomes(participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1"])


def test_what_a_killed_process_left_among_the_work_is_passed_over(stage):
    work = stage.prepare("a1")
    for name in (".0123456789abcdef.tmp", ".probe-0123456789abcdef"):
        stage.sink.storage().beside.put(f"orders/work/{name}", b"half a note")
    assert [each.key for each in stage.recovery.open()] == [work.key]
    assert [each.key for each in stage.participant.open()] == [work.key]


@in_a_bucket
def test_a_driver_that_starts_does_not_meet_the_trial_of_another(stage, monkeypatch):
    """It would end the other's probes, as work that nobody has promised."""
    running, copy, met = stage.participant, Guarded.copy_if_absent, []

    def copied(store: Guarded, source: str, target: str) -> None:
        met.extend(running.open())
        copy(store, source, target)

    monkeypatch.setattr(Guarded, "copy_if_absent", copied)
    stage.sink.connect(timedelta())
    assert met == []


@in_a_bucket
def test_a_trial_whose_probe_is_gone_says_so_by_name(stage, monkeypatch):
    def gone(*_: object) -> None:
        raise FileNotFoundError("no such key")

    monkeypatch.setattr(Guarded, "copy_if_absent", gone)
    with pytest.raises(StoreError, match="Refused while trying it out"):
        stage.sink.connect(timedelta())


def undecided(stage: Stage, *rows: str) -> Any:
    """The writer of a task whose rows nothing decides."""
    writer = stage.sink.opened(0, 0, transactional=False)
    lines = [msgspec.json.encode(row).decode() for row in rows]
    writer.write(pa.RecordBatch.from_pydict({LINE_COLUMN: lines, "day": [row[0] for row in rows]}))
    return writer


def unreachable(*_: object) -> None:
    raise StoreError("the reply was lost")


@by_batches
@pytest.mark.parametrize("step", ["names_any_of", "append"])
def test_a_lost_reply_takes_no_file_from_a_log_that_names_it(stage, monkeypatch, step):
    """At least once: a reader of the log would fail for ever."""
    writer = undecided(stage, "a1", "b1")
    really: Callable[..., bool] = ManifestLog.append

    def appended(*given: Any) -> None:
        really(*given)
        unreachable()

    monkeypatch.setattr(ManifestLog, step, appended if step == "append" else unreachable)
    with pytest.raises(StoreError, match="the reply was lost"):
        writer.prepare("0" * 32)
    writer.abort()
    monkeypatch.undo()
    assert stage.seen() == Counter(["a1", "b1"])
    stage.recovery.abort([each.identity for each in stage.recovery.open()])
    assert stage.recovery.open() == ()
    assert stage.seen() == Counter(["a1", "b1"])


@one_by_one
def test_rows_that_nothing_decides_and_that_are_not_published_fail_their_task(stage, monkeypatch):
    really = FilesParticipant.commit

    def too_late(files: FilesParticipant, works: Any) -> Any:
        files.abort([work.identity for work in works])
        return really(files, works)

    monkeypatch.setattr(FilesParticipant, "commit", too_late)
    with pytest.raises(DeliveryError, match="not published"):
        undecided(stage, "a1").prepare("0" * 32)


@on_a_disk
@one_by_one
@pytest.mark.parametrize("ruling", [Outcome.COMMITTED, Outcome.ABORTED])
def test_work_of_which_a_part_is_visible_and_a_part_is_lost_can_be_ruled(stage, ruling):
    """What is left of it is listed as open: a person is asked all the same, and then it is over."""
    (work,) = works = stage.promised(["a1", "b1", "c1"])
    storage, store, recovery = stage.sink.storage(), stage.store, stage.recovery
    published, lost, _ = files_of(work)
    storage.publish([(published.prepared, published.visible)])
    storage.remove([published.prepared, lost.prepared])
    store.put("metadata", msgspec.json.encode({"id": str(uuid.uuid4())}))
    store.put("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{}')
    pipeline = PipelineIdentity(
        id="0" * 32, participants=recovery.members, created_at_ms=0, created_by="test"
    )
    store.put(PIPELINE, encode(pipeline))
    recovery.claim(owner_of(store))

    def recovered() -> Any:
        plan = make_plan(gather(store, recovery))
        (result,) = execute(plan, store, recovery, force=True).results
        return plan.steps[0].action, result.result

    assert [each.key for each in recovery.open()] == [work.key]
    assert outcomes(recovery.commit(works)) == {Outcome.UNKNOWN}
    assert recovered() == (Action.ASK, Result.NEEDS_PERSON)
    resolve(store, work.identity, ruling)
    told = Result.DONE if ruling is Outcome.COMMITTED else Result.CHANGED
    assert recovered() == (Action.COMMIT, told)
    assert stage.seen() == Counter(["a1"])


def test_two_forms_that_start_at_once_in_an_empty_folder_are_not_both_let_in(stage):
    """Neither finds data of the other, nor, killed before it, a log."""
    storage = stage.sink.storage()
    storage.store.delete([entry.path for entry in storage.store.list(LOG)])
    other = "listing" if stage.by_batches else "manifest"
    with pytest.raises(ConfigurationError, match=f"publish='{stage.sink.publish}', and not"):
        replace(stage.sink, publish=other, name="totals", store=stage.store).connect(timedelta())
    assert stage.participant.open() == (), "the first one goes on"


@pytest.mark.long
@by_batches
def test_a_log_that_lacks_an_entry_says_so_where_the_next_one_holds_all(stage):
    """Not that somebody else writes there: nobody does."""
    storage = stage.sink.storage()
    for batch in range(8):
        stage.participant.commit(stage.promised([f"a{batch}"], batch=batch))
    works = stage.promised(["b1"], batch=8)
    entry = f"{LOG}/4"
    data = storage.store.get(entry)
    storage.store.delete([entry])
    with pytest.raises(StoreError, match="lacks entries before 9"):
        stage.participant.commit(works)
    storage.store.put(entry, data)
    assert outcomes(stage.participant.commit(works)) == {Outcome.COMMITTED}


@by_batches
@on_a_disk
@pytest.mark.parametrize("left", ["nothing", "NULs", "a line less", "half a line", "its head"])
def test_an_entry_of_the_log_that_is_not_whole_tells_nothing_and_is_settled_again(stage, left):
    """A copy of the folder cut it off: readers lacked rows, and the batch was called committed."""
    works = stage.promised(["a1", "b1"], ["a2", "b2"])
    assert outcomes(stage.participant.commit(works)) == {Outcome.COMMITTED}
    entry = max(Path(stage.sink.folder, LOG).iterdir(), key=lambda each: each.stat().st_mtime_ns)
    whole = entry.read_bytes()
    cut = {"nothing": 0, "a line less": whole.rindex(b"\n"), "half a line": -9}
    cut["its head"] = whole.index(b"\n", 4)  # the version, and the line that says it is ours
    entry.write_bytes(b"\0" * len(whole) if left == "NULs" else whole[: cut[left]])
    with pytest.raises(StoreError, match="damaged or was cut off") as refused:
        stage.recovery.outcome(works)
    assert str(entry) in refused.value.remedies[1].change
    entry.unlink()  # as it says
    assert outcomes(stage.recovery.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter(["a1", "b1", "a2", "b2"])


# --- A folder that was given to another checkpoint: what the former one settled is not its own ----


def staged(tmp_path: Path, checkpoint: str, publish: Any) -> Stage:
    sink = FileSink(str(tmp_path / "out"), "json", ["day"], publish=publish, name="orders")
    stage = Stage(sink, tmp_path / checkpoint)
    stage.sink = sink.bound(stage.store)
    return stage


def taken_over(stage: Stage) -> Any:
    """Do what the refusal says."""
    with pytest.raises(OwnershipError) as refused:
        start(stage)
    advice = re.search(r"Remove (\S+) and the folder (\S+),", str(refused.value))
    assert advice is not None, refused.value
    Path(advice[1]).unlink()
    shutil.rmtree(advice[2], ignore_errors=True)
    return start(stage)


@pytest.mark.parametrize("publish", ["listing", "manifest"])
def test_a_new_checkpoint_takes_no_batch_of_the_former_one_for_its_own(tmp_path, publish):
    """Both have a batch 0: the rows of the second were said to be there, and were in no log."""
    former, new = staged(tmp_path, "former", publish), staged(tmp_path, "new", publish)
    participant = start(former)
    for batch, row in enumerate("abc"):
        participant.commit(former.promised(row, batch=batch))
    participant = taken_over(new)
    for batch, row in enumerate("xy"):
        works = new.promised(row, batch=batch)
        assert outcomes(participant.outcome(works)) == {Outcome.OPEN}
        assert outcomes(participant.commit(works)) == {Outcome.COMMITTED}
    assert new.seen() == Counter("abcxy")


@pytest.mark.parametrize("publish", ["listing", "manifest"])
def test_a_new_checkpoint_is_not_below_the_floor_of_the_former_one(tmp_path, publish):
    former, new = staged(tmp_path, "former", publish), staged(tmp_path, "new", publish)
    participant = start(former)
    for batch in range(20, 23):
        participant.commit(former.promised("a", batch=batch))
    participant = taken_over(new)
    assert outcomes(participant.commit(new.promised("x", batch=0))) == {Outcome.COMMITTED}
    assert new.seen() == Counter("aaax")


def test_a_driver_of_the_former_checkpoint_that_wakes_adds_nothing_again(tmp_path):
    """Its witness is repeated for as long as the log lives, beside those of the new one."""
    former, new = staged(tmp_path, "former", "manifest"), staged(tmp_path, "new", "manifest")
    asleep = start(former)
    works = former.promised("a")
    former.participant.commit(works)
    participant = taken_over(new)
    for batch in range(25):
        participant.commit(new.promised("x", batch=batch))
    assert outcomes(asleep.commit(works)) == {Outcome.COMMITTED}
    assert new.seen() == Counter({"a": 1, "x": 25})


def test_what_a_log_without_ids_says_is_of_the_pipeline_that_was_there(tmp_path):
    """The release before wrote none: the driver that starts after it settles nothing twice."""
    stage = staged(tmp_path, "former", "manifest")
    participant = start(stage)
    works = stage.promised("a")
    participant.commit(works)
    log = Path(stage.sink.folder) / LOG
    newest = log / entries(stage.sink.storage())[-1]
    newest.write_text(re.sub(r"(0-1-committed)-[0-9a-f]+", r"\1", newest.read_text()))
    assert outcomes(stage.participant.commit(works)) == {Outcome.COMMITTED}
    assert stage.seen() == Counter("a")

    later = staged(tmp_path, "later", "manifest")
    made = msgspec.json.decode((later.checkpoint / PIPELINE).read_bytes())
    made["created_at_ms"] = 2**42
    (later.checkpoint / PIPELINE).write_bytes(msgspec.json.encode(made))
    participant = taken_over(later)
    assert outcomes(participant.commit(later.promised("x"))) == {Outcome.COMMITTED}
    assert later.seen() == Counter("ax")


# --- A disk that is really full, where a small one may be mounted: said by name, nothing half -----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of("1m", tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize("publish", ["listing", "manifest"])
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_disk_that_fills_up_while_a_task_writes(small_disk, tmp_path, form, publish):
    sink = FileSink(str(small_disk / "data"), form, ["day"], publish=publish)
    sink = sink.bound(CheckpointStore.open(tmp_path / "checkpoint"))
    participant = sink.connect(timedelta())
    random = np.random.default_rng(0)
    texts = pa.array([random.bytes(4096).hex() for _ in range(1000)])
    rows = pa.RecordBatch.from_arrays(
        [texts, pa.array(["a", "b"] * 500)], names=[LINE_COLUMN, "day"]
    )
    writer = sink.opened(0, 0)
    writer.write(rows)
    with pytest.raises(StoreError, match=r"The disk refused while writing files.*No space left"):
        writer.prepare("0" * 32)
    writer.abort()
    assert participant.open() == ()
    assert not list(small_disk.rglob(f"*.{form}"))

    writer = sink.opened(0, 1)
    writer.write(rows.slice(0, 20))
    work = writer.prepare("0" * 32)
    assert work is not None
    if publish == "listing":
        assert participant.commit([work]) == {work.identity: Outcome.COMMITTED}
    else:
        assert [each.key for each in participant.open()] == [work.key]

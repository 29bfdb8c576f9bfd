"""Tables as participants: each verb repeated, raced in two processes, killed at each step."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_eos.core.checkpoint import PipelineIdentity, claim
from airflow_eos.core.checkpoint.backend import decision_path
from airflow_eos.core.protocol.decision import Outcome, WorkIdentity
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DeliveryError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.lake import participant as settling
from airflow_eos.kinds.lake.participant import LostRaceError
from tests.integration.lake.stage import Stage, answer, batch, stopped
from tests.support.pipelines import owner_at, require_at

COMMITTED, ABORTED, OPEN, UNKNOWN = (
    Outcome.COMMITTED,
    Outcome.ABORTED,
    Outcome.OPEN,
    Outcome.UNKNOWN,
)


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(stage: Stage):
    works = [stage.prepare(1, 2), stage.prepare(3, task=1)]
    participant = stage.participant()
    assert stage.values().total() == 0
    assert stage.noted() == {work.key for work in works}
    stage.decide(*works)
    assert participant.outcome(works) == {work.identity: OPEN for work in works}
    assert participant.commit(works) == {work.identity: COMMITTED for work in works}
    assert participant.outcome(works) == {work.identity: COMMITTED for work in works}
    assert stage.values() == {1: 1, 2: 1, 3: 1}
    assert stage.noted() == set()


def test_of_two_outputs_into_one_table_each_has_a_witness_of_its_own(stage: Stage):
    """As by two paths to it, or two names of one catalog: the other's rows would pass for ours."""
    theirs = replace(stage.sink, name="other")
    writer = theirs.opened(0, 0)
    writer.write(batch(2))
    work, other = stage.prepare(1), writer.prepare("0" * 32)
    stage.decide(work, other)
    beside = theirs.connect(timedelta(seconds=1))
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    assert beside.outcome([other]) == {other.identity: OPEN}
    assert beside.commit([other]) == {other.identity: COMMITTED}
    assert stage.values() == {1: 1, 2: 1}


def test_a_commit_again_changes_nothing_twice(stage: Stage):
    work = stage.delivered(1)
    commits = stage.kind.commits(stage.table)
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    assert stage.kind.commits(stage.table) == commits
    assert stage.values() == {1: 1}


def test_a_part_of_a_decision_and_then_the_rest_are_each_there_once(stage: Stage):
    """Recovery acts on one, may be killed, and then on the others."""
    first, *rest = works = [stage.prepare(n, task=n) for n in range(3)]
    stage.decide(*works)
    assert stage.participant().commit([first]) == {first.identity: COMMITTED}
    assert stage.participant().commit(rest) == {work.identity: COMMITTED for work in rest}
    assert stage.values() == {0: 1, 1: 1, 2: 1}


def test_works_of_two_decisions_are_told_apart(stage: Stage):
    """The first attempt lost a file, so that all of it is aborted; the second delivered it."""
    lost, whole = works = [stage.prepare(1), stage.prepare(2, task=1)]
    stage.decide(*works)
    stage.file(lost).unlink()
    aborted = {work.identity: ABORTED for work in works}
    assert stage.participant().commit(works) == aborted
    again = stage.prepare(1, 2)
    stage.decide(again, attempt=2)
    told = aborted | {again.identity: COMMITTED}
    assert stage.participant().commit([*works, again]) == told
    assert stage.participant().outcome([*works, again]) == told
    assert stage.values() == {1: 1, 2: 1}
    assert not stage.file(whole).exists(), "what is aborted leaves no file"


def test_a_missing_file_is_no_abort_before_a_commit_has_said_so(stage: Stage):
    """Somebody may have looked at it while it was there, and be about to commit it."""
    work = stage.promised(1)
    content = stage.file(work).read_bytes()
    stage.file(work).unlink()
    assert stage.participant().outcome([work]) == {work.identity: OPEN}
    assert stage.participant().commit([work]) == {work.identity: ABORTED}
    assert stage.participant().outcome([work]) == {work.identity: ABORTED}
    stage.file(work).write_bytes(content)
    assert stage.participant().commit([work]) == {work.identity: ABORTED}
    assert stage.values().total() == 0


def test_another_file_of_the_same_size_is_not_what_was_promised(stage: Stage):
    work, well = stage.prepare(1), stage.prepare(2, task=1)
    stage.decide(work, well)
    content = stage.file(work).read_bytes()
    stage.file(work).write_bytes(content[:-12] + bytes(8) + content[-4:])
    assert set(stage.participant().commit([work, well]).values()) == {ABORTED}
    assert stage.values().total() == 0


@pytest.mark.long
def test_a_committer_that_saw_the_file_loses_to_the_one_that_wrote_its_loss(stage: Stage):
    work = stage.promised(1)
    sleeper = stage.start("commit", failpoints="looked=stop")
    stopped(sleeper)
    content = stage.file(work).read_bytes()
    stage.file(work).unlink()
    assert stage.participant().commit([work]) == {work.identity: ABORTED}
    stage.file(work).write_bytes(content)
    assert answer(sleeper) == {ABORTED}
    assert stage.values().total() == 0


@pytest.mark.long
def test_two_committers_at_once_add_the_rows_once(stage: Stage):
    works = [stage.prepare(1), stage.prepare(2, task=1)]
    stage.decide(*works)
    sleeper = stage.start("commit", failpoints="looked=stop", key=works[1].key)
    stopped(sleeper)
    stage.participant().commit(works)
    commits = stage.kind.commits(stage.table)
    assert answer(sleeper) == {COMMITTED}
    assert stage.values() == {1: 1, 2: 1}
    assert stage.kind.commits(stage.table) == commits


@pytest.mark.long
def test_a_committer_that_slept_through_the_next_batch_changes_nothing(stage: Stage):
    work = stage.promised(1)
    sleeper = stage.start("commit", failpoints="looked=stop")
    stopped(sleeper)
    stage.participant().commit([work])
    stage.delivered(2, batch=1)
    assert answer(sleeper) == {UNKNOWN}, "it is over: the place of its witness is taken"
    assert stage.values() == {1: 1, 2: 1}


@pytest.mark.long
def test_a_writer_beside_us_makes_nobody_lose(stage: Stage):
    """Others write to the table too; each of our commits is still there once."""
    works = [stage.prepare(n, task=n) for n in range(2)]
    stage.decide(*works)
    sleeper = stage.start("commit", failpoints="looked=stop")
    stopped(sleeper)
    writer = stage.sink.opened(9, 0, transactional=False)
    writer.write(batch(9))
    assert writer.prepare("0" * 32) is None, "visible at once"
    assert answer(sleeper) == {COMMITTED}
    assert stage.values() == {0: 1, 1: 1, 9: 1}


def lost_reply(stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The first commit that no decision names arrives, and its answer does not."""
    view: Any = type(stage.participant()._table.look())
    really = view.append_at_once
    lost: list[Exception] = []

    def append(self: Any, files: Any) -> None:
        really(self, files)
        if not lost:
            lost.append(error)
            raise error

    monkeypatch.setattr(view, "append_at_once", append)


def test_a_file_that_the_table_may_name_is_not_removed_by_its_task(
    appending: Stage, monkeypatch: pytest.MonkeyPatch
):
    """Nothing decides it: readers of the table would fail for ever."""
    stage = appending
    lost_reply(stage, monkeypatch, StoreError("the reply was lost"))
    writer = stage.sink.opened(9, 0, transactional=False)
    writer.write(batch(9))
    with pytest.raises(StoreError, match="the reply was lost"):
        writer.prepare("0" * 32)
    writer.abort()
    assert stage.values() == {9: 1}


def test_rows_at_once_whose_reply_was_lost_are_not_added_again(
    appending: Stage, monkeypatch: pytest.MonkeyPatch
):
    """By a task that goes on: at_most_once promises that none comes twice."""
    stage = appending
    lost_reply(stage, monkeypatch, LostRaceError("the reply was lost"))
    writer = stage.sink.opened(9, 0, transactional=False)
    writer.write(batch(9))
    with contextlib.suppress(StoreError):
        assert writer.prepare("0" * 32) is None
    assert stage.values() == {9: 1}


def test_killed_after_the_commit_before_its_note_went(stage: Stage):
    work = stage.promised(1)
    stage.killed("commit", "settled-some=kill")
    assert stage.participant().outcome([work]) == {work.identity: COMMITTED}
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    assert stage.values() == {1: 1}
    assert stage.noted() == set()


@pytest.mark.long
def test_killed_before_the_commit(stage: Stage):
    work = stage.promised(1)
    stage.killed("commit", "looked=kill")
    assert stage.values().total() == 0
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    assert stage.values() == {1: 1}


@pytest.mark.parametrize("place", ["task-noted", "task-filed"])
def test_a_task_killed_after_its_note_is_found_and_removed(stage: Stage, place: str):
    """Between note and file, and between file and report."""
    stage.killed("prepare", f"{place}=kill")
    (left,) = participant_open = stage.participant().open()
    assert participant_open[0].timeout_ms is not None
    assert stage.participant().abort([left.identity]) == {left.identity: True}
    assert stage.participant().abort([left.identity]) == {left.identity: False}
    assert stage.noted() == set()
    assert stage.data_files() == set()


def test_what_was_aborted_can_never_be_committed(stage: Stage):
    work = stage.prepare(1)
    assert stage.participant().abort([work.identity]) == {work.identity: True}
    assert stage.data_files() == set()
    stage.decide(work)
    assert stage.participant().commit([work]) == {work.identity: ABORTED}
    assert stage.values().total() == 0


def test_a_task_that_was_aborted_while_it_wrote_promises_nothing(stage: Stage):
    writer = stage.sink.opened(0, 0)
    writer.write(batch(1))
    (left,) = stage.participant().open()
    stage.participant().abort([left.identity])
    with pytest.raises((DeliveryError, FileNotFoundError)):
        writer.prepare("0" * 32)
    writer.abort()
    assert stage.data_files() == set()
    assert stage.noted() == set()


def given_all(writer: Any, rows: int) -> None:
    for _ in range(rows // 100_000):
        writer.write(batch(*range(100_000)))
    writer.prepare("0" * 32)


@pytest.mark.parametrize("rows", [100_000, 1_000_000], ids=["at the end", "at a row group"])
def test_a_disk_that_takes_no_more_is_said_by_name_and_nothing_of_it_is_left(
    stage: Stage, rows: int
):
    """A limit of this process in the place of a disk: the same calls fail, in the same places."""
    writer = stage.sink.opened(0, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            StoreError, match=r"efused while writing the file of a task.*(Make room|File too large)"
        ):
            given_all(writer, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.abort()
    assert stage.data_files() == set()
    assert stage.noted() == set()


def test_who_reads_the_log_by_hand_finds_the_same_rows(stage: Stage):
    """Not by the library that wrote it: what both of its halves take wrongly nobody would see."""

    def by_hand() -> list[int]:
        return sorted(stage.kind.by_hand(stage.table)["value"].to_pylist())

    assert by_hand() == []
    stage.prepare(9, task=9)
    for number in range(3):
        stage.delivered(number, 10 + number, batch=number)
    assert by_hand() == sorted(stage.values().elements()) == [0, 1, 2, 10, 11, 12]
    stage.kind.clear(stage.table)
    assert by_hand() == []


def test_an_abort_takes_nothing_from_the_table(stage: Stage):
    """A note that was deleted came back with a power cut."""
    work = stage.delivered(1)
    stage.store.create(f"eos/works/{work.participant}/{work.key}", b"")
    assert stage.noted() == {work.key}
    assert stage.participant().abort([work.identity]) == {work.identity: False}
    assert stage.noted() == set()
    assert stage.values() == {1: 1}


@pytest.mark.parametrize("ahead_s", [0, 86_400])
def test_an_abort_takes_nothing_from_a_version_that_can_be_read(appending: Stage, ahead_s: int):
    """Its rows were deleted since, or compacted: who goes back to a version must find them.

    Also where its decision was pruned, and the clock of the file's machine was ahead of the one
    that committed.
    """
    stage = appending
    work = stage.delivered(1)
    stage.kind.clear(stage.table)
    assert stage.values().total() == 0
    stage.store.delete([decision_path(0, 1)])
    later = time.time() + ahead_s
    os.utime(stage.file(work), (later, later))
    stage.store.create(f"eos/works/{work.participant}/{work.key}", b"")
    assert stage.participant().abort([work.identity]) == {work.identity: False}
    assert stage.file(work).exists()
    assert stage.noted() == set()


def test_a_lost_reply_is_looked_up(stage: Stage, monkeypatch):
    work = stage.promised(1)
    participant = stage.participant()
    view = type(participant._table.look())
    append = view.append

    def unheard(*given: Any) -> None:
        append(*given)
        raise LostRaceError("the connection was reset")

    monkeypatch.setattr(view, "append", unheard)
    assert participant.commit([work]) == {work.identity: COMMITTED}
    assert stage.values() == {1: 1}


def test_where_the_table_never_takes_it_nothing_is_concluded(stage: Stage, monkeypatch):
    work = stage.promised(1)
    participant = stage.participant()

    def refused(*_given: object) -> None:
        raise LostRaceError("somebody else was first")

    monkeypatch.setattr(type(participant._table.look()), "append", refused)
    monkeypatch.setattr(settling, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(StoreError, match=r"in 2 tries: somebody else was first"):
        participant.commit([work])
    assert stage.noted() == {work.key}


def test_work_that_no_decision_names_is_never_committed(stage: Stage):
    work = stage.prepare(1)
    assert stage.participant().outcome([work]) == {work.identity: OPEN}
    assert stage.participant().commit([work]) == {work.identity: UNKNOWN}
    assert stage.values().total() == 0


def test_another_pipeline_under_the_same_name_reads_none_of_its_witnesses(stage: Stage):
    work = stage.delivered(1, batch=0)
    other = _Elsewhere(stage, stage.folder / "anew")
    work = other.prepare(2)
    other.decide(work, batch=0)
    assert other.participant().outcome([work]) == {work.identity: OPEN}
    assert other.participant().commit([work]) == {work.identity: COMMITTED}
    assert stage.values() == {1: 1, 2: 1}


class _Elsewhere(Stage):
    """Another checkpoint that writes to the table of ``stage``."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        super().__init__(stage.kind, folder)
        self._at = stage.table
        members = self.participant().members
        other = PipelineIdentity(
            id="b" * 32, participants=members, created_at_ms=0, created_by="test"
        )
        claim(self.store, other)

    @property
    def table(self):
        return self._at


def test_where_the_table_is_not_there_nothing_is_concluded(stage: Stage):
    work = stage.promised(1)
    participant = stage.participant()
    stage.table.rename(stage.folder / "unmounted")
    for asked in (
        lambda: participant.outcome([work]),
        lambda: participant.commit([work]),
        lambda: participant.abort([work.identity]),
    ):
        with pytest.raises(StoreError, match=r"Nothing was concluded|Nothing was guessed"):
            asked()
    assert stage.store.head(f"eos/works/{work.participant}/{work.key}") is not None


def test_a_column_that_may_be_null_may_be_added_meanwhile(stage: Stage):
    work = stage.promised(1)
    stage.kind.add_columns(stage.table)
    assert stage.participant().commit([work]) == {work.identity: COMMITTED}
    assert stage.kind.rows(stage.table)["later"].to_pylist() == [None]


def test_work_of_another_participant_is_refused(stage: Stage):
    theirs = msgspec.structs.replace(stage.prepare(1), participant="totals")
    participant = stage.participant()
    for asked in (
        lambda: participant.check([theirs]),
        lambda: participant.commit([theirs]),
        lambda: participant.outcome([theirs]),
        lambda: participant.abort([theirs.identity]),
    ):
        with pytest.raises(CheckpointFormatError, match="handed to"):
            asked()


@pytest.mark.parametrize("key", ["../x", "a/b", "", "..", "/etc/passwd"])
def test_a_key_never_leaves_the_folder(stage: Stage, key: str):
    with pytest.raises(ConfigurationError, match="no key"):
        stage.participant().abort([WorkIdentity(stage.kind.name.partition("-")[0], "sink", key)])


def test_the_first_checkpoint_owns_the_name(stage: Stage):
    def require(location: str) -> None:
        require_at(stage.participant(), location)

    stage.participant().claim(owner_at("/a"))
    stage.participant().claim(owner_at("/b"))
    require("/a")
    with pytest.raises(OwnershipError, match=r"belongs to the checkpoint /a, not to /b"):
        require("/b")


def test_an_older_copy_of_the_checkpoint_is_refused(stage: Stage):
    decision = stage.decide(stage.prepare(1), batch=7)
    participant = stage.participant()
    participant.claim(owner_at("/a"))
    participant.note(decision, owner_at("/a"))
    require_at(participant, "/a", 7, b7=(decision,))
    with pytest.raises(OwnershipError, match="older copy"):
        require_at(participant, "/a", 7)


def test_what_a_person_gave_up_is_never_in_the_table_and_leaves_nothing(stage: Stage):
    works = [stage.prepare(1), stage.prepare(2, task=1)]
    stage.decide(*works)
    assert stage.participant().abandon([work.identity for work in works]) == {
        work.identity: True for work in works
    }
    assert stage.participant().commit(works) == {work.identity: ABORTED for work in works}
    assert stage.values().total() == 0
    assert stage.noted() == set()
    assert not stage.file(works[0]).exists()


def test_what_is_in_the_table_is_not_given_up_any_more(stage: Stage):
    work = stage.delivered(1)
    assert stage.participant().abandon([work.identity]) == {work.identity: False}
    assert stage.values() == {1: 1}

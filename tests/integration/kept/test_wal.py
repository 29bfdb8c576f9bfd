"""Rows kept for a callable, and a real endpoint: each verb repeated, raced, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DeliveryError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.spill.participant import SpilledRows, SpilledRowsOutcome
from airflow_eos.kinds.wal.participant import WriteAheadParticipant, connect, made
from tests.integration.kept.endpoint import ROOT, Endpoint, running
from tests.integration.kept.keeping import decided, keep
from tests.support.pipelines import owner_at, require_at

POST = "tests.integration.kept.endpoint:post"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with running(tmp_path) as endpoint:
        yield endpoint


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore.open(tmp_path / "checkpoint")


@pytest.fixture
def wal(store: CheckpointStore, endpoint: Endpoint) -> WriteAheadParticipant:
    return made(store, "orders", POST, {"port": endpoint.port})


def rows(*values: str) -> pa.Table:
    return pa.table({"key": [b"k"] * len(values), "value": [each.encode() for each in values]})


def prepare(store: CheckpointStore, *values: str, batch: int = 0, task: int = 0) -> PreparedWork:
    return keep(store, rows(*values), kind="wal", batch=batch, task=task)


def prepare_elsewhere(store: CheckpointStore, *values: str) -> str:
    """Where another task's rows are kept."""
    return f"{store.location}/eos/kept/orders/rows/{prepare(store, *values, task=9).key}"


def seen(endpoint: Endpoint) -> list[str]:
    return sorted(value for _, value in endpoint.rows().elements())


def test_nothing_is_delivered_before_the_commit_and_all_of_it_after_in_order(store):
    called: list[tuple[str, list[bytes]]] = []
    wal = WriteAheadParticipant(
        SpilledRows(store, "orders"),
        name="orders",
        instance_id=SpilledRows(store, "orders").ensure_instance_id(),
        deliver=lambda token, table: called.append((token, table["value"].to_pylist())),
        target="",
    )
    works = [prepare(store, "a", "b"), prepare(store, "c", task=1)]
    assert [each.key for each in wal.open()] == [work.key for work in works]
    assert [each.key for each in wal.open(except_known=[works[0].identity])] == [works[1].key]
    assert wal.outcome(works) == {work.identity: Outcome.OPEN for work in works}
    assert called == []
    assert wal.commit(works) == {work.identity: Outcome.COMMITTED for work in works}
    assert called == [(works[0].key, [b"a", b"b"]), (works[1].key, [b"c"])]
    assert wal.outcome(works) == {work.identity: Outcome.COMMITTED for work in works}
    assert wal.open() == ()


def test_a_commit_again_calls_nobody(wal, store, endpoint):
    work = prepare(store, "a")
    wal.commit([work])
    again = made(store, "orders", POST, {"port": endpoint.port})
    assert again.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert endpoint.posts() == Counter({work.key: 1})


@pytest.mark.parametrize("place", ["kept-ending", "kept-applied", "settled-some"])
def test_killed_in_the_middle_of_a_commit_the_next_one_ends_it_exactly_once(
    wal, store, endpoint, place
):
    """A process of its own dies at each place; the token tells the endpoint."""
    work = prepare(store, "a", "b")
    program = (
        "import sys, msgspec\n"
        "from airflow_eos.core.checkpoint import CheckpointStore\n"
        "from airflow_eos.kinds.wal.participant import made\n"
        "from airflow_eos.core.protocol.decision import PreparedWork\n"
        "work = msgspec.json.decode(sys.argv[1], type=PreparedWork)\n"
        "store = CheckpointStore.open(sys.argv[2])\n"
        f"made(store, 'orders', {POST!r}, {{'port': {endpoint.port}}}).commit([work])\n"
    )
    import msgspec

    died = subprocess.run(
        [sys.executable, "-c", program, msgspec.json.encode(work).decode(), store.location],
        env={**os.environ, "PYTHONPATH": str(ROOT), "EOS_FAILPOINTS": f"{place}=kill"},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    done = place == "settled-some"
    assert wal.outcome([work]) == {work.identity: Outcome.COMMITTED if done else Outcome.OPEN}
    assert wal.abort([work.identity]) == {work.identity: False}, "its end is decided"
    assert wal.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(endpoint) == ["a", "b"]
    assert endpoint.posts()[work.key] == (2 if place == "kept-applied" else 1)


def test_a_lost_reply_is_no_outcome_and_the_same_token_comes_again(store, endpoint):
    """The endpoint commits and dies before it answers."""
    wal = made(store, "orders", POST, {"port": endpoint.port, "path": "/dying"})
    work = prepare(store, "a")
    with pytest.raises(DeliveryError, match=f"token {work.key}.*not known"):
        wal.commit([work])
    assert wal.outcome([work]) == {work.identity: Outcome.OPEN}
    endpoint.close()
    endpoint.start()
    assert wal.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(endpoint) == ["a"]
    assert endpoint.posts() == Counter({work.key: 2})


def test_what_was_delivered_before_an_error_stays_so(store):
    called: list[str] = []

    def deliver(token: str, table: pa.Table) -> None:
        called.append(token)
        if len(called) == 2:
            raise ValueError("full")

    kept = SpilledRows(store, "orders")
    wal = WriteAheadParticipant(
        kept, name="orders", instance_id=kept.ensure_instance_id(), deliver=deliver, target="x:y"
    )
    first, second = works = [prepare(store, "a"), prepare(store, "b", task=1)]
    with pytest.raises(DeliveryError, match="x:y raised ValueError"):
        wal.commit(works)
    assert wal.outcome(works) == {first.identity: Outcome.COMMITTED, second.identity: Outcome.OPEN}
    wal.commit(works)
    assert called == [first.key, second.key, second.key]


def test_two_committers_at_once_call_with_the_same_token(store, endpoint):
    """That is what tokens are for: the endpoint takes one of them."""
    works = [prepare(store, str(n), task=n) for n in range(6)]
    each = [made(store, "orders", POST, {"port": endpoint.port}) for _ in range(2)]
    became: list[object] = []
    threads = [
        threading.Thread(target=lambda wal=wal: became.append(wal.commit(works))) for wal in each
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert became == [{work.identity: Outcome.COMMITTED for work in works}] * 2
    assert seen(endpoint) == [str(n) for n in range(6)]
    assert set(endpoint.posts()) == {work.key for work in works}


def test_what_was_aborted_can_never_be_committed(wal, store, endpoint):
    work = prepare(store, "a")
    assert wal.abort([work.identity]) == {work.identity: True}
    assert wal.abort([work.identity]) == {work.identity: False}
    assert wal.outcome([work]) == {work.identity: Outcome.ABORTED}
    assert wal.commit([work]) == {work.identity: Outcome.ABORTED}
    assert wal.open() == ()
    assert endpoint.posts() == Counter()


def test_an_abort_between_a_commits_decision_and_its_call_changes_nothing(store):
    """A mark written after the call alone would tell ABORTED of rows that were delivered."""
    kept = SpilledRows(store, "orders")
    work = prepare(store, "a")

    def deliver(token: str, table: pa.Table) -> None:
        assert ours.abort([work.identity]) == {work.identity: False}
        assert ours.outcome([work]) == {work.identity: Outcome.OPEN}

    ours = WriteAheadParticipant(
        kept, name="orders", instance_id=kept.ensure_instance_id(), deliver=deliver, target=""
    )
    assert ours.commit([work]) == {work.identity: Outcome.COMMITTED}


def test_an_abort_takes_nothing_back(wal, store, endpoint):
    work = prepare(store, "a")
    wal.commit([work])
    assert wal.abort([work.identity]) == {work.identity: False}
    assert wal.outcome([work]) == {work.identity: Outcome.COMMITTED}


def test_killed_between_the_mark_and_the_rows_it_is_over_all_the_same(wal, store, endpoint):
    aborted, committed = prepare(store, "a"), prepare(store, "b")
    kept = SpilledRows(store, "orders")
    kept.end(aborted.key, SpilledRowsOutcome.ABORT)
    kept.end(committed.key, SpilledRowsOutcome.COMMIT)
    kept.finish(committed.key)
    assert wal.open() == ()
    assert wal.outcome([aborted, committed]) == {
        aborted.identity: Outcome.ABORTED,
        committed.identity: Outcome.COMMITTED,
    }
    assert wal.commit([aborted]) == {aborted.identity: Outcome.ABORTED}
    assert endpoint.posts() == Counter()
    assert wal.abort([aborted.identity]) == {aborted.identity: False}
    assert not kept.has(aborted.key)


def test_rows_without_a_mark_that_are_gone_are_unknown_and_never_aborted(wal, store, endpoint):
    """Somebody has removed them: maybe the mark of a commit too."""
    work = prepare(store, "a")
    SpilledRows(store, "orders").drop(work.key)
    assert wal.outcome([work]) == {work.identity: Outcome.UNKNOWN}
    assert wal.commit([work]) == {work.identity: Outcome.UNKNOWN}
    assert endpoint.posts() == Counter()


@pytest.mark.parametrize("left", ["between two messages", "fewer rows"])
def test_kept_rows_that_are_not_all_there_are_not_handed_over(wal, store, endpoint, left):
    """The copy of a checkpoint: half of them were delivered, and the batch was complete."""
    work = prepare(store, "a", "b")
    path = Path(store.location, f"eos/kept/orders/rows/{work.key}")
    whole, fewer = path.read_bytes(), Path(prepare_elsewhere(store, "a"))
    path.write_bytes(whole[:-8] if left == "between two messages" else fewer.read_bytes())
    with pytest.raises(StoreError, match=r"not rows|2 were promised") as refused:
        wal.commit([work])
    assert endpoint.posts() == Counter()
    assert any("--give-up-open" in each for r in refused.value.remedies for each in r.commands)
    path.write_bytes(whole)
    assert wal.commit([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(endpoint) == ["a", "b"]


def test_a_commit_between_two_looks_is_not_unknown(wal, store, endpoint, monkeypatch):
    work = prepare(store, "a")
    there = SpilledRows.has

    def committed_meanwhile(kept: SpilledRows, key: str) -> bool:
        monkeypatch.setattr(SpilledRows, "has", there)
        made(store, "orders", POST, {"port": endpoint.port}).commit([work])
        return there(kept, key)

    monkeypatch.setattr(SpilledRows, "has", committed_meanwhile)
    assert wal.outcome([work]) == {work.identity: Outcome.COMMITTED}


def test_where_the_checkpoint_is_not_there_nothing_is_concluded(wal, store, tmp_path):
    work = prepare(store, "a")
    (tmp_path / "checkpoint").rename(tmp_path / "unmounted")
    for asked in (lambda: wal.outcome([work]), wal.open):
        with pytest.raises(StoreError, match="Is the disk mounted"):
            asked()


def test_marks_outlive_the_decisions_and_are_pruned_after_them(wal, store):
    kept, log = SpilledRows(store, "orders"), DecisionLog(store)
    works = [prepare(store, str(batch), batch=batch) for batch in range(3)]
    for batch, work in enumerate(works):
        log.record(decided(batch))
        wal.commit([work])
    litter = prepare(store, "x", batch=0)
    kept.end(litter.key, SpilledRowsOutcome.ABORT)
    wal.note(decided(3), owner_at("/a"))
    assert wal.outcome(works) == {work.identity: Outcome.COMMITTED for work in works}
    log.prune(2)
    kept.prune()
    assert wal.outcome(works) == {
        works[0].identity: Outcome.UNKNOWN,
        works[1].identity: Outcome.UNKNOWN,
        works[2].identity: Outcome.COMMITTED,
    }
    assert not kept.has(litter.key)
    assert store.folders("eos/kept/orders/ends") == ["2"]


def test_a_sleeper_whose_marks_were_pruned_delivers_nothing(wal, store, endpoint):
    work = prepare(store, "a")
    wal.commit([work])
    DecisionLog(store).record(decided(1))
    SpilledRows(store, "orders").prune()
    assert wal.commit([work]) == {work.identity: Outcome.UNKNOWN}
    assert endpoint.posts() == Counter({work.key: 1})


def test_rows_that_were_cut_short_are_never_delivered(wal, store, tmp_path):
    work = prepare(store, "a")
    file = tmp_path / "checkpoint" / "eos" / "kept" / "orders" / "rows" / work.key
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreError, match="not rows"):
        wal.commit([work])


def test_work_of_another_participant_is_refused(wal):
    theirs = PreparedWork("wal", "totals", "0-0-a", 1, "0" * 32, 0, None, {})
    for asked in (
        lambda: wal.check([theirs]),
        lambda: wal.commit([theirs]),
        lambda: wal.outcome([theirs]),
        lambda: wal.abort([theirs.identity]),
    ):
        with pytest.raises(CheckpointFormatError, match="handed to wal 'orders'"):
            asked()


@pytest.mark.parametrize("key", ["../x", "0-0-a/b", "", "..", "0-0", "01-0-a"])
def test_a_key_never_leaves_its_folder(wal, key):
    with pytest.raises(ConfigurationError, match="no key"):
        wal.abort([WorkIdentity("wal", "orders", key)])


def test_the_first_checkpoint_owns_its_rows_and_a_copy_is_refused(wal, store):
    wal.claim(owner_at("/a"))
    wal.claim(owner_at("/b"))

    require_at(wal, "/a")
    with pytest.raises(OwnershipError, match="belongs to the checkpoint /a"):
        require_at(wal, "/b")
    wal.note(decided(7), owner_at("/a"))
    require_at(wal, "/a", 7, b7=(decided(7),))
    with pytest.raises(OwnershipError, match="older copy"):
        require_at(wal, "/a", 7, b7=(decided(7, "b"),))
    place = f"{store.location}/eos/kept/orders"
    [found] = wal.ownership(owner_at("/a"))
    assert found.called == f"name 'orders' in {place}"
    assert f"remove {place}/owner and the folder {place}/notes, and" in found.give_up.change


def test_recovery_is_told_the_callable_and_never_takes_it_from_the_checkpoint(wal, store, endpoint):
    """Whoever can write there could run any code where recovery runs."""
    assert wal.members == (Member("orders", "wal", {"mark": wal._instance_id}, POST),)
    for how in (None, {}, {"reach": 1}, 7):
        with pytest.raises(ConfigurationError, match=rf"used '{POST}'.*Give it yourself"):
            connect(wal.members[0], how, store=store, timeout_s=1)
    with pytest.raises(ConfigurationError, match="give the checkpoint"):
        connect(wal.members[0], POST, timeout_s=1)
    work = prepare(store, "a")
    told = {"deliver": POST, "reach": {"port": endpoint.port}}
    assert connect(wal.members[0], told, store=store, timeout_s=1).commit([work])
    assert seen(endpoint) == ["a"]


def test_another_checkpoint_is_no_place_for_these_rows(wal, tmp_path):
    other = CheckpointStore.open(tmp_path / "other")
    with pytest.raises(StoreError, match="not of this pipeline"):
        connect(wal.members[0], POST, store=other, timeout_s=1)


def test_a_pipeline_and_a_checkpoint_that_both_lack_the_mark_are_not_one_another(wal, store):
    store.put("eos/kept/orders/mark", b"")
    with pytest.raises(StoreError, match="its mark is missing"):
        connect(replace(wal.members[0], address={}), POST, store=store, timeout_s=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("post", "expected 'package.module:function'"),
        ("os;x:y", "expected 'package.module:function'"),
        ("no_such_module:f", "cannot be imported here"),
        ("tests.integration.kept.endpoint:nothing", "cannot be imported here"),
        ("tests.integration.kept.endpoint:ROOT", "expected a function"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(store, name, said):
    with pytest.raises(ConfigurationError, match=said):
        made(store, "orders", name, None)


def test_what_a_person_gave_up_is_never_handed_over_again(store, endpoint, wal):
    """The callable raised for it: a commit has begun, and its mark stands."""
    poison, whole = prepare(store, "a"), prepare(store, "b", task=1)
    nobody_there = made(store, "orders", POST, {"port": 1})
    with pytest.raises(DeliveryError, match="not known whether it had an effect"):
        nobody_there.commit([poison])
    assert wal.abort([poison.identity]) == {poison.identity: False}
    assert wal.abandon([poison.identity]) == {poison.identity: True}
    assert wal.open() == wal.open(except_known=[poison.identity])
    assert wal.commit([poison, whole]) == {
        poison.identity: Outcome.UNKNOWN,
        whole.identity: Outcome.COMMITTED,
    }
    assert seen(endpoint) == ["b"]


def test_what_was_delivered_before_it_was_given_up_is_told_as_such(
    store, endpoint, wal, monkeypatch
):
    work = prepare(store, "a")
    monkeypatch.setattr(SpilledRows, "drop", lambda *_: False)  # killed right before
    wal.commit([work])
    monkeypatch.undo()
    assert wal.abandon([work.identity]) == {work.identity: False}
    assert wal.outcome([work]) == {work.identity: Outcome.COMMITTED}
    assert seen(endpoint) == ["a"]

"""Nothing owed: what a promise owes is what its newest COMMIT named, less what is known of that."""

from __future__ import annotations

from itertools import combinations, product

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog
from airflow_eos.core.delivery.batch import Attempts
from airflow_eos.core.protocol.decision import (
    AT_A_START,
    IN_PLACE_OF_A_FORMER,
    Outcome,
    PreparedWork,
)
from airflow_eos.core.protocol.promise import Promise, tries
from airflow_eos.errors import DecisionNeededError
from tests.support.authority import authority_of
from tests.support.pipelines import abort_of
from tests.unit.core.recovery.facts_of import commit, prepared

COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN
A, B, C = (
    prepared(n, content=c, rows=r) for n, c, r in ((0, "a1", 60), (1, "b2", 60), (2, "c4", 9))
)


def again(work: PreparedWork, epoch: int = 1) -> PreparedWork:
    """The same content, written once more."""
    key = work.key.rsplit("-", 1)[0] + f"-{epoch}"
    return msgspec.structs.replace(work, key=key)


def recut(*works: PreparedWork, epoch: int = 1) -> tuple[PreparedWork, PreparedWork]:
    """The same rows together, cut by other tasks."""
    rows, total = sum(w.rows for w in works), sum(int(w.fingerprint, 16) for w in works)
    return (
        prepared(7, epoch=epoch, rows=1, content="1"),
        prepared(8, epoch=epoch, rows=rows - 1, content=f"{total - 1:x}"),
    )


def promise(*decisions: tuple[PreparedWork, ...]) -> Promise:
    made = Promise.of([commit(*works, attempt=n) for n, works in enumerate(decisions, 1)])
    assert made is not None
    return made


@pytest.mark.parametrize("first", list(product((COMMITTED, ABORTED, UNKNOWN), repeat=3)))
def test_whatever_is_unknown_or_ruled_of_earlier_pieces_a_whole_replay_owes_nothing(first):
    """Readers had A; the replay of B and C is delivered; then retention passes the first work."""
    for replay in ((again(B), again(C)), recut(B, C)):
        made = promise((A, B, C), replay)
        outcomes = dict(zip((w.identity for w in (A, B, C)), first, strict=True))
        outcomes |= {w.identity: COMMITTED for w in replay}
        assert made.missing_rows(outcomes) == 0
        assert made.owed(outcomes) == ()


@pytest.mark.parametrize("lost", [c for n in (1, 2, 3) for c in combinations((A, B, C), n)])
def test_a_later_commit_proves_what_earlier_pieces_had_lost(lost):
    replay = tuple(map(again, lost))
    known = promise((A, B, C), replay).known({})
    assert [w for w in (A, B, C) if known[w.identity] is ABORTED] == list(lost)


@pytest.mark.parametrize("lost", [(A,), (A, C)])
def test_it_proves_it_too_where_other_tasks_cut_the_replay_and_the_rest_is_told(lost):
    others = [w for w in (A, B, C) if w not in lost]
    known = promise((A, B, C), recut(*lost)).known({w.identity: COMMITTED for w in others})
    assert [w for w in (A, B, C) if known[w.identity] is ABORTED] == list(lost)


def test_a_wrong_ruling_about_what_is_proven_changes_nothing():
    made = promise((A, B), (again(B),))
    outcomes = {A.identity: COMMITTED, B.identity: COMMITTED, again(B).identity: ABORTED}
    assert made.missing_rows(outcomes) == B.rows
    assert made.delivered(outcomes) == (A,)
    made.check_replay(outcomes, [again(B, 2)])


def test_what_is_told_to_be_aborted_is_delivered_by_no_proof_of_an_accepted_batch():
    """All was lost, the input gave B alone again, as a person let it; and that was lost, too."""
    made = promise((A, B), (again(B),))
    outcomes = dict.fromkeys((A.identity, B.identity, again(B).identity), ABORTED)
    assert made.delivered(outcomes) == ()
    assert made.delivered(outcomes | {again(B).identity: COMMITTED}) == (again(B),)


def test_several_replays_are_each_told_by_the_next():
    made = promise((A, B, C), (again(B), again(C)), (again(C, 2),))
    assert made.missing_rows({again(C, 2).identity: COMMITTED}) == 0
    known = made.known({})
    assert [known[w.identity] for w in (A, B, C, again(B), again(C))] == [
        COMMITTED,
        ABORTED,
        ABORTED,
        COMMITTED,
        ABORTED,
    ]


def test_by_participant_what_one_has_whole_is_not_asked_because_of_another():
    here, there = (msgspec.structs.replace(w, participant=n) for w, n in ((A, "a"), (B, "b")))
    made = promise((here, there), (again(there),))
    assert made.missing_rows({again(there).identity: COMMITTED}) == 0
    assert made.part("a").missing_rows({}) == 0
    assert made.known({})[here.identity] is COMMITTED


def test_what_is_unknown_of_the_newest_is_asked():
    made = promise((A, B), (again(B),))
    with pytest.raises(DecisionNeededError, match="60 rows") as asked:
        made.missing_rows({again(B).identity: UNKNOWN})
    for each, outcome in zip(asked.value.remedies, ("committed", "aborted"), strict=True):
        assert each.commands[0].endswith(f"--transaction {again(B).key} --assume {outcome}")
        assert "60 rows" in each.costs


@pytest.mark.parametrize(
    ("there", "lost"),
    [([A, again(B)], 0), ([A], 60), ([A, B], 60), ([again(B)], 60), ([], 120)],
    ids=["all", "the-replay", "a-ruling-excuses-no-replay", "the-first", "everything"],
)
def test_what_a_system_does_not_show_any_more_is_counted_decision_by_decision(there, lost):
    assert promise((A, B), (again(B),)).lost_rows([w.identity for w in there]) == lost


def test_what_readers_have_is_what_any_decision_of_the_batch_has_delivered():
    made = promise((A, B, C), (again(B), again(C)), (again(C, 2),))
    outcomes = {A.identity: COMMITTED, again(B).identity: COMMITTED}
    assert made.delivered(outcomes) == (A, again(B))


# --- What was tried is numbered from 1, for people ------------------------------------------------


def test_an_attempt_that_nobody_had_begun_has_no_number():
    """A newcomer was told of attempt 2, and asked what had failed in the first."""
    decided = [
        abort_of(5, attempt=1, reason=AT_A_START),
        abort_of(5, attempt=2, reason="failed: OSError"),
        abort_of(5, attempt=3, reason=IN_PLACE_OF_A_FORMER),
        commit(A, attempt=4),
    ]
    assert tries(decided) == {2: 1, 3: 2, 4: 3}


@pytest.mark.parametrize(("term_taken_at_ms", "number"), [(1, 1), (10**12, 2)])
def test_what_a_former_driver_may_have_begun_counts_and_a_starts_own_seal_does_not(
    tmp_path, monkeypatch, term_taken_at_ms, number
):
    """The batch was planned at 7: by a driver whose term is older than that, or by another."""
    monkeypatch.setattr("time.time_ns", lambda: term_taken_at_ms * 1_000_000)
    store = CheckpointStore.open(tmp_path)
    store.put("metadata", b'{"id":"1"}')
    log = DecisionLog(store)
    attempts = Attempts(log, authority_of(store, log), "d")
    decided = attempts.begin(0)
    attempts.promise(0, len(decided) + 1, ())
    assert list(tries(log.of_batch(0)).values())[-1] == number

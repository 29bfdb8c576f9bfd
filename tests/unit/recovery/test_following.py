"""Who says how far a batch is waits where rows turn out to be lost while recovery settles them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import obstore.store
import pytest

from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog
from airflow_eos.kinds.consumer_group.participant import work_of
from airflow_eos.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.protocol.participant import Owner
from airflow_eos.recovery.execute import ALLOWED_BY_DEFAULT, Result, _act
from airflow_eos.recovery.plan import make_plan
from tests.unit.recovery.facts_of import NOW, commit, facts, prepared, still_open, what_became

A = prepared(0, content="a")
SAYS = work_of("consumer_group", "p" * 32, 5, 1, {"in": {0: 9}}, NOW)


class Participant:
    """What becomes of rows is as given; who follows is noted."""

    def __init__(self, of_rows: Outcome) -> None:
        self.of_rows = of_rows
        self.said: list[PreparedWork] = []

    def note(self, decision: Decision, owner: Owner) -> None: ...

    def abort(self, works: Sequence[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        assert not works
        return {}

    abandon = abort

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        self.said += [work for work in works if work.follows]
        return {w.identity: Outcome.COMMITTED if w.follows else self.of_rows for w in works}


@pytest.mark.parametrize(
    ("of_rows", "said", "results"),
    [
        (Outcome.COMMITTED, [SAYS], [Result.DONE, Result.DONE]),
        (Outcome.ABORTED, [], [Result.CHANGED, Result.CHANGED]),
    ],
)
def test_it_is_said_of_what_is_settled_and_of_nothing_else(of_rows, said, results):
    decision = commit(A, SAYS)
    store = CheckpointStore(obstore.store.MemoryStore(), "memory")
    assert DecisionLog(store).record(decision)
    known = facts(
        decisions=(decision,), listed=(still_open(A),), outcomes=what_became(undecided=[SAYS])
    )
    participant = Participant(of_rows)
    became = _act(make_plan(known), known, store, participant, ALLOWED_BY_DEFAULT)  # type: ignore[arg-type]
    assert participant.said == said
    assert [each.result for each in became] == results

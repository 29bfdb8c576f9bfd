"""When a driver asks whether it may go on, and in which order a start takes over."""

from __future__ import annotations

from typing import Any

import obstore.store
import pytest
from msgspec import structs

from airflow_eos.checkpoint import (
    CheckpointStore,
    Decision,
    DecisionLog,
    OffsetLog,
    Verdict,
    newest_term,
    take_term,
)
from airflow_eos.delivery import takeover
from airflow_eos.delivery.batch import Authority
from airflow_eos.delivery.port import Former
from airflow_eos.errors import OwnershipError, SupersededError
from airflow_eos.protocol.participant import Member, Note, Owner, Ownership
from tests.support.authority import OFFSETS, authority_of
from tests.support.pipelines import kafka_member
from tests.unit.sinks.driving import decision_log, driver
from tests.unit.sinks.fakes import FakeBroker, FakeFrame, FakeSink

OTHER = OFFSETS.replace('"0":1', '"0":2')


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(obstore.store.MemoryStore(), "memory")


def decided(batch: int = 0, offsets: str = OFFSETS) -> Decision:
    return Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        offsets=offsets,
        decided_by="driver 1",
        decided_at_ms=0,
        nonce="a" * 32,
    )


def test_a_superseded_driver_runs_no_task(store: CheckpointStore) -> None:
    """Its tasks would overwrite Spark's state files."""
    authority = authority_of(store, DecisionLog(store))
    take_term(store, taken_by="another")
    with pytest.raises(SupersededError):
        authority.begin(0)


def test_the_first_batch_of_a_run_looks_at_the_entry_before(store: CheckpointStore) -> None:
    """A late rename came between our repair and Spark's reading: Spark began somewhere else."""
    log = DecisionLog(store)
    assert log.record(decided(4))
    authority = authority_of(store, log)
    store.put("offsets/4", OTHER.encode())
    with pytest.raises(SupersededError, match="is not what batch 4 was delivered with"):
        authority.begin(5)


def test_a_note_is_acknowledged_before_the_look(store: CheckpointStore) -> None:
    """Whoever takes a term after our look reads the notes after that."""
    asked: list[str] = []

    class Notes:
        def note(self, _decision: Decision, _owner: Owner) -> None:
            asked.append(f"noted, newest term {newest_term(store)}")
            take_term(store, taken_by="another")

    store.put("offsets/0", OFFSETS.encode())
    log = DecisionLog(store)
    authority = Authority(
        take_term(store, taken_by="we"),
        OffsetLog(store, log),
        Notes(),
        evaluated_at=lambda _batch: 7,
    )
    with pytest.raises(SupersededError):
        authority.confirm(decided())
    assert asked == ["noted, newest term 1"]


def test_a_promise_for_another_range_is_not_kept_with_ours() -> None:
    """Found by the model: a driver that was superseded had decided a number that we plan later."""
    broker = FakeBroker()
    log = decision_log()
    running = driver(FakeSink(broker), broker, log)
    running(FakeFrame(["a"]), 0)
    log._store.put("offsets/1", OFFSETS.encode())
    assert log.record(decided(1, offsets=OTHER))
    with pytest.raises(SupersededError, match="promised for another range"):
        running(FakeFrame(["b"]), 1)
    assert broker.visible() == ["a"]


class Remembering:
    """Says what is noted; more of it once the term is taken."""

    def __init__(self, store: CheckpointStore, *, owner: str = "memory") -> None:
        self.store = store
        self.owner = owner
        self.noted_late: Note | None = None

    def claim(self, _owner: Owner) -> None: ...

    def open(self) -> tuple[Any, ...]:
        return ()

    @property
    def members(self) -> tuple[Member, ...]:
        return (kafka_member(),)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        noted = self.noted_late if newest_term(self.store) else None
        notes = () if noted is None else (structs.replace(noted, pipeline=asking.pipeline),)
        return (Ownership("it", Owner(asking.pipeline, self.owner), notes),)


def start(
    store: CheckpointStore, participant: Any, monkeypatch: pytest.MonkeyPatch, **asked: Any
) -> None:
    for step in ("gather", "make_plan", "execute"):
        monkeypatch.setattr(takeover, step, lambda *_given, **_known: None)
    takeover.take_over(store, DecisionLog(store), participant, driver="we", **asked)


def test_a_driver_that_is_refused_stops_nobody(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OwnershipError):
        start(store, Remembering(store, owner="elsewhere"), monkeypatch)
    assert newest_term(store) == 0


def test_what_was_noted_while_we_took_the_term_refuses_an_older_copy(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Remembering(store)
    participant.noted_late = Note(7, 1, "b" * 32, "")
    with pytest.raises(OwnershipError, match="older copy"):
        start(store, participant, monkeypatch)


def test_who_was_let_in_while_another_still_drove_is_asked_again_before_the_term(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood by; meanwhile the name went to another pipeline."""
    participant: Any = Remembering(store)
    admitted = takeover.require_admitted(store, participant, "we", None)
    participant.owner = "elsewhere"
    with pytest.raises(OwnershipError):
        start(store, participant, monkeypatch, admitted=admitted)
    assert newest_term(store) == 0


def test_what_an_empty_checkpoint_went_on_from_is_not_gone_on_from_once_another_began_it(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood by while another delivered the first batch: forgetting that lets a copy in."""

    class Began:
        def former(self, _pipeline: str) -> None: ...

        def begin(self) -> None: ...

    class Inheriting(Remembering):
        inherited = False

        def inherit(self, _owner: Owner) -> None:
            self.inherited = True

    participant: Any = Inheriting(store)
    pipeline, _, forgotten = takeover.require_admitted(store, participant, "we", None)
    before = (pipeline, Former("another", None), forgotten)
    start(store, participant, monkeypatch, admitted=before, progress=Began())
    assert not participant.inherited

"""The protocol with one rule broken: each function breaks one, in the test process only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.core.checkpoint import (
    CheckpointStore,
    OffsetLog,
    Tenure,
    drain,
    heartbeat,
    layout,
    liveness,
    offsets,
    snapshot,
    terms,
)
from airflow_eos.core.checkpoint import backend as paths
from airflow_eos.core.checkpoint import standby as records
from airflow_eos.core.delivery import replay, standby, takeover
from airflow_eos.core.delivery.batch import Attempts, Authority, ExactlyOnceBatch
from airflow_eos.core.protocol.decision import Outcome, encode
from airflow_eos.core.protocol.participant import Owner, Ownership, StartFacts
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.core.recovery import execute as execution
from airflow_eos.core.recovery import facts, plan
from airflow_eos.errors import KafkaUnavailableError, SupersededError
from airflow_eos.kafka import participant
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions import coordinator as ending
from airflow_eos.kafka.transactions import listing
from airflow_eos.kafka.transactions.coordinator import (
    EndResult,
    TransactionCoordinator,
    end_transactions,
)
from airflow_eos.kafka.transactions.outcomes import outcomes
from tests.model import who_drives, world
from tests.model.ledger import SteppedLedger
from tests.model.scheduler import current
from tests.support.pipelines import owner_at

Mutation = Callable[[pytest.MonkeyPatch], None]


def no_decision(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: rows are committed and no decision was written."""
    patch.setattr(ExactlyOnceBatch, "_decide", lambda *_: None)


def settled_before_decided(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: the right steps in the wrong order."""
    decide = ExactlyOnceBatch._decide

    def settle_first(self: Any, batch: int, attempt: int, transactions: Any) -> None:
        self._settle(batch, transactions)
        decide(self, batch, attempt, transactions)

    patch.setattr(ExactlyOnceBatch, "_decide", settle_first)


def decision_overwrites(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: a store without create-if-absent."""

    def put(self: Any, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    patch.setattr(CheckpointStore, "create", put)


def no_seal_at_the_start(patch: pytest.MonkeyPatch) -> None:
    """A starting driver trusts that nobody else runs: it only reads."""

    def unsealed(self: Attempts, batch: int) -> Any:
        self.offsets = self.authority.begin(batch)
        return self._decisions.of_batch(batch)

    patch.setattr(Attempts, "begin", unsealed)


def no_terms(patch: pytest.MonkeyPatch) -> None:
    """Terms: nobody looks whether he is still the newest; sealing alone."""
    patch.setattr(Tenure, "require", lambda *_: None)


def newer_terms_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """Terms: only Spark's own logs are asked."""
    patch.setattr(
        Tenure, "require", lambda self, batch: terms.require_in_flight(self.store, batch, "driver")
    )


def no_look_before_the_tasks(patch: pytest.MonkeyPatch) -> None:
    """Terms: the first of the two looks is left out."""
    begin = Authority.begin

    def unlooked(self: Authority, batch: int) -> str:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Tenure, "require", lambda *_: None)
            return begin(self, batch)

    patch.setattr(Authority, "begin", unlooked)


def no_look_before_the_commits(patch: pytest.MonkeyPatch) -> None:
    """Terms: a decision is enough, also in a place that was pruned."""
    patch.setattr(
        Authority, "confirm", lambda self, decision: self._notes.note(decision, self._owner)
    )


def honoured_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """Terms: a decision that is found is settled at once."""
    fulfil = ExactlyOnceBatch._fulfil

    def blindly(self: Any, promise: Any, df: Any, batch_id: int, *, attempt: int) -> None:
        confirm, self._authority.confirm = self._authority.confirm, lambda _: None
        commit = self._participant.commit

        def then_look(*given: Any) -> Any:
            self._authority.confirm = confirm
            return commit(*given)

        self._participant.commit = then_look
        fulfil(self, promise, df, batch_id, attempt=attempt)

    patch.setattr(ExactlyOnceBatch, "_fulfil", blindly)


def the_log_is_not_listed(patch: pytest.MonkeyPatch) -> None:
    """Terms: whoever holds the newest term need not be at the newest batch."""
    patch.setattr(terms, "require_in_flight", lambda *_: None)


def term_is_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    """Terms: a place that was pruned is taken for the newest."""

    def take(store: Any, *, taken_by: str) -> Any:
        while True:
            term = terms.Term(
                number=terms.newest_term(store) + 1, nonce="0", taken_by=taken_by, taken_at_ms=0
            )
            if store.create(paths.term_path(term.number), encode(term)):
                known = layout.numbers_in(store, paths.DRIVERS, "term")
                store.delete(paths.term_path(n) for n in known if n < term.number)
                return Tenure(store, term)

    patch.setattr(takeover, "take_term", take)


def term_without_a_nonce(patch: pytest.MonkeyPatch) -> None:
    """Terms: a number is enough; a copy put back in place gives two drivers the same."""

    def require(self: Tenure, batch: int) -> None:
        newest = terms.newest_term(self.store)
        if newest != self.term.number:
            raise SupersededError("by number")
        terms.require_in_flight(self.store, batch, "driver")

    patch.setattr(Tenure, "require", require)


def log_read_before_the_term(patch: pytest.MonkeyPatch) -> None:
    """Terms: recovery reads decisions first, then the term is taken."""

    def take_over(
        store: Any, decisions: Any, participant: Any, *, driver: str, **_after: Any
    ) -> Any:
        participant.claim(owner_at(store.location))
        read = facts.gather(store, participant)
        tenure = terms.take_term(store, taken_by=driver)
        made = plan.make_plan(read)
        patched = pytest.MonkeyPatch()
        patched.setattr(execution, "read_facts", lambda *_given, **_known: read)
        try:
            execution.execute(made, store, participant, force=True, executed_by=driver)
        finally:
            patched.undo()
        return tenure, OffsetLog(store, decisions)

    patch.setattr(world, "take_over", take_over)


def offsets_from_the_file(patch: pytest.MonkeyPatch) -> None:
    """Offsets: what stands in the file is taken for what was evaluated."""
    patch.setattr(OffsetLog, "evaluated", lambda self, batch, _at: self._content(batch) or "gone")


def offsets_not_repaired(patch: pytest.MonkeyPatch) -> None:
    """Offsets: a starting driver takes Spark's log as it is, and its first batch too."""
    patch.setattr(OffsetLog, "repair", lambda *_: None)
    patch.setattr(OffsetLog, "require_as_decided", lambda *_: None)


def first_batch_does_not_verify(patch: pytest.MonkeyPatch) -> None:
    """Offsets: repaired is taken for read."""
    patch.setattr(OffsetLog, "require_as_decided", lambda *_: None)


def empty_batches_are_not_decided(patch: pytest.MonkeyPatch) -> None:
    """Offsets: a batch without rows has no decision, so nobody knows its end."""
    decide = ExactlyOnceBatch._decide

    def with_rows(self: Any, batch: int, attempt: int, transactions: Any) -> None:
        if transactions:
            decide(self, batch, attempt, transactions)

    patch.setattr(ExactlyOnceBatch, "_decide", with_rows)


def nothing_is_noted(patch: pytest.MonkeyPatch) -> None:
    """Ownership: an older copy of the checkpoint cannot be told from the newest."""
    patch.setattr(SteppedLedger, "note", lambda *_: None)


def noted_after_the_look(patch: pytest.MonkeyPatch) -> None:
    """Ownership: note and look the other way round."""

    def confirm(self: Authority, decision: Any) -> None:
        self._tenure.require(decision.batch_id)
        self._notes.note(decision, self._owner)

    patch.setattr(Authority, "confirm", confirm)


def notes_read_before_the_term_only(patch: pytest.MonkeyPatch) -> None:
    """Ownership: the second reading is left out."""
    patch.setattr(SteppedLedger, "read", lambda _self: Ownership("the prefix"))


def recovery_notes_nothing(patch: pytest.MonkeyPatch) -> None:
    """Ownership: a recovery commits what its dead driver had not noted yet."""
    note = SteppedLedger.note

    def drivers_only(self: Any, decision: Any, owner: Any) -> None:
        process = current()
        if process is None or not process.name.startswith("recovery"):
            note(self, decision, owner)

    patch.setattr(SteppedLedger, "note", drivers_only)


def memory_is_not_noted_anew(patch: pytest.MonkeyPatch) -> None:
    """Memory that is gone: a start goes on as if it had never been remembered.

    The output, which is the second witness, would still refuse the older copy: it is not asked.
    """
    patch.setattr(takeover, "_note_anew", lambda *_: None)
    patch.setattr(KafkaParticipant, "later_than", lambda *_: "")


def ids_of_others_are_ours(patch: pytest.MonkeyPatch) -> None:
    """First start: whatever has our prefix and two numbers is ended as ours."""
    patch.setattr(listing, "belongs_to_prefix", lambda each, prefix: each.startswith(prefix))
    patch.setattr(StartFacts, "owns_nothing", False)


def a_place_is_an_identity(patch: pytest.MonkeyPatch) -> None:
    """Identity: whoever is where the claim says is its pipeline."""
    patch.setattr(Owner, "at", classmethod(lambda cls, _, location: cls("one", location)))


def an_id_is_a_place(patch: pytest.MonkeyPatch) -> None:
    """Identity: a copy with the same id is let in wherever it is."""
    patch.setattr(Ownership, "require_place", lambda *_: None)


def gives_up_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: a sleeper whose attempt failed seals a pruned place, and ends what is promised."""
    patch.setattr(Authority, "require", lambda *_: None)


def recovery_aborts_promises(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: recovery takes whatever is open for a leftover."""
    patch.setattr(facts.Facts, "named", property(lambda _facts: ()))


def recovery_reads_before_it_lists(patch: pytest.MonkeyPatch) -> None:
    """The order of the proof: what is listed late may be named meanwhile."""
    real = facts.read_facts
    early: dict[Any, Any] = {}

    def gather(store: Any, participant: Any, **_asked: Any) -> Any:
        read = real(store, participant, ())
        listed = participant.open()
        early[current()] = _replaced(read, listed=listed)
        return early[current()]

    def as_read_before(*given: Any, **known: Any) -> Any:
        return early.pop(current(), None) or real(*given, **known)

    patch.setattr(world, "gather", gather)
    patch.setattr(takeover, "gather", gather)
    patch.setattr(execution, "read_facts", as_read_before)


def recovery_does_not_seal(patch: pytest.MonkeyPatch) -> None:
    """Recovery aborts what is not named yet, and leaves the attempt open."""

    def unsealed(given: Any, store: Any, participant: Any, **_options: Any) -> Any:
        read = facts.read_facts(store, participant, given.listed, listed_batch=given.batch_id)
        return read, plan.make_plan(read), None

    patch.setattr(execution, "_sealed", unsealed)


def replay_pairs_by_number(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: task 1 is taken for task 1, whatever it reads after a restart."""

    def by_number(tasks: Any, delivered: Any) -> list[int]:
        done = {int(work.key.split("-")[-4]) for work in delivered}
        return [task.task for task in tasks if task.rows and task.task not in done]

    patch.setattr(replay, "undelivered_tasks", by_number)
    patch.setattr(Promise, "check_replay", lambda *_: None)


def replay_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: by number, and the sum of the fingerprints is never looked at; the query changed."""
    patch.setattr(Promise, "check_whole", lambda *_: None)
    patch.setattr(Promise, "check_replay", lambda *_: None)
    patch.setattr(replay, "undelivered_tasks", _by_row_count)


def replay_of_everything(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: what is delivered is written again."""
    patch.setattr(replay, "undelivered_tasks", lambda tasks, _: [t.task for t in tasks if t.rows])
    patch.setattr(Promise, "check_replay", lambda *_: None)


def lost_reply_means_aborted(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: an exception is read as an outcome."""
    _settle_with(patch, _reading_exceptions_as(Outcome.ABORTED))


def lost_reply_means_committed(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: an exception is read as success, and nobody looks whether it is so."""
    _settle_with(patch, _reading_exceptions_as(Outcome.COMMITTED))
    patch.setattr(f"{KafkaParticipant.__module__}.require_committed_everywhere", lambda *_: set())


def unknown_is_guessed_committed(patch: pytest.MonkeyPatch) -> None:
    """Nobody knows the outcome, and it is taken for delivered."""
    _unknown_becomes(patch, Outcome.COMMITTED)


def unknown_is_guessed_aborted(patch: pytest.MonkeyPatch) -> None:
    """Nobody knows the outcome, and it is replayed."""
    _unknown_becomes(patch, Outcome.ABORTED)


def fenced_means_aborted(patch: pytest.MonkeyPatch) -> None:
    """PRODUCER_FENCED is read as an outcome; the log is not asked."""

    def by_answer(wire: Any, transactions: Any, **_options: Any) -> Any:
        ended = end_transactions(wire, [t.identity for t in transactions], commit=True)
        return {
            i: Outcome.COMMITTED if result is EndResult.DONE else Outcome.ABORTED
            for i, result in ended.items()
        }

    _settle_with(patch, by_answer)


def abort_takes_the_id(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: InitProducerId instead of EndTxn; it hits whoever holds the id by now."""

    def by_id(wire: Any, identities: Any, *, commit: bool, deadline_s: float = 60.0) -> Any:
        if commit:
            return end_transactions(wire, identities, commit=True, deadline_s=deadline_s)
        for identity in identities:
            TransactionCoordinator(wire).init(identity.transactional_id, world.TIMEOUT_MS)
        return dict.fromkeys(identities, EndResult.DONE)

    for caller in (participant, world):
        patch.setattr(caller, "end_transactions", by_id)


def ids_taken_before_settled(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: a promise is replayed without asking what became of it."""
    patch.setattr(
        KafkaParticipant, "commit", lambda _self, promised: _all(promised, Outcome.ABORTED)
    )


def promise_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Step 1: a batch that was promised is delivered as if it were new."""
    patch.setattr(Promise, "of", classmethod(lambda *_: None))


def a_request_to_who_was_followed_is_removed(patch: pytest.MonkeyPatch) -> None:
    """Around a pipeline: a person's drain is lost while a standby takes over."""
    patch.setattr(drain.Beginning, "is_before", lambda *_: False)


def a_request_to_a_term_that_is_over_stays_so(patch: pytest.MonkeyPatch) -> None:
    """Around a pipeline: who asks does not look whether a term was taken meanwhile."""

    def once(store: Any, **asked: Any) -> Any:
        return drain.request_drain(store, term=terms.newest_term(store) or None, **asked)

    patch.setattr(who_drives, "drain_newest", once)


def a_request_goes_with_the_hand_over_that_it_replaced(patch: pytest.MonkeyPatch) -> None:
    """Around a pipeline: what a driver takes back is deleted, whatever stands there by then."""
    patch.setattr(drain, "_put_back", lambda *_: None)


def damage_begins_the_watch_anew(patch: pytest.MonkeyPatch) -> None:
    """Around a pipeline: a standby waits for ever behind a damaged heartbeat."""
    read = liveness.read_sign

    def sound(store: Any) -> Any:
        heartbeat.read_heartbeat(store)
        return read(store)

    patch.setattr(standby, "read_sign", sound)


def who_was_ready_once_is_ready(patch: pytest.MonkeyPatch) -> None:
    """Around a pipeline: handed over to one that has died."""
    patch.setattr(records.StandbySeen, "lives", True)


def loss_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a promised transaction that timed out is not missed."""
    patch.setattr(Promise, "missing_rows", lambda *_: 0)


def nothing_is_synced(patch: pytest.MonkeyPatch) -> None:
    """Durable entries: a decision is created on what a power cut may take."""
    patch.setattr(Authority, "require_durable", lambda *_: None)


def nothing_is_mended(patch: pytest.MonkeyPatch) -> None:
    """Durable entries: what is not whole is left to Spark."""
    patch.setattr(offsets, "mend", lambda *_: None)
    patch.setattr(execution, "mend", lambda *_: None)


def continuity_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Continuity: a batch begins where Spark's log says."""
    patch.setattr(snapshot, "require_continuous", lambda *_: None)
    patch.setattr(offsets, "require_continuous", lambda *_: None)


def what_is_left_is_written_whole(patch: pytest.MonkeyPatch) -> None:
    """Nothing owed: a batch that a person accepted delivers what its input has and no reader."""
    patch.setattr(
        replay,
        "_what_is_left",
        lambda sink, name, evaluated, *_: (
            replay.Replay(name, sink, sink.rows(evaluated), None),
            0,
        ),
    )


def expired_promises_are_committed(patch: pytest.MonkeyPatch) -> None:
    """Retention has deleted their rows while they were open: readers never get them."""
    patch.setattr(participant, "abort_expired", lambda *_: set())


def what_no_timer_ends_is_left_to_it(patch: pytest.MonkeyPatch) -> None:
    """Nobody aborts what was never decided, as a timeout did."""
    patch.setattr(KafkaParticipant, "abort", lambda _self, works: dict.fromkeys(works, True))


LOSSY: tuple[Mutation, ...] = (what_is_left_is_written_whole,)
"""What histories show whose input forgets rows."""

WHO_DRIVES: tuple[Mutation, ...] = (
    a_request_to_who_was_followed_is_removed,
    a_request_to_a_term_that_is_over_stays_so,
    a_request_goes_with_the_hand_over_that_it_replaced,
    damage_begins_the_watch_anew,
    who_was_ready_once_is_ready,
)
"""What histories of ``who_drives.py`` show."""

ON_A_DISK: tuple[Mutation, ...] = (nothing_is_synced, nothing_is_mended, continuity_is_not_asked)
"""What histories on a disk show, where power is cut and somebody skips a batch."""

MUTATIONS: tuple[Mutation, ...] = (
    no_decision,
    settled_before_decided,
    decision_overwrites,
    no_terms,
    no_look_before_the_tasks,
    no_look_before_the_commits,
    log_read_before_the_term,
    offsets_not_repaired,
    nothing_is_noted,
    notes_read_before_the_term_only,
    recovery_aborts_promises,
    recovery_reads_before_it_lists,
    recovery_does_not_seal,
    replay_pairs_by_number,
    replay_is_not_checked,
    replay_of_everything,
    lost_reply_means_aborted,
    lost_reply_means_committed,
    fenced_means_aborted,
    unknown_is_guessed_aborted,
    abort_takes_the_id,
    ids_taken_before_settled,
    promise_is_forgotten,
    loss_is_ignored,
)
"""What a search through some hundred histories shows."""

TWO_PHASE: tuple[Mutation, ...] = (
    expired_promises_are_committed,
    what_no_timer_ends_is_left_to_it,
)
"""What histories show whose cluster offers transactions that no timer ends."""

RARE: tuple[Mutation, ...] = (
    no_seal_at_the_start,
    honoured_without_a_look,
    the_log_is_not_listed,
    term_is_not_looked_at_again,
    term_without_a_nonce,
    offsets_from_the_file,
    first_batch_does_not_verify,
    empty_batches_are_not_decided,
    noted_after_the_look,
    recovery_notes_nothing,
    memory_is_not_noted_anew,
    ids_of_others_are_ours,
    a_place_is_an_identity,
    an_id_is_a_place,
    gives_up_without_a_look,
    newer_terms_do_not_count,
    unknown_is_guessed_committed,
)
"""What takes thousands of histories or more: ``test_rare.py`` has one of each, made by hand.

Without the seal nothing comes twice since there are terms: it keeps a start from fencing what may
be promised, which would have to be replayed.
"""

HARMLESS_ALONE = frozenset({term_is_not_looked_at_again})
"""Whoever filled a place below a newer term is superseded at his first look, before his first task.

Looking at once spares the other driver the attempt that such a start would seal. It falls by a test
of its own (``terms-…`` in ``tests/mutants/catalogue.toml``).
"""


def _by_row_count(tasks: Any, delivered: Any) -> list[int]:
    done = [t.rows for t in delivered]
    left = []
    for task in tasks:
        if task.rows in done:
            done.remove(task.rows)
        elif task.rows:
            left.append(task.task)
    return left


def _reading_exceptions_as(guess: Outcome) -> Any:
    real = participant.settle

    def guessing(wire: Any, transactions: Any, **options: Any) -> Any:
        found: dict[Any, Outcome] = {}
        for transaction in transactions:
            identity = transaction.identity
            asked = ending._end_once(wire, [identity], commit=True, deadline=Deadline(1e9))
            if isinstance(asked[identity], KafkaUnavailableError):
                found[identity] = guess
            else:
                found |= real(wire, [transaction], **options)
        return found

    return guessing


def _settle_with(patch: pytest.MonkeyPatch, function: Any) -> None:
    patch.setattr(participant, "settle", function)


def _unknown_becomes(patch: pytest.MonkeyPatch, guess: Outcome) -> None:
    real = outcomes

    def guessed(wire: Any, transactions: Any, **options: Any) -> Any:
        found = real(wire, transactions, **options)
        return {i: guess if o is Outcome.UNKNOWN else o for i, o in found.items()}

    patch.setattr(participant, "outcomes", guessed)


def _all(transactions: Any, outcome: Outcome) -> Any:
    return {t.identity: outcome for t in transactions}


def _replaced(read: Any, **changes: Any) -> Any:
    fields = {name: getattr(read, name) for name in type(read).__slots__}
    return facts.Facts(**(fields | changes))


# --- known ----------------------------------------------------------------------------------------
# For each broken rule the history that shows it: a search of minutes, found once.


KNOWN = Path(__file__).with_name("known.json")
"""``{rule: seed}``; ``python -m tests.model --learn`` writes it again."""

AT_MOST = 3_000
"""Histories that are tried for a rule before it counts as one that nothing shows."""


def known() -> dict[str, int]:
    """The seeds; a rule that is not in it is searched for."""
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}

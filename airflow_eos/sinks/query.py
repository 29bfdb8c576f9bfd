"""One batch, on the driver: look, prepare, check, decide, settle, replay.

This is where a reader starts. The steps are those of the protocol; the tasks of a batch are in
``sinks/task.py`` and ``sinks/kafka/sink.py``, a batch that was promised before in ``replay.py``,
the decision itself in ``checkpoint/decisions.py``, whether we are still the newest driver in
``checkpoint/terms.py``, the end of a transaction in ``kafka/transactions/settle.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint import DecisionLog
from airflow_eos.errors import PromiseLostError, SupersededError
from airflow_eos.failpoints import failpoint
from airflow_eos.protocol.decision import Outcome, PreparedWork, WorkIdentity
from airflow_eos.protocol.participant import Participant
from airflow_eos.protocol.promise import Outcomes, Promise
from airflow_eos.sinks.attempts import Attempts
from airflow_eos.sinks.following import Following
from airflow_eos.sinks.port import BatchSink, Progress
from airflow_eos.sinks.replay import Owing, Reading, Replay, replays, rows_owed, say_given_up
from airflow_eos.sinks.reports import require_decidable, works_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import Phase
    from airflow_eos.checkpoint.decisions import PerishableRows
    from airflow_eos.checkpoint.rulings import Acceptance
    from airflow_eos.sinks.authority import Authority

log = structlog.get_logger(__name__)


class ExactlyOnceBatch:
    """The function given to ``foreachBatch``. One instance belongs to one run of the query.

    Args:
        sink: where the rows go.
        participant: ends what the sink prepares.
        decisions: the decision log of the checkpoint.
        authority: whether this driver may still go on.
        rulings: what a person said of work whose outcome nobody can tell any more.
        accepted: what a person said of a batch (its number, its promise's nonce) as a whole.
        driver: names this run for people, in every decision it writes.
        on_phase: told (batch, phase) as the batch goes on; for the heartbeat.
        progress: says what each decision names that follows the rows; None: nothing does.
        kept: rows beside work that its system may end by itself; None: nothing is kept.
        reading: asked before a promised batch is evaluated once more.
    """

    def __init__(
        self,
        sink: BatchSink,
        participant: Participant,
        decisions: DecisionLog,
        authority: Authority,
        *,
        rulings: Callable[[Collection[WorkIdentity]], Mapping[WorkIdentity, Outcome]],
        driver: str,
        on_phase: Callable[[int, Phase], None],
        accepted: Callable[[int, str], Acceptance | None] = lambda _batch, _promise: None,
        progress: Progress | None = None,
        kept: PerishableRows | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._sink = sink
        self._reading = reading or Reading()
        self._participant = participant
        self._attempts = Attempts(decisions, authority, driver, kept)
        self._authority = authority
        self._rulings = rulings
        self._accepted = accepted
        self._on_phase = on_phase
        self._following = Following(participant, progress)

    def streamed(self, df: DataFrame) -> DataFrame:
        """What the streaming query computes of ``df`` for this function."""
        return self._sink.streamed(df)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Deliver batch ``batch_id``; when this returns, every row of it is visible, once.

        Args:
            df: a batch of what ``streamed`` gave.
            batch_id: Spark's number of it.
        """
        decided = self._attempts.begin(batch_id)
        promise = Promise.of(decided)
        if promise is None:
            self._deliver(self._sink.rows(df), batch_id, attempt=len(decided) + 1)
        else:
            self._fulfil(promise, df, batch_id, attempt=len(decided) + 1)
        self._on_phase(batch_id, "waiting")

    def _deliver(self, rows: DataFrame, batch_id: int, *, attempt: int) -> None:
        """Prepare, check, decide and settle all rows of a batch that nobody has promised."""
        followers = self._following.works(batch_id, attempt, self._attempts.offsets)
        works = self._prepared(
            batch_id,
            attempt,
            lambda: works_of(batch_id, self._sink.names, self._sink.prepare(rows)),
        )
        self._decide(batch_id, attempt, [*works, *followers])
        self._settle(batch_id, works)
        self._following.commit(batch_id, followers)

    def _fulfil(self, promise: Promise, df: DataFrame, batch_id: int, *, attempt: int) -> None:
        """Keep a promise made earlier: settle it, and replay what its timeout took away."""
        if promise.offsets not in (None, self._attempts.offsets):
            raise SupersededError(
                f"Batch {batch_id} was promised for another range of the source than this driver "
                "evaluates. Nothing of ours was made visible and nothing is lost. Make sure that "
                "no other driver runs this checkpoint, then start the query again: it takes the "
                "range that was promised."
            )
        self._authority.confirm(promise.commits[-1])
        self._on_phase(batch_id, "settling")
        accepted = self._accepted(batch_id, promise.nonce)
        outcomes = self._settled(promise, accepted)
        owing = rows_owed(promise, outcomes, accepted)
        log.info("promise_found", batch=batch_id, rows=promise.rows, missing_rows=owing)
        replayed: list[PreparedWork] = []
        if owing:
            owed = Owing(
                promise,
                outcomes,
                owing,
                accepted=accepted is not None,
                kept=self._attempts.kept,
                reading=self._reading,
            )
            with replays(self._sink, df, owed) as missing:
                if missing:
                    replayed = self._prepared(
                        batch_id,
                        attempt,
                        lambda: [work for each in missing for work in self._replayed(owed, each)],
                    )
                    self._decide(batch_id, attempt, replayed)
                    self._settle(batch_id, replayed)
        elif self._reading.state() or promise.offsets is None:
            self._reading.lost_of(promise, (), accepted=accepted is not None)
            # Nothing to write, but Spark's state and watermark of this batch must exist.
            reports = self._sink.prepare(self._sink.rows(df), only=())
            if promise.offsets is None:
                # Format version 1 does not say which range was promised: the content tells.
                promise.check_whole(report.content for report in reports)
        if accepted is not None:
            say_given_up(promise, outcomes, accepted, replayed)
        self._following.commit(batch_id, promise.followers)

    def _settled(self, promise: Promise, accepted: Acceptance | None) -> Outcomes:
        """Commit what is promised and open; what became of all that matters.

        That is the newest COMMIT's work; what became of work before it is asked only where some
        of that is lost, to tell which rows of the batch it is.
        """
        given_up = accepted.given_up if accepted is not None else ()
        outcomes = self._committed(promise.newest, given_up)
        if accepted is not None or promise.owed(outcomes):
            earlier = [work for work in promise.of_rows if work.identity not in outcomes]
            outcomes |= self._committed(earlier, given_up)
        return outcomes

    def _committed(
        self, works: Sequence[PreparedWork], given_up: Collection[WorkIdentity]
    ) -> dict[WorkIdentity, Outcome]:
        outcomes = dict(
            self._participant.commit([work for work in works if work.identity not in given_up])
        )
        outcomes |= self._given_up([work for work in works if work.identity in given_up])
        outcomes.update(self._rulings([i for i, o in outcomes.items() if o is Outcome.UNKNOWN]))
        return outcomes

    def _given_up(self, works: Sequence[PreparedWork]) -> Outcomes:
        """Never committed by us any more; somebody may have been about to."""
        told = self._participant.outcome(works) if works else {}
        return {
            each: outcome if outcome is Outcome.COMMITTED else Outcome.ABORTED
            for each, outcome in told.items()
        }

    def _replayed(self, owing: Owing, missing: Replay) -> list[PreparedWork]:
        """Let tasks write what one participant lacks; with what it has it is what was promised."""
        promise = owing.promise
        reports = missing.sink.prepare(missing.rows, only=missing.only)
        works = works_of(promise.batch_id, missing.sink.names, reports)
        if not owing.accepted:
            promise.part(missing.participant).check_replay(owing.outcomes, works)
        return works

    def _prepared(
        self, batch_id: int, attempt: int, write: Callable[[], list[PreparedWork]]
    ) -> list[PreparedWork]:
        """Let the tasks write; returns their open work, or leaves nothing open."""
        self._on_phase(batch_id, "preparing")
        failpoint("before-prepare")
        try:
            works = write()
        except Exception as error:
            self._give_up(batch_id, attempt, error)
            raise
        failpoint("prepared")
        return works

    def _give_up(
        self, batch_id: int, attempt: int, error: Exception, known: set[WorkIdentity] | None = None
    ) -> None:
        """Leave nothing open behind a failed attempt; ``known``: what is open, None: to be listed.

        List, then seal, then look, then abort what was listed: had another driver opened any of
        it, it would have taken a newer term, and sealed this attempt, before that.
        """
        try:
            opened = self._opened() if known is None else known
            decided = self._attempts.give_up(batch_id, attempt, error) if opened else None
            if decided is not None:
                named = {work.identity for decision in decided for work in decision.works}
                self._participant.abort(opened - named)
        except Exception:
            log.exception("left_open", batch=batch_id, hint="recovery ends them")

    def _decide(self, batch_id: int, attempt: int, works: Sequence[PreparedWork]) -> None:
        ours = {work.identity for work in works}
        leftovers: set[WorkIdentity] = set()
        try:
            leftovers = self._opened(besides=ours)
            # after the listing, which may take long where a broker is away
            require_decidable(self._participant, works)
        except Exception as error:
            self._give_up(batch_id, attempt, error, leftovers | ours)
            raise
        decision = self._attempts.promise(batch_id, attempt, works)
        if isinstance(decision, SupersededError):
            self._abort_if_possible(batch_id, ours)
            raise decision
        failpoint("decided")
        self._authority.confirm(decision)
        if leftovers:  # before settling: in Kafka older open work keeps outcomes back
            self._abort_if_possible(batch_id, leftovers)

    def _abort_if_possible(self, batch_id: int, works: Collection[WorkIdentity]) -> None:
        """Not at the cost of what comes next: where it fails, the next batch finds them again."""
        try:
            self._participant.abort(works)
        except Exception:
            log.exception("left_open", batch=batch_id, hint="the next batch ends them")

    def _settle(self, batch_id: int, works: Sequence[PreparedWork]) -> None:
        self._on_phase(batch_id, "settling")
        outcomes = self._participant.commit(works)
        lost = [w for w in works if outcomes[w.identity] is not Outcome.COMMITTED]
        if lost:
            # Evaluating a stateful batch twice in one process would spoil its state.
            raise PromiseLostError(
                f"Batch {batch_id}: {len(lost)} of {len(works)} promised pieces of work "
                f"({sum(w.rows for w in lost)} rows) are not committed, first {lost[0].identity} "
                f"({outcomes[lost[0].identity].value}). Start the query again: it replays just "
                "what was aborted, and asks where nobody can tell. If a timeout of theirs ends "
                "them often, raise it (transaction_timeout)."
            )
        failpoint("settled")

    def _opened(self, besides: Collection[WorkIdentity] = ()) -> set[WorkIdentity]:
        """What speculative copies, lost task attempts and a former driver's tasks have left open.

        Listed for every batch, since Spark tells of none of them: executors outlive a driver that
        they lost, and what a straggler opens later than this is found by the next batch. Listed
        before the decision, since a driver that takes over takes a newer term before it opens
        anything: where we are still the newest after it, nothing that was listed is another's.

        Where a late copy of a task took the place of one of ``besides``, as Kafka's ids allow,
        that one is over, which settling will find.
        """
        return {found.identity for found in self._participant.open(besides=besides)}

"""Delivery of one batch, on the driver: look, prepare, check, decide, settle, replay.

A reader starts here. The steps are those of the protocol. The tasks of a batch are in
``core/delivery/task.py`` and ``kafka/sink.py``, a batch that was promised before in ``replay.py``,
the decision itself in ``core/checkpoint/decisions.py``, the check that this driver is still the
newest in ``core/checkpoint/terms.py``, the end of a transaction in ``kafka/participant.py``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from airflow_eos.core.checkpoint import Decision, DecisionLog, OffsetLog, Tenure, Verdict
from airflow_eos.core.checkpoint.decisions import sealed
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.delivery.port import SPARK, BatchFunction, BatchSink, OffsetCommit, TaskReport
from airflow_eos.core.delivery.replay import (
    Replay,
    ReplayChecks,
    UnkeptPromise,
    replays,
    rows_owed,
    say_given_up,
)
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import (
    AT_A_START,
    IN_PLACE_OF_A_FORMER,
    MIN_TIME_LEFT,
    Outcome,
    PreparedWork,
    SourceRead,
    WorkIdentity,
    by_time_left,
)
from airflow_eos.core.protocol.participant import Deciding, Participant
from airflow_eos.core.protocol.participant_group import alone, committed, side_by_side
from airflow_eos.core.protocol.promise import Outcomes, Promise
from airflow_eos.errors import ConfigurationError, DeliveryError, PromiseLostError, SupersededError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_eos.core.checkpoint import Phase
    from airflow_eos.core.checkpoint.decisions import PerishableRows
    from airflow_eos.core.checkpoint.rulings import Acceptance
    from airflow_eos.core.protocol.participant import Owner

log = Log(__name__)


class ExactlyOnceBatch(BatchFunction):
    """The function given to ``foreachBatch``. One instance belongs to one run of the query.

    Args:
        sink: writes the rows.
        participant: commits or aborts what the sink prepares.
        decisions: the decision log of the checkpoint.
        authority: tells whether this driver may still go on.
        rulings: returns a person's rulings on work whose outcome nobody can tell any more.
        accepted: returns a person's acceptance of a batch, by its number and its promise's nonce.
        driver: the name of this run for people, in every decision that it writes.
        on_phase: called with (batch, phase) as the batch goes on; for the heartbeat.
        progress: gives the work without rows that each decision names; None: there is none.
        kept: rows kept beside work that its system may end by itself; None: nothing is kept.
        reading: checks the input before a promised batch is evaluated once more.
        reads: returns what a batch reads, by its number and its ``offsets/N``.
        cut: told each promise that is kept, and a person's acceptance of what is missing.
        confirm: raises where the source is not what it was when the tasks began to read.
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
        progress: OffsetCommit | None = None,
        kept: PerishableRows | None = None,
        reading: ReplayChecks | None = None,
        reads: Callable[[int, str], tuple[SourceRead, ...]] = lambda _batch, _offsets: (),
        cut: Callable[[Promise, Acceptance | None], None] = lambda _promise, _accepted: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._reading = reading or ReplayChecks()
        self._participant = participant
        self._attempts = Attempts(decisions, authority, driver, kept, reads)
        self._authority = authority
        self._rulings = rulings
        self._accepted = accepted
        self._on_phase = on_phase
        self._progress = progress
        self._cut = cut
        self._confirm = confirm
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="airflow-eos-confirm")

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Deliver batch ``batch_id``; on return every row of the batch is visible, once.

        Args:
            df: a batch of what :meth:`streamed` gave.
            batch_id: Spark's number of the batch.
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
        followers: Sequence[PreparedWork] = ()
        if self._progress is not None:
            followers = self._progress.works(batch_id, attempt, self._attempts.offsets)
        works = self._prepared(
            batch_id,
            attempt,
            lambda: works_of(batch_id, self._sink.names, self._sink.prepare(rows)),
        )
        decision = self._decide(batch_id, attempt, [*works, *followers])
        self._settle(batch_id, works)
        self._follow(batch_id, followers)
        self._cut(Promise(batch_id, (decision,)), None)

    def _fulfil(self, promise: Promise, df: DataFrame, batch_id: int, *, attempt: int) -> None:
        """Keep an earlier promise: settle it, and replay the rows that a timeout took away."""
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
        decided = promise.commits
        if owing:
            owed = UnkeptPromise(
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
                    decided += (self._decide(batch_id, attempt, replayed),)
                    self._settle(batch_id, replayed)
        elif self._reading.state():
            self._reading.lost_of(promise, {}, accepted=accepted is not None)
            # Nothing to write, but Spark's state and watermark of this batch must exist.
            self._sink.prepare(self._sink.rows(df), only=())
        if accepted is not None:
            say_given_up(promise, outcomes, accepted, replayed)
        self._follow(batch_id, promise.followers)
        self._cut(Promise(batch_id, decided), accepted)

    def _settled(self, promise: Promise, accepted: Acceptance | None) -> Outcomes:
        """Commit promised work that is open; return the outcomes of all work that matters.

        That is the newest COMMIT's work. Earlier work is asked about only where some of the newest
        is lost, or a person accepted the batch, to tell which rows of the batch are missing.
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
        kept = [work for work in works if work.identity not in given_up]
        outcomes = committed(self._participant, kept)
        outcomes |= self._given_up([work for work in works if work.identity in given_up])
        outcomes.update(self._rulings([i for i, o in outcomes.items() if o is Outcome.UNKNOWN]))
        return outcomes

    def _given_up(self, works: Sequence[PreparedWork]) -> Outcomes:
        """Return outcomes of work that this driver will not commit; another driver still may."""
        told = self._participant.outcome(works) if works else {}
        return {
            each: outcome if outcome is Outcome.COMMITTED else Outcome.ABORTED
            for each, outcome in told.items()
        }

    def _replayed(self, owing: UnkeptPromise, missing: Replay) -> list[PreparedWork]:
        """Let tasks write what one participant lacks; refuse work that the promise does not fit."""
        promise = owing.promise
        reports = missing.sink.prepare(missing.rows, only=missing.only)
        works = works_of(promise.batch_id, missing.sink.names, reports)
        if not owing.accepted:
            promise.part(missing.participant).check_replay(owing.outcomes, works)
        return works

    def _prepared(
        self, batch_id: int, attempt: int, write: Callable[[], list[PreparedWork]]
    ) -> list[PreparedWork]:
        """Let the tasks write and return their open work; where that fails, leave nothing open."""
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
        """Leave nothing open behind a failed attempt; ``known``: the open work, None: list it.

        List, then seal, then look, then abort what was listed: had another driver opened any of
        that work, it would have taken a newer term, and sealed this attempt, before that.
        """
        try:
            open_works = self._open_works() if known is None else known
            decided = self._attempts.give_up(batch_id, attempt, error) if open_works else None
            if decided is not None:
                named = {work.identity for decision in decided for work in decision.works}
                self._participant.abort(open_works - named)
        except Exception:
            log.exception("left_open", batch=batch_id, hint="recovery ends them")

    def _decide(self, batch_id: int, attempt: int, works: Sequence[PreparedWork]) -> Decision:
        ours = {work.identity for work in works}
        leftovers: set[WorkIdentity] = set()
        try:
            confirmed = self._beside.submit(self._confirm)  # another system's answer
            leftovers = self._open_works(except_known=ours)
            require_decidable(self._participant, works)
            confirmed.result()
            # after the answers, which may take long where a broker is away
            require_time_left(works, time.time_ns() // 1_000_000)
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
        return decision

    def _abort_if_possible(self, batch_id: int, works: Collection[WorkIdentity]) -> None:
        """Abort work, but raise nothing: where it fails, the next batch finds the work again."""
        try:
            self._participant.abort(works)
        except Exception:
            log.exception("left_open", batch=batch_id, hint="the next batch ends them")

    def _settle(self, batch_id: int, works: Sequence[PreparedWork]) -> None:
        self._on_phase(batch_id, "settling")
        outcomes = committed(self._participant, works)
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

    def _follow(self, batch_id: int, works: Sequence[PreparedWork]) -> None:
        """Commit the progress of a batch that is complete or was accepted as incomplete."""
        if not works:
            return
        failpoint("following")
        outcomes = committed(self._participant, works)
        late = [work for work in works if outcomes[work.identity] is not Outcome.COMMITTED]
        if late:
            raise DeliveryError(
                f"Batch {batch_id} is delivered, and {late[0].identity} does not say so. Start the "
                "query again: it says it before it goes on."
            )
        failpoint("followed")

    def _open_works(self, except_known: Collection[WorkIdentity] = ()) -> set[WorkIdentity]:
        """List work that speculative copies, lost task attempts or a former driver left open.

        Listed for every batch, since Spark tells of none of them: executors outlive a driver that
        they lost, and what a straggler opens after this listing is found by the next batch. Listed
        before the decision, since a driver that takes over takes a newer term before it opens
        anything: where we are still the newest after it, no listed work is another driver's.

        Where a late copy of a task took the place of work in ``except_known``, as Kafka's ids
        allow, that work is over, which settling will find. Work that another program's is told by
        is left to that program, and to a person.
        """
        return {
            e.identity for e in self._participant.open(except_known=except_known) if not e.whose
        }


class Attempts:
    """The attempts of this driver, as it writes them into the decision log.

    Args:
        decisions: the decision log of the checkpoint.
        authority: tells whether this driver may still go on.
        driver: the name of this run for people, in every decision that it writes.
        kept: the rows kept beside the work of attempts; None: nothing is ever kept.
        reads: returns what a batch reads, by its number and its ``offsets/N``.
    """

    def __init__(
        self,
        decisions: DecisionLog,
        authority: Authority,
        driver: str,
        kept: PerishableRows | None = None,
        reads: Callable[[int, str], tuple[SourceRead, ...]] = lambda _batch, _offsets: (),
    ) -> None:
        self.authority = authority
        self.kept = kept
        self.offsets = ""
        """The ``offsets/N`` that the running batch is evaluated with."""
        self._reads = reads
        self._read: tuple[SourceRead, ...] = ()
        self._decisions = decisions
        self._driver = driver
        self._alone = False

    def begin(self, batch_id: int) -> tuple[Decision, ...]:
        """Seal a former driver's attempt at the batch, and return the decisions of the batch.

        Only the first batch of a run can have such an attempt: a driver that planned a later batch
        finds our term when it looks. Sealing before anything is prepared means that this run never
        takes away what may still be promised.

        Where anybody has sealed, we look once more, now that our attempt's number is settled: a
        newer driver of another guarantee takes just this attempt, after its term, and relies on it.

        Rows that sealed attempts kept are removed. They are listed before the look: a newer driver
        takes its term before it keeps rows, so where we are still the newest, none is another's.

        Raises:
            SupersededError: this driver is not the newest any more; do nothing.
        """
        left = self.kept.listed(batch_id) if self.kept is not None and not self._alone else ()
        self.offsets = self.authority.begin(batch_id)
        self._read = self._reads(batch_id, self.offsets)
        decided = self._decisions.of_batch(batch_id)
        while not self._alone:
            attempt = len(decided) + 1
            former = self.authority.follows_another(batch_id)
            reason = IN_PLACE_OF_A_FORMER if former else AT_A_START
            self._alone = self._seal(batch_id, attempt, reason)
            decided = self._decisions.of_batch(batch_id)
            if not self._alone and len(decided) < attempt:
                raise self._superseded(batch_id, attempt, decided)
            failpoint("sealed")
        if not decided or Promise.of(decided) is not None:
            return decided  # the caller looks again before it keeps a promise
        self.authority.require(batch_id)
        if self.kept is not None and left:
            self.kept.remove(left)
        return decided

    def promise(
        self, batch_id: int, attempt: int, works: Sequence[PreparedWork]
    ) -> Decision | SupersededError:
        """Decide COMMIT; return the error where another driver has decided this attempt.

        What the decision rests on is made durable first.
        """
        self.authority.require_durable()
        decision = Decision(
            batch_id=batch_id,
            attempt=attempt,
            verdict=Verdict.COMMIT,
            works=tuple(works),
            offsets=self.offsets,
            read=self._read,
            term=self.authority.term,
            decided_by=self._driver,
            decided_at_ms=time.time_ns() // 1_000_000,
            nonce=uuid.uuid4().hex,
        )
        if self._decisions.record(decision):
            return decision
        return self._superseded(batch_id, attempt, self._decisions.of_batch(batch_id))

    def give_up(self, batch_id: int, attempt: int, error: Exception) -> tuple[Decision, ...] | None:
        """Seal our own attempt, then look; return the batch's decisions, None: another decided it.

        Raises:
            SupersededError: the seal stands in a place that was pruned, so it seals nothing.
        """
        if not self._seal(batch_id, attempt, f"failed: {type(error).__name__}"):
            return None
        self.authority.require(batch_id)
        return self._decisions.of_batch(batch_id)

    def _seal(self, batch_id: int, attempt: int, reason: str) -> bool:
        return self._decisions.record(
            sealed(
                batch_id,
                attempt,
                reason=reason,
                decided_by=self._driver,
                term=self.authority.term,
            )
        )

    def _superseded(
        self, batch_id: int, attempt: int, decided: Sequence[Decision]
    ) -> SupersededError:
        """Return the error for an attempt that another driver decided, with what to do about it."""
        if len(decided) < attempt:
            return SupersededError(
                f"Batch {batch_id}, attempt {attempt}: the batch is over and its decisions are "
                "pruned. What we wrote was not made visible and nothing is lost. Another driver "
                "runs this checkpoint: find it and keep one of the two."
            )
        theirs = decided[attempt - 1]
        advice = (
            "Start the query again."
            if theirs.decided_by.startswith("recovery")
            else "Another driver runs this checkpoint: find it and keep one of the two."
        )
        return SupersededError(
            f"Batch {batch_id}, attempt {attempt}: decided {theirs.verdict.name} by "
            f"{theirs.decided_by} ({theirs.reason or 'no reason given'}). What we wrote "
            f"was not made visible and nothing is lost. {advice}"
        )


# --- reports --------------------------------------------------------------------------------------
# The tasks' reports to the driver, checked to be complete.


def works_of(
    batch_id: int, participants: Collection[str], reports: Sequence[TaskReport]
) -> list[PreparedWork]:
    """Return the open work of all tasks, checked to be the whole batch for each participant."""
    for name in participants:
        check_tasks(batch_id, [report for report in reports if report.participant == name])
    return [report.work for report in reports if report.work]


def check_tasks(batch_id: int, reports: Sequence[TaskReport]) -> None:
    """Refuse a batch without exactly one report for every task.

    Raises:
        DeliveryError: a task reported twice or not at all.
    """
    tasks = [report.task for report in reports]
    if tasks != list(range(len(tasks))):
        raise DeliveryError(
            f"Batch {batch_id}: results came from tasks {tasks}, expected each of "
            f"0 to {len(tasks) - 1} once. Nothing was decided; the batch runs again."
        )


def require_decidable(participant: Participant, works: Sequence[PreparedWork]) -> None:
    """Refuse to promise work whose commit would show other rows; all are asked at once.

    Raises:
        DeliveryError: the work must not be promised; nothing was decided.
    """

    def ask(each: Deciding, names: Collection[str]) -> None:
        each.require_decidable([work for work in works if work.participant in names])

    side_by_side(
        partial(ask, cast("Deciding", each), {member.name for member in each.members})
        for each in alone(participant)
        if hasattr(each, "require_decidable")
    )


def require_time_left(works: Sequence[PreparedWork], now_ms: int) -> None:
    """Refuse to promise work that its system is about to end, while other work would be settled.

    Raises:
        DeliveryError: less than a tenth of its timeout is left to some work.
    """
    for work in sorted(works, key=by_time_left):
        if work.timeout_ms is None or work.ends_at_ms is None:
            return
        left_ms = work.ends_at_ms - now_ms
        if left_ms < work.timeout_ms * MIN_TIME_LEFT:
            raise DeliveryError(
                f"{work.identity} was opened {(now_ms - work.opened_at_ms) / 1000:.1f} s ago, and "
                f"its system ends it after {work.timeout_ms / 1000:.1f} s: too little is left to "
                "promise it. Nothing was decided; the batch runs again, over the same range. Where "
                "batches take that long, raise the timeout (transaction_timeout of KafkaSink) and "
                "make later ones smaller (maxOffsetsPerTrigger)."
            )


# --- authority ------------------------------------------------------------------------------------
# Checks that this driver holds the newest term and that its plan matches Spark's offset log.
#
# Asked twice a batch: after Spark has planned it and before the first task (a superseded driver's
# tasks would overwrite Spark's state files), and after the decision that is relied on was created
# or read, before anything becomes visible.


_STARTED_WITHIN_S = 60.0


class ExternalFencing(Protocol):
    """The systems that remember, outside the checkpoint, which decisions were relied on."""

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision, and wait until the note is acknowledged."""
        ...


class Authority:
    """One driver's right to deliver.

    Args:
        tenure: the driver's term.
        offsets: Spark's offset log, compared with the decisions.
        notes: notes the decisions it delivers; see :mod:`airflow_eos.kafka.transactions.ownership`.
        evaluated_at: returns Spark's time stamp (ms) of the batch that it evaluates now.
    """

    def __init__(
        self,
        tenure: Tenure,
        offsets: OffsetLog,
        notes: ExternalFencing,
        *,
        evaluated_at: Callable[[int], int],
    ) -> None:
        self._tenure = tenure
        self._owner = owner_of(tenure.store)
        self._offsets = offsets
        self._notes = notes
        self._evaluated_at = evaluated_at
        self._is_first = True
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="airflow-eos-sync")
        self._durable: Future[None] = Future()

    @property
    def term(self) -> int:
        """The number of the driver's term."""
        return self._tenure.term.number

    def begin(self, batch_id: int) -> str:
        """Look before the first task; return the ``offsets/N`` that the batch is evaluated with.

        The log is read before the look, so the look finds what a newer driver repairs in between.

        Raises:
            SupersededError: a newer driver runs; do nothing, not even clean up.
        """
        content = self._offsets.evaluated(batch_id, self._evaluated_at(batch_id))
        if self._is_first:
            # Where Spark began to read: later batches follow from this one in its own memory.
            # Where this batch was promised before, its promise is compared with ``content``.
            if batch_id:
                self._offsets.require_begins_where_promised(batch_id)
            self._is_first = False
        self._tenure.require(batch_id)
        # Beside the tasks, which take longer than a disk.
        self._durable = self._syncing.submit(self._offsets.make_durable, batch_id)
        return content

    def follows_another(self, batch_id: int) -> bool:
        """Whether a former driver planned the batch; by the clocks of both, so for people."""
        return self._evaluated_at(batch_id) < self._tenure.term.taken_at_ms

    def require_durable(self) -> None:
        """Wait until all that the running batch's decision rests on would outlive a power cut.

        Raises:
            StoreError: it could not be made durable.
        """
        self._durable.result()

    def require(self, batch_id: int) -> None:
        """Look for a newer driver, as ``Tenure.require`` does."""
        self._tenure.require(batch_id)

    def confirm(self, decision: Decision) -> None:
        """Note a decision that stands, then look for a newer driver, before its first commit.

        In this order: a starting driver takes its term before it reads the notes, so either it
        reads this note, or we see its term. The other way round, a driver that starts on an older
        copy of the checkpoint, put back in place, could miss the note of one that missed its term.

        Raises:
            SupersededError: end nothing, delete nothing: somebody may rely on the decision.
            KafkaError: the note was not acknowledged; the next start settles the decision.
        """
        self._notes.note(decision, self._owner)
        self._tenure.require(decision.batch_id)


class RunningPlan:
    """The batch that Spark evaluates now; Spark's public API tells that only once it has ended.

    ``StreamExecution.lastExecution`` is the ``IncrementalExecution`` of the running batch; both
    methods are there in Spark 4.0 to 4.3, where the classes have moved between packages.
    """

    def __init__(self) -> None:
        self._query: Future[StreamingQuery] = Future()

    def of(self, query: StreamingQuery) -> None:
        """Set the running query. A first batch that comes earlier waits for it."""
        self._query.set_result(query)

    def at(self, batch_id: int) -> int:
        """Return Spark's time stamp of the batch, ms since the epoch: ``batchTimestampMs``.

        Raises:
            ConfigurationError: this Spark does not tell the time stamp.
        """
        try:
            execution = self._execution()
            found, planned_at_ms = (
                execution.currentBatchId(),
                execution.offsetSeqMetadata().batchTimestampMs(),
            )
        except Exception as error:
            raise ConfigurationError(
                "This Spark does not tell which batch it evaluates (StreamExecution.lastExecution)."
                f" Expected {SPARK}: use one of these, or a newer airflow-provider-eos."
            ) from error
        if found != batch_id:
            raise ConfigurationError(
                f"Spark calls for batch {batch_id} while it evaluates batch {found}: expected "
                "micro-batches, one at a time. Leave asynchronous progress tracking off."
            )
        return int(planned_at_ms)

    def files(self) -> Sequence[str]:
        """Return the files of all streams that Spark evaluates the running batch with.

        The relation of a file source is V1's in Spark 4.0 to 4.3; that of a source without new rows
        has none.
        """
        found = self._execution().logical().collectLeaves()
        leaves = [found.apply(number) for number in range(found.length())]
        relations = [
            each.relation()
            for each in leaves
            if each.isStreaming() and each.getClass().getSimpleName() == "LogicalRelation"
        ]
        listed = [
            str(each.location().rootPaths().mkString("\0"))
            for each in relations
            if each.getClass().getSimpleName() == "HadoopFsRelation"
            # not a table's own index, such as Delta's, whose offsets name the table's version
            and each.location().getClass().getSimpleName() == "InMemoryFileIndex"
        ]
        return [path for paths in listed for path in paths.split("\0") if path]

    def _execution(self) -> Any:
        query = self._query.result(_STARTED_WITHIN_S)
        return query._jsq.streamingQuery().lastExecution()  # noqa: SLF001 - see above

"""A batch that was promised before: what is missing of the promise, and the rows to write again.

The promise of a batch is its first COMMIT decision. What is delivered is every transaction with
outcome COMMITTED in any of its decisions. What is missing is the difference, paired by content
and never by task number: a task with the same number may read another topic partition after a
restart (Spark's ``KafkaOffsetReader`` orders them anew).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import Decision, DecisionLog, Verdict, read_state
from airflow_eos.errors import DecisionNeededError, NonDeterministicReplayError
from airflow_eos.sinks.fingerprint import combined
from airflow_eos.sinks.protocol import Committer, Sink, TaskReport
from airflow_eos.transactions import Outcome, PreparedTransaction, TransactionIdentity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore

Outcomes = Mapping[TransactionIdentity, Outcome]


@dataclass(frozen=True)
class Promise:
    """The COMMIT decisions of one batch, the first of which is the promise."""

    batch_id: int
    commits: tuple[Decision, ...]

    @classmethod
    def of(cls, decided: Sequence[Decision]) -> Promise | None:
        """The promise among the decisions of a batch, if there is one."""
        commits = tuple(d for d in decided if d.verdict is Verdict.COMMIT)
        return cls(commits[0].batch_id, commits) if commits else None

    @property
    def promised(self) -> tuple[PreparedTransaction, ...]:
        """The transactions of the first COMMIT decision."""
        return self.commits[0].transactions

    @property
    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """Every transaction that any COMMIT decision of the batch names."""
        return tuple(t for decision in self.commits for t in decision.transactions)

    def delivered(self, outcomes: Outcomes) -> tuple[PreparedTransaction, ...]:
        """Those that a reader sees."""
        return tuple(t for t in self.transactions if outcomes[t.identity] is Outcome.COMMITTED)

    def missing_rows(self, outcomes: Outcomes) -> int:
        """How many promised rows no reader sees; 0 when the promise is kept.

        Raises:
            DecisionNeededError: the log no longer tells what became of a transaction.
        """
        unknown = [t for t in self.transactions if outcomes[t.identity] is Outcome.UNKNOWN]
        if unknown:
            raise DecisionNeededError(
                f"Batch {self.batch_id}: the log no longer tells whether {len(unknown)} promised "
                f"transactions ({sum(t.rows for t in unknown)} rows) were committed, first "
                f"{unknown[0].identity}. Look at the topic, then decide: airflow-eos recover "
                "CHECKPOINT --transaction ID --assume committed|aborted."
            )
        return self.unseen_rows(outcomes)

    def unseen_rows(self, outcomes: Outcomes) -> int:
        """How many promised rows no reader is known to have."""
        return self.rows - sum(t.rows for t in self.delivered(outcomes))

    @property
    def offsets(self) -> str | None:
        """The ``offsets/N`` that it was evaluated with; None in format version 1."""
        return self.commits[0].offsets

    @property
    def nonce(self) -> str:
        """Which promise this is, among all checkpoints."""
        return self.commits[0].nonce

    @property
    def rows(self) -> int:
        """How many rows were promised."""
        return sum(t.rows for t in self.promised)

    @property
    def fingerprint(self) -> str:
        """The content of all promised rows together."""
        return combined(t.fingerprint for t in self.promised)

    def check_whole(self, tasks: Sequence[TaskReport]) -> None:
        """Refuse a batch that evaluates to other rows than were promised.

        Raises:
            NonDeterministicReplayError: rows or their content differ.
        """
        rows = sum(task.rows for task in tasks)
        if (rows, combined(task.fingerprint for task in tasks)) != (self.rows, self.fingerprint):
            raise NonDeterministicReplayError(
                f"Batch {self.batch_id} was promised with {self.rows} rows and now evaluates to "
                f"{rows} rows"
                + (" of other content" if rows == self.rows else "")
                + ". Nothing was made visible. The query must give the same rows for the same "
                "offsets: look for rand(), uuid(), current time, an outside table that changed, "
                f"or a changed program; put it back and start again. {self._or_accept}"
            )

    def check_replay(self, outcomes: Outcomes, replayed: Sequence[PreparedTransaction]) -> None:
        """Refuse a replay that would not add up to the promise.

        Raises:
            NonDeterministicReplayError: delivered + replayed is not what was promised.
        """
        together = [*self.delivered(outcomes), *replayed]
        found = sum(t.rows for t in together), combined(t.fingerprint for t in together)
        if found != (self.rows, self.fingerprint):
            raise NonDeterministicReplayError(
                f"Batch {self.batch_id}: {self.rows} rows were promised, but what is delivered "
                f"and what would be replayed are {found[0]} rows together and not the same "
                "content. Nothing was made visible. Compare the output topic with the promise "
                f"(airflow-eos audit) before you go on. {self._or_accept}"
            )

    @property
    def _or_accept(self) -> str:
        return (
            "If that cannot be, go on without the rows that are missing: airflow-eos accept "
            f"CHECKPOINT --batch {self.batch_id} (docs/recovery.md)."
        )


def promise_in_flight(store: CheckpointStore) -> bool:
    """Whether the batch in flight was promised: the next run begins by keeping that promise."""
    batch = read_state(store).in_flight
    return batch is not None and Promise.of(DecisionLog(store).of_batch(batch)) is not None


@contextmanager
def rows_to_replay(
    sink: Sink, committer: Committer, rows: DataFrame, promise: Promise, outcomes: Outcomes
) -> Iterator[tuple[DataFrame, list[int] | None]]:
    """The rows that are missing, and the tasks of them that write (None: all).

    The batch is evaluated once and kept on disk meanwhile: a second evaluation would spoil the
    state of a stateful query.
    """
    from pyspark import StorageLevel

    from airflow_eos.sinks.difference import undelivered

    kept = rows.persist(StorageLevel.DISK_ONLY)
    try:
        tasks = sink.prepare(kept, only=())
        promise.check_whole(tasks)
        delivered = promise.delivered(outcomes)
        paired = undelivered_tasks(tasks, delivered)
        if paired is not None:
            yield kept, paired
        else:
            seen = committer.delivered(rows.sparkSession, delivered).persist(StorageLevel.DISK_ONLY)
            try:
                yield undelivered(kept, seen, tasks=len(tasks)), None
            finally:
                seen.unpersist()
    finally:
        kept.unpersist()


def undelivered_tasks(
    tasks: Sequence[TaskReport], delivered: Sequence[PreparedTransaction]
) -> list[int] | None:
    """The tasks whose content nobody has delivered; None where contents do not pair up."""
    done = Counter(t.content for t in delivered)
    open_tasks = []
    for task in tasks:
        if done[task.content] > 0:
            done[task.content] -= 1
        elif task.rows:
            open_tasks.append(task.task)
    return None if done.total() else open_tasks

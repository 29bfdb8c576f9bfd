"""The attempts at a batch, as one driver begins, decides and gives them up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_eos.checkpoint import Decision, DecisionLog, Verdict
from airflow_eos.checkpoint.decisions import sealed
from airflow_eos.errors import SupersededError
from airflow_eos.failpoints import failpoint
from airflow_eos.protocol.decision import PreparedWork
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from airflow_eos.checkpoint.decisions import PerishableRows
    from airflow_eos.sinks.authority import Authority


class Attempts:
    """What this driver writes into the decision log.

    Args:
        decisions: the decision log of the checkpoint.
        authority: whether this driver may still go on.
        driver: names this run for people, in every decision it writes.
        kept: what was kept beside the work of attempts; None: nothing ever is.
    """

    def __init__(
        self,
        decisions: DecisionLog,
        authority: Authority,
        driver: str,
        kept: PerishableRows | None = None,
    ) -> None:
        self.authority = authority
        self.kept = kept
        self.offsets = ""
        """The ``offsets/N`` that the running batch is evaluated with."""
        self._decisions = decisions
        self._driver = driver
        self._alone = False

    def begin(self, batch_id: int) -> tuple[Decision, ...]:
        """The decisions of the batch, with a former driver's attempt at it sealed.

        Only the first batch of a run can have one: whoever planned a later one finds our term when
        it looks. Sealing before anything is prepared means that this run never takes away
        what may still be promised.

        Where anybody has sealed, we look once more, now that our attempt's number is settled: a
        newer driver of another guarantee takes just this attempt, after its term, and relies on it.

        What sealed attempts have kept goes. It is listed before the look: a newer driver takes its
        term before it keeps anything, so where we are still the newest, none of it is another's.

        Raises:
            SupersededError: we are not the newest driver any more; do nothing.
        """
        left = self.kept.listed(batch_id) if self.kept is not None and not self._alone else ()
        self.offsets = self.authority.begin(batch_id)
        decided = self._decisions.of_batch(batch_id)
        while not self._alone:
            attempt = len(decided) + 1
            self._alone = self._seal(batch_id, attempt, "sealed by the driver starting")
            decided = self._decisions.of_batch(batch_id)
            if not self._alone and len(decided) < attempt:
                raise self._superseded(batch_id, attempt, decided)
            failpoint("sealed")
        if not decided or Promise.of(decided) is not None:
            return decided  # whoever keeps a promise looks again before it does
        self.authority.require(batch_id)
        if self.kept is not None and left:
            self.kept.remove(left)
        return decided

    def promise(
        self, batch_id: int, attempt: int, works: Sequence[PreparedWork]
    ) -> Decision | SupersededError:
        """Decide COMMIT; the error where somebody else has decided this attempt.

        What the decision rests on is durable before it is.
        """
        self.authority.require_durable()
        decision = Decision(
            batch_id=batch_id,
            attempt=attempt,
            verdict=Verdict.COMMIT,
            works=tuple(works),
            offsets=self.offsets,
            term=self.authority.term,
            decided_by=self._driver,
            decided_at_ms=time.time_ns() // 1_000_000,
            nonce=uuid.uuid4().hex,
        )
        if self._decisions.record(decision):
            return decision
        return self._superseded(batch_id, attempt, self._decisions.of_batch(batch_id))

    def give_up(self, batch_id: int, attempt: int, error: Exception) -> tuple[Decision, ...] | None:
        """Seal our own attempt, then look: the decisions of the batch, or None where we lost it.

        Raises:
            SupersededError: the seal stands in a place that was pruned, which is no seal.
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
        """The error for an attempt that was not ours to decide, with what to do about it."""
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

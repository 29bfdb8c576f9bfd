"""What must hold at every instant, judged from the outside: the rules of ``design/protocol.md``.

The judge reads the store and the broker's own truth and calls no code of the package but the
decoder of decisions. It writes down what it finds rather than raising, since it is called from
inside calls whose errors the package may rightly swallow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from airflow_eos.checkpoint import Decision, Verdict
from airflow_eos.transactions import TransactionIdentity
from tests.model.broker import Broker, Rows, State, Transaction
from tests.model.scheduler import current

_DECISION = re.compile(r"eos/decisions/(\d+)/(\d+)\.json")
_SPARK_LOG = re.compile(r"(offsets|commits)/(\d+)")


class ProtocolBroken(AssertionError):  # noqa: N818 - a verdict, not an error
    """A rule of the protocol was broken."""


class Judge:
    """Hears of every write to the store and of every end of a transaction, as it happens."""

    def __init__(self, batches: Sequence[Sequence[Rows]]) -> None:
        self.inputs = [Counter(row for task in batch for row in task) for batch in batches]
        self.broker: Broker  # set by the world
        self.violations: list[str] = []
        self.now = 0
        self.planned = 0
        """How many batches Spark has planned."""
        self.history: list[str] = []
        self._closed: set[int] = set()
        self._called_at: dict[str, int] = {}
        self._sealed_at: dict[str, int] = {}
        self._decider_looked_at: dict[TransactionIdentity, int] = {}
        self._standing: dict[str, Decision] = {}
        self._decided_at: dict[TransactionIdentity, int] = {}
        self._batch_of: dict[TransactionIdentity, int] = {}
        self._aborted_by_us: dict[TransactionIdentity, str] = {}

    def note(self, what: str) -> None:
        process = current()
        self.now += 1
        self.history.append(f"{self.now:4} {process.name if process else '-':24} {what}")

    def fail(self, rule: str) -> None:
        self.violations.append(rule)
        self.note(f"*** {rule}")

    # --- the store ----------------------------------------------------------------------------

    def written(self, path: str, before: bytes | None, data: bytes) -> None:
        """An object was put where ``before`` stood."""
        spark = _SPARK_LOG.fullmatch(path)
        if spark is not None:
            self._log_written(spark[1], int(spark[2]))
        if _DECISION.fullmatch(path) is None:
            return
        decision = msgspec.json.decode(data, type=Decision)
        self.note(f"decides {decision.verdict.name} {path} {self._names(decision)}")
        if before is not None and before != data:
            self.fail(f"rule 3: {path} was decided twice")
        if decision.batch_id in self._closed:
            return  # void: whoever wrote it looks for commits/N next, and takes it back
        self._standing[path] = decision
        if decision.reason.startswith("sealed"):
            self._sealed_at[decision.decided_by] = self.now
        for transaction in decision.transactions:
            identity = transaction.identity
            self._decided_at[identity] = self.now
            self._batch_of[identity] = decision.batch_id
            self._decider_looked_at[identity] = self.looked_at(decision.decided_by)
            if identity in self._aborted_by_us:
                how = self._aborted_by_us[identity]
                self.fail(f"rule 5: {identity} was aborted by {how} and is named afterwards")
        self._promises_at_most_the_input(decision)

    def deleted(self, path: str) -> None:
        if self._standing.pop(path, None) is not None:
            self.note(f"deletes {path}")

    def looked_at(self, driver: str) -> int:
        """When the driver was last sure that nobody older can decide any more; see its seal."""
        return max(self._sealed_at.get(driver, 0), self._called_at.get(driver, 0))

    def batch_called(self, driver: str) -> None:
        self.note("looks at its next batch")
        self._called_at[driver] = self.now

    def _log_written(self, log: str, batch: int) -> None:
        """After ``commits/N`` Spark never evaluates the batch again."""
        self.note(f"writes {log}/{batch}")
        if log == "offsets":
            self.planned = max(self.planned, batch + 1)
            return
        self._closed.add(batch)
        if self._delivered(batch) != self.inputs[batch]:
            missing = self.inputs[batch] - self._delivered(batch)
            self.fail(f"rule 2: batch {batch} is closed without {sorted(missing.elements())}")

    # --- the broker ---------------------------------------------------------------------------

    def ending(self, transaction: Transaction, how: str) -> None:
        """The coordinator is about to end a transaction: commit, abort, fenced or timeout."""
        identity = transaction.identity
        named = self._named()
        process = current()
        by = process.name if process else "time"
        self.note(f"{how}: {identity} {list(transaction.rows)}")
        if how == "commit":
            if identity not in named:
                self.fail(f"rule 1: {identity} is committed and no decision names it")
            self._at_most_once(transaction)
        elif how == "abort":
            self._aborted_by_us[identity] = by
            if identity in named:
                self.fail(f"rule 5: {by} aborts {identity}, which a decision names")
        elif how == "fenced" and identity in named:
            looked_at = process.looked_at if process else None
            if looked_at is None:
                self.fail(f"rule 5: {by} takes the id of {identity}, which a decision names")
            elif self._decided_at[identity] <= looked_at:
                self.fail(f"rule 4: {by} takes the id of {identity}, promised before it looked")
            elif self._decider_looked_at[identity] < looked_at:
                # A zombie may do this to its successor (a replay heals it), and not the reverse.
                self.fail(f"rule 4: {by} takes the id of {identity} of an older driver, unsealed")

    # --- the sums -----------------------------------------------------------------------------

    def all_delivered(self) -> None:
        """At the end: every row once, nothing open."""
        for batch in range(self.planned):
            if self._delivered(batch) != self.inputs[batch]:
                self.fail(f"batch {batch}: {self._delivered(batch)}, not {self.inputs[batch]}")
        for transaction in self.broker.ongoing():
            self.fail(f"liveness: {transaction.identity} is left open")

    def _at_most_once(self, transaction: Transaction) -> None:
        batch = self._batch_of.get(transaction.identity)
        if batch is not None:
            seen = self._delivered(batch) + Counter(transaction.rows)
            if not seen <= self.inputs[batch]:
                self.fail(f"rule 2: twice {sorted((seen - self.inputs[batch]).elements())}")

    def _promises_at_most_the_input(self, decision: Decision) -> None:
        """Rule 3: what is delivered and what may still be never exceed the batch."""
        batch = decision.batch_id
        may_come: Counter[str] = Counter()
        for identity in self._named(batch):
            transaction = self.broker.transactions[identity]
            if transaction.state not in {State.ABORTING, State.ABORTED}:
                may_come.update(transaction.rows)
        if not may_come <= self.inputs[batch]:
            twice = sorted((may_come - self.inputs[batch]).elements())
            self.fail(f"rule 3: batch {batch} promises {twice} again")

    def _delivered(self, batch: int) -> Counter[str]:
        rows: Counter[str] = Counter()
        for identity, its_batch in self._batch_of.items():
            if its_batch == batch and self.broker.transactions[identity].delivered:
                rows.update(self.broker.transactions[identity].rows)
        return rows

    def _named(self, batch: int | None = None) -> set[TransactionIdentity]:
        return {
            transaction.identity
            for decision in self._standing.values()
            if decision.verdict is Verdict.COMMIT and batch in (None, decision.batch_id)
            for transaction in decision.transactions
        }

    def _names(self, decision: Decision) -> str:
        return ", ".join(str(t.identity) for t in decision.transactions) or decision.reason

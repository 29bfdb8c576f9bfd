"""What must hold at every instant, judged from the outside: the rules of ``docs/protocol.md``.

The judge reads the store and the broker's own truth and calls no code of the package but the
decoder of decisions. It writes down what it finds rather than raising, since it is called from
inside calls whose errors the package may rightly swallow.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from airflow_eos.core.checkpoint import Decision, Verdict
from airflow_eos.kafka.transactions.identity import TransactionIdentity, transaction_of
from tests.model.broker import Broker, Rows, State, Transaction
from tests.model.scheduler import current

_DECISION = re.compile(r"eos/decisions/(\d+)/(\d+)\.json")
_TERM = re.compile(r"eos/drivers/(\d+)\.json")
_SPARK_LOG = re.compile(r"(offsets|commits)/(\d+)")


class ProtocolBroken(AssertionError):  # noqa: N818 - a verdict, not an error
    """A rule of the protocol was broken."""


class Judge:
    """Hears of every write to the store and of every end of a transaction, as it happens."""

    def __init__(self, units: Sequence[Sequence[Rows]]) -> None:
        self.input = Counter(row for unit in units for task in unit for row in task)
        self.broker: Broker  # set by the world
        self.violations: list[str] = []
        self.now = 0
        self.history: list[str] = []
        self._closed: set[int] = set()
        self._called_at: dict[str, int] = {}
        self._sealed_at: dict[str, int] = {}
        self._decider_looked_at: dict[TransactionIdentity, int] = {}
        self._standing: dict[str, Decision] = {}
        self._void: set[str] = set()
        self._newest_term = 0
        self._late: set[TransactionIdentity] = set()
        self._decided_at: dict[TransactionIdentity, int] = {}
        self._aborted_by_us: dict[TransactionIdentity, str] = {}
        self._vanished: Counter[str] = Counter()
        self._promised: dict[int, Counter[str]] = {}
        self._named_in: dict[int, set[TransactionIdentity]] = defaultdict(set)

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
        term = _TERM.fullmatch(path)
        if term is not None:
            self.note(f"takes term {term[1]}")
            self._newest_term = max(self._newest_term, int(term[1]))
        if _DECISION.fullmatch(path) is None:
            return
        decision = msgspec.json.decode(data, type=Decision)
        self.note(f"decides {decision.verdict.name} {path} {self._names(decision)}")
        if before is not None and before != data:
            self.fail(f"rule 3: {path} was decided twice")
        if decision.batch_id in self._closed:
            self._void.add(decision.nonce)
            return  # whoever wrote it looks next, and finds that he is not the newest
        self._standing[path] = decision
        self._hear_of_a_promise(decision)
        if decision.reason.startswith("sealed"):
            self._sealed_at[decision.decided_by] = self.now
        for work in decision.works:
            identity = transaction_of(work.identity)
            self._decided_at[identity] = self.now
            if decision.term is not None and decision.term < self._newest_term:
                self._late.add(identity)
            self._decider_looked_at[identity] = self.looked_at(decision.decided_by)
            if identity in self._aborted_by_us and identity not in self._late:
                how = self._aborted_by_us[identity]
                self.fail(f"rule 5: {identity} was aborted by {how} and is named afterwards")
        self._promises_once(decision)

    def _hear_of_a_promise(self, decision: Decision) -> None:
        if decision.works:
            named = {transaction_of(work.identity) for work in decision.works}
            self._promised.setdefault(decision.batch_id, self._rows_in(named))
            self._named_in[decision.batch_id] |= named

    def deleted(self, path: str) -> None:
        if self._standing.pop(path, None) is not None:
            self.note(f"deletes {path}")

    def put_back(self, copy: dict[str, bytes]) -> None:
        """Another state of the checkpoint stands there now."""
        found = {
            path: msgspec.json.decode(data, type=Decision)
            for path, data in copy.items()
            if _DECISION.fullmatch(path)
        }
        planned = {int(path.partition("/")[2]) for path in copy if path.startswith("offsets/")}
        complete = {int(path.partition("/")[2]) for path in copy if path.startswith("commits/")}
        self._closed = complete | set(range(max(planned, default=0)))
        self._void -= {each.nonce for each in found.values() if each.batch_id not in self._closed}
        self._standing = {p: each for p, each in found.items() if each.nonce not in self._void}
        for each in self._standing.values():
            for work in each.works:  # decided in vain, and now it stands
                self._decided_at.setdefault(transaction_of(work.identity), self.now)
        terms = (_TERM.fullmatch(path) for path in copy)
        self._newest_term = max((int(term[1]) for term in terms if term), default=0)

    def looked_at(self, driver: str) -> int:
        """When the driver was last sure that nobody older can decide any more; see its seal."""
        return max(self._sealed_at.get(driver, 0), self._called_at.get(driver, 0))

    def batch_called(self, driver: str) -> None:
        self.note("looks at its next batch")
        self._called_at[driver] = self.now

    def _log_written(self, log: str, batch: int) -> None:
        """After ``commits/N`` Spark never evaluates the batch again."""
        self.note(f"writes {log}/{batch}")
        if log == "commits":
            self._closed.add(batch)

    # --- the broker ---------------------------------------------------------------------------

    def ending(self, transaction: Transaction, how: str) -> None:
        """The coordinator is about to end a transaction: commit, abort, fenced or timeout."""
        identity = transaction.identity
        named = self._named()
        process = current()
        by = process.name if process else "time"
        expired = transaction.first < self.broker.partitions[transaction.partition].start
        self.note(f"{how}: {identity} {list(transaction.rows)}")
        if how == "commit":
            if identity not in self._decided_at:  # also by what stood before a copy was put back
                self.fail(f"rule 1: {identity} is committed and no decision names it")
            if expired:
                self.fail(f"rule 2: {identity} is committed without the rows that are deleted")
            self._at_most_once(transaction)
        elif how == "abort":
            self._aborted_by_us[identity] = by
            if identity in named and identity not in self._late and not expired:
                self.fail(f"rule 5: {by} aborts {identity}, which a decision names")
        elif how == "fenced" and identity in named:
            looked_at = process.looked_at if process else None
            if looked_at is None:
                self.fail(f"rule 5: {by} takes the id of {identity}, which a decision names")
            elif self._decided_at[identity] <= looked_at:
                self.fail(f"rule 4: {by} takes the id of {identity}, promised before it looked")
            elif identity not in self._late and self._decider_looked_at[identity] < looked_at:
                # A zombie may do this to its successor (a replay heals it), and not the reverse,
                # unless it was superseded when it decided: it will not act on that.
                self.fail(f"rule 4: {by} takes the id of {identity} of an older driver, unsealed")

    # --- the sums -----------------------------------------------------------------------------

    def vanish(self, unit: Sequence[Rows], kept: Sequence[Rows]) -> None:
        """The input has lost rows, delivered or not."""
        before = Counter(row for rows in unit for row in rows)
        gone = before - Counter(row for rows in kept for row in rows)
        self.note(f"--- the input loses {sorted(gone.elements())}")
        self._vanished += gone

    def all_delivered(self, *, but: int = 0) -> None:
        """At the end: every row once, nothing open; ``but``: rows that were announced as lost."""
        seen = self._delivered()
        if seen - self.input or (self.input - seen).total() != but:
            lost, twice = (self.input - seen).elements(), (seen - self.input).elements()
            self.fail(f"rule 2: lost {sorted(lost)}, twice {sorted(twice)}")
        self._nothing_open()

    def all_that_was_left(self, *, accepted: Mapping[int, int]) -> None:
        """The same where the input has lost rows: what it lost before anybody promised it is gone.

        Of what was promised, a row lacks only where a person ``accepted`` the batch, and no more
        than he was told; -1: the next start was to count them.
        """
        seen = self._delivered()
        if seen - self.input:
            self.fail(f"rule 2: twice {sorted((seen - self.input).elements())}")
        lacking = self.input - seen
        for batch, promised in self._promised.items():
            lack = promised - self._delivered(self._named_in[batch])
            told = accepted.get(batch, 0)
            if told >= 0 and lack.total() != told:
                said = f"a person was told of {told}"
                self.fail(f"rule 2: lost {sorted(lack.elements())} of batch {batch}, {said}")
            lacking -= lack
        if lost := lacking - self._vanished:
            self.fail(f"rule 2: lost {sorted(lost.elements())}, which the input had")
        self._nothing_open()

    def _nothing_open(self) -> None:
        for transaction in self.broker.ongoing():
            self.fail(f"liveness: {transaction.identity} is left open")

    def _at_most_once(self, transaction: Transaction) -> None:
        seen = self._delivered() + Counter(transaction.rows)
        if not seen <= self.input:
            self.fail(f"rule 2: twice {sorted((seen - self.input).elements())}")

    def _promises_once(self, decision: Decision) -> None:
        """Rule 3: what is delivered and what may still be never exceed what was promised."""
        batch = decision.batch_id
        commits = [
            each
            for each in sorted(self._standing.values(), key=lambda each: each.attempt)
            if each.batch_id == batch and each.verdict is Verdict.COMMIT
        ]
        promised: Counter[str] = Counter()
        for named in commits[0].works if commits else ():
            promised.update(self.broker.transactions[transaction_of(named.identity)].rows)
        may_come: Counter[str] = Counter()
        for identity in self._named(batch):
            transaction = self.broker.transactions[identity]
            if transaction.state not in {State.ABORTING, State.ABORTED}:
                may_come.update(transaction.rows)
        if not may_come <= promised:
            twice = sorted((may_come - promised).elements())
            self.fail(f"rule 3: batch {batch} promises {twice} again")

    def _delivered(self, among: Iterable[TransactionIdentity] | None = None) -> Counter[str]:
        known = self.broker.transactions
        return self._rows_in(each for each in (among or known) if known[each].delivered)

    def _rows_in(self, identities: Iterable[TransactionIdentity]) -> Counter[str]:
        return Counter(row for each in identities for row in self.broker.transactions[each].rows)

    def _named(self, batch: int | None = None) -> set[TransactionIdentity]:
        return {
            transaction_of(work.identity)
            for decision in self._standing.values()
            if decision.verdict is Verdict.COMMIT and batch in (None, decision.batch_id)
            for work in decision.works
        }

    def _names(self, decision: Decision) -> str:
        return ", ".join(work.key for work in decision.works) or decision.reason

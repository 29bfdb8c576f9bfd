"""What a batch promised and which of its rows are still missing; arithmetic on decisions.

The promise of a batch is its *first* COMMIT decision. Later COMMIT decisions of the same batch
name only what was missing, so that what is delivered is the union of all of them. Promised and
delivered are paired by content (rows and fingerprint, as a multiset) and never by task number: a
task with the same number may read another partition of the source after a restart (Spark's
``KafkaOffsetReader`` orders them anew).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import msgspec

from airflow_eos.core.protocol.decision import (
    Decision,
    Outcome,
    PreparedWork,
    Verdict,
    WorkIdentity,
)
from airflow_eos.errors import (
    DecisionNeededError,
    InputLostError,
    NonDeterministicReplayError,
    Remedy,
)

Outcomes = Mapping[WorkIdentity, Outcome]
Content = tuple[int, str]
"""(rows, fingerprint) of work or of a task's rows"""


@dataclass(frozen=True, slots=True)
class PromisedWork:
    """Prepared work with the decision that promised it."""

    work: PreparedWork
    batch_id: int
    attempt: int

    @property
    def identity(self) -> WorkIdentity:
        """The identity of the promised work: its kind, participant and key."""
        return self.work.identity


@dataclass(frozen=True, slots=True)
class OperatorRuling:
    """What a person said of a batch: work that readers have, and how many rows may be missing.

    ``missing_rows`` is by participant: what one of them may lack excuses no other.
    """

    committed: frozenset[WorkIdentity]
    missing_rows: Mapping[str, int]


def combined(fingerprints: Iterable[str]) -> str:
    """Return the fingerprint of several contents together: sums modulo 2**64 of each half."""
    high = low = 0
    for text in fingerprints:
        high += int(text[:16], 16)
        low += int(text[16:], 16)
    return f"{high & _MASK:016x}{low & _MASK:016x}"


_MASK = (1 << 64) - 1


def together(contents: Iterable[Content]) -> Content:
    """Return the sum of several contents: their rows added up, their fingerprints combined."""
    rows, fingerprints = 0, []
    for count, fingerprint in contents:
        rows += count
        fingerprints.append(fingerprint)
    return rows, combined(fingerprints)


def named_by(decisions: Iterable[Decision]) -> tuple[PromisedWork, ...]:
    """Return all work that a COMMIT decision names, in the order of the attempts."""
    return tuple(
        PromisedWork(work, decision.batch_id, decision.attempt)
        for decision in decisions
        for work in decision.works
    )


def tries(decisions: Iterable[Decision]) -> dict[int, int]:
    """Number, for people, the attempts of a batch that were begun: from 1, in their order."""
    begun = (each.attempt for each in decisions if not each.is_untried)
    return {attempt: number for number, attempt in enumerate(begun, 1)}


@dataclass(frozen=True)
class Promise:
    """The COMMIT decisions of one batch, the first of which is the promise."""

    batch_id: int
    commits: tuple[Decision, ...]

    @classmethod
    def of(cls, decided: Sequence[Decision]) -> Promise | None:
        """Return the promise among the decisions of a batch; None where no decision is COMMIT."""
        commits = tuple(d for d in decided if d.verdict is Verdict.COMMIT)
        return cls(commits[0].batch_id, commits) if commits else None

    @property
    def promised(self) -> tuple[PreparedWork, ...]:
        """The work of the first COMMIT decision."""
        return self.commits[0].works

    @property
    def works(self) -> tuple[PreparedWork, ...]:
        """All work that any COMMIT decision of the batch names."""
        return tuple(work for decision in self.commits for work in decision.works)

    @property
    def of_rows(self) -> tuple[PreparedWork, ...]:
        """The work of the batch that holds rows."""
        return tuple(work for work in self.works if not work.follows)

    @property
    def followers(self) -> tuple[PreparedWork, ...]:
        """The work of the batch without rows, which says how far the rows of the others are."""
        return tuple(work for work in self.works if work.follows)

    def part(self, participant: str) -> Promise:
        """Return the promise of one participant: missing and replayed are reckoned for each."""
        return Promise(
            self.batch_id,
            tuple(
                msgspec.structs.replace(
                    decision,
                    works=tuple(w for w in decision.works if w.participant == participant),
                )
                for decision in self.commits
            ),
        )

    @property
    def participants(self) -> tuple[str, ...]:
        """The names of the participants whose rows were promised."""
        return tuple(sorted({work.participant for work in self.promised if not work.follows}))

    @property
    def offsets(self) -> str:
        """The content of ``offsets/N`` that the promise was evaluated with."""
        return self.commits[0].offsets or ""

    @property
    def nonce(self) -> str:
        """The id of this promise, unique among all checkpoints."""
        return self.commits[0].nonce

    @property
    def rows(self) -> int:
        """The number of promised rows."""
        return sum(work.rows for work in self.promised)

    @property
    def fingerprint(self) -> str:
        """The content of all promised rows together."""
        return combined(work.fingerprint for work in self.promised)

    @property
    def newest(self) -> tuple[PreparedWork, ...]:
        """The work with rows of the last COMMIT: only rows of that work can still be owed.

        It named all that was missing when it was decided, by when all earlier work had ended. So
        earlier work whose outcome cannot be told any more is of no consequence.
        """
        return tuple(work for work in self.commits[-1].works if not work.follows)

    def known(self, outcomes: Outcomes) -> dict[WorkIdentity, Outcome]:
        """Return ``outcomes`` with what each later COMMIT proves of the work before that COMMIT.

        Proven by content: the work of a decision has delivered its rows less those that the next
        decision named again. A proof stands above what a person ruled.
        """
        found = dict(outcomes)
        for name in self.participants:
            for decided, again in pairwise(self.part(name).commits):
                found |= _proven(decided.works, again.works, outcomes)
        return found

    def delivered(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Return the work whose rows readers see."""
        known = self.known(outcomes)
        return tuple(w for w in self.of_rows if known.get(w.identity) is Outcome.COMMITTED)

    def untold(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Return work whose outcome nobody can tell, and no later COMMIT proves."""
        known = self.known(outcomes)
        return tuple(w for w in self.of_rows if known.get(w.identity) is Outcome.UNKNOWN)

    def owed(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Return work of the newest COMMIT that no reader is known to have; none: all is kept."""
        return tuple(w for w in self.newest if outcomes.get(w.identity) is not Outcome.COMMITTED)

    def lost_rows(self, there: Collection[WorkIdentity]) -> int:
        """Return how many promised rows a system lacks that has only the work in ``there``.

        Counted by decision: what a later decision named again excuses no row of its own.
        """
        lost = 0
        for decided, again in zip_longest(self.commits, self.commits[1:]):
            named_again = again.works if again is not None else ()
            kept = sum(w.rows for w in decided.works) - sum(w.rows for w in named_again)
            lost += max(0, kept - sum(w.rows for w in decided.works if w.identity in there))
        return lost

    def missing_rows(self, outcomes: Outcomes) -> int:
        """Return how many promised rows no reader sees; 0 when the promise is kept.

        Raises:
            DecisionNeededError: nobody can tell any more what became of some owed work.
        """
        unknown = [w for w in self.newest if outcomes.get(w.identity) is Outcome.UNKNOWN]
        if unknown:
            raise DecisionNeededError(
                f"Batch {self.batch_id}: nobody can tell any more whether {len(unknown)} promised "
                f"pieces of work ({sum(work.rows for work in unknown)} rows) were committed, first "
                f"{unknown[0].identity}. Look at the output: does a read_committed reader have "
                "its rows?",
                *rulings_on(*unknown),
            )
        return sum(work.rows for work in self.owed(outcomes))

    def check_whole(
        self,
        tasks: Iterable[Content],
        lost: str = "",
        given_up: Callable[[], str] = lambda: "the rows of it that readers lack",
    ) -> None:
        """Refuse a batch that evaluates to other rows than were promised.

        Args:
            tasks: the contents that the batch evaluates to.
            lost: what is known of rows that the input of the batch has lost since.
            given_up: tells which rows a person gives up who accepts the batch as it is.

        Raises:
            InputLostError: fewer rows come back, and the input tells why.
            NonDeterministicReplayError: rows or their content differ.
        """
        found = together(tasks)
        if found == (self.rows, self.fingerprint):
            return
        if found[0] < self.rows and lost:
            raise InputLostError(
                f"Batch {self.batch_id} was promised with {self.rows} rows, and its input has lost "
                f"some of them since: {found[0]} come back. {lost[:1].upper()}{lost[1:]}. Nothing "
                "was made visible. What is left of it can be delivered "
                "(keep_rows of an Output would have kept the rows).",
                self.accepting(given_up()),
            )
        raise NonDeterministicReplayError(
            f"Batch {self.batch_id} was promised with {self.rows} rows and now evaluates to "
            f"{found[0]} rows"
            + (" of other content" if found[0] == self.rows else "")
            + ". Nothing was made visible. The query must give the same rows for the same "
            "offsets: look for rand(), uuid(), current time, an outside table that changed, "
            "or a changed program"
            + (", or for an input that has lost rows" if found[0] < self.rows else "")
            + " (docs/recovery.md).",
            Remedy(change="put back what the query depended on", start=True),
            self.accepting(given_up()),
        )

    def check_replay(self, outcomes: Outcomes, replayed: Sequence[PreparedWork]) -> None:
        """Refuse a replay that would not add up to the promise.

        Raises:
            NonDeterministicReplayError: delivered + replayed is not what was promised.
        """
        seen = [w for w in self.newest if outcomes.get(w.identity) is Outcome.COMMITTED]
        found = together(work.content for work in (*seen, *replayed))
        owed = together(work.content for work in self.newest)
        if found != owed:
            raise NonDeterministicReplayError(
                f"Batch {self.batch_id}: {owed[0]} rows were owed, but what is delivered of them "
                f"and what would be replayed are {found[0]} rows together and not the same "
                "content. Nothing was made visible. Compare the output with the promise "
                "(airflow-eos audit) before you go on.",
                Remedy(change="put back what the query depended on", start=True),
                self.accepting("the rows of it that readers lack"),
            )

    def accepting(self, costs: str) -> Remedy:
        """Return the remedy that goes on with the batch as it is."""
        command = f"airflow-eos accept CHECKPOINT --batch {self.batch_id} --yes"
        return Remedy((command,), start=True, costs=costs)


def _proven(
    works: Sequence[PreparedWork], again: Sequence[PreparedWork], outcomes: Outcomes
) -> dict[WorkIdentity, Outcome]:
    """Return the outcomes of ``works`` that ``again``, all that was missing, proves; {}: no proof.

    By the first guess that adds up, in rows and in content: outcomes as told, with all untold work
    lost, or none; lost is the work that pairs with ``again``; all work is lost. No guess turns told
    aborted work into delivered: of a batch that a person accepted, ``again`` names what its input
    still gave, and what it had lost are other rows than the sum makes of it.
    """
    committed = {w.identity for w in works if outcomes.get(w.identity) is Outcome.COMMITTED}
    untold = {w.identity for w in works if outcomes.get(w.identity) in (None, Outcome.UNKNOWN)}
    lost, paired = Counter(work.content for work in again), set()
    for work in works:
        if lost[work.content]:
            lost[work.content] -= 1
        elif outcomes.get(work.identity) is not Outcome.ABORTED:
            paired.add(work.identity)
    kept = together(work.content for work in works)
    for guess in (committed, committed | untold, paired, set()):
        seen = [work.content for work in works if work.identity in guess]
        if together([*seen, *(work.content for work in again)]) == kept:
            return {
                work.identity: Outcome.COMMITTED if work.identity in guess else Outcome.ABORTED
                for work in works
            }
    return {}


def rulings_on(*works: PreparedWork) -> tuple[Remedy, Remedy]:
    """Return the two remedies that a person may choose for work whose outcome is unknown."""
    rows = sum(work.rows for work in works)
    committed, aborted = (
        tuple(
            f"airflow-eos recover CHECKPOINT --force --transaction {work.key} --assume {outcome}"
            for work in works
        )
        for outcome in ("committed", "aborted")
    )
    return (
        Remedy(committed, start=True, costs=f"{rows} rows if no reader has them"),
        Remedy(aborted, start=True, costs=f"{rows} rows twice if readers have them"),
    )

"""What a batch promised and what of it is still missing; arithmetic on decisions.

The promise of a batch is its *first* COMMIT decision. Later COMMIT decisions of the same batch
name only what was missing, so that what is delivered is the union of all of them. Promised and
delivered are paired by content (rows and fingerprint, as a multiset) and never by task number: a
task with the same number may read another partition of the source after a restart (Spark's
``KafkaOffsetReader`` orders them anew).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import msgspec

from airflow_eos.errors import DecisionNeededError, NonDeterministicReplayError, Remedy
from airflow_eos.protocol.decision import Decision, Verdict
from airflow_eos.protocol.work import Outcome, PreparedWork, WorkIdentity

Outcomes = Mapping[WorkIdentity, Outcome]
Content = tuple[int, str]
"""(rows, fingerprint)"""


@dataclass(frozen=True, slots=True)
class Named:
    """Prepared work with the decision that promised it."""

    work: PreparedWork
    batch_id: int
    attempt: int

    @property
    def identity(self) -> WorkIdentity:
        """The name of the work among all."""
        return self.work.identity


@dataclass(frozen=True, slots=True)
class Said:
    """What a person said of a batch: work that readers have, and how many rows may be missing.

    ``missing_rows`` is by participant: what one of them may lack excuses no other.
    """

    committed: frozenset[WorkIdentity]
    missing_rows: Mapping[str, int]


def combined(fingerprints: Iterable[str]) -> str:
    """The fingerprint of several contents together: sums modulo 2**64 of each half."""
    high = low = 0
    for text in fingerprints:
        high += int(text[:16], 16)
        low += int(text[16:], 16)
    return f"{high & _MASK:016x}{low & _MASK:016x}"


_MASK = (1 << 64) - 1


def together(contents: Iterable[Content]) -> Content:
    """The content of several together."""
    rows, fingerprints = 0, []
    for count, fingerprint in contents:
        rows += count
        fingerprints.append(fingerprint)
    return rows, combined(fingerprints)


def named_by(decisions: Iterable[Decision]) -> tuple[Named, ...]:
    """All work that a COMMIT decision names, in the order of the attempts."""
    return tuple(
        Named(work, decision.batch_id, decision.attempt)
        for decision in decisions
        for work in decision.works
    )


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
    def promised(self) -> tuple[PreparedWork, ...]:
        """The work of the first COMMIT decision."""
        return self.commits[0].works

    @property
    def works(self) -> tuple[PreparedWork, ...]:
        """All work that any COMMIT decision of the batch names."""
        return tuple(work for decision in self.commits for work in decision.works)

    @property
    def of_rows(self) -> tuple[PreparedWork, ...]:
        """Those that hold rows."""
        return tuple(work for work in self.works if not work.follows)

    @property
    def followers(self) -> tuple[PreparedWork, ...]:
        """Those that say how far the others are."""
        return tuple(work for work in self.works if work.follows)

    def part(self, participant: str) -> Promise:
        """What was promised of one participant: missing and replayed is reckoned for each."""
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
        """Those of whom rows were promised, by name."""
        return tuple(sorted({work.participant for work in self.promised if not work.follows}))

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
        return sum(work.rows for work in self.promised)

    @property
    def fingerprint(self) -> str:
        """The content of all promised rows together."""
        return combined(work.fingerprint for work in self.promised)

    @property
    def newest(self) -> tuple[PreparedWork, ...]:
        """Work with rows of the last COMMIT: nothing but its rows can still be owed.

        It named all that was missing when it was decided, by when all earlier work had ended. So
        what cannot be told of earlier pieces any more is of no consequence.
        """
        return tuple(work for work in self.commits[-1].works if not work.follows)

    def known(self, outcomes: Outcomes) -> dict[WorkIdentity, Outcome]:
        """``outcomes`` with what each later COMMIT proves of the work before it.

        By content: what a decision's work has delivered is its rows less those that the next one
        named again. A proof stands above what a person ruled.
        """
        found = dict(outcomes)
        for name in self.participants:
            for decided, again in pairwise(self.part(name).commits):
                found |= _proven(decided.works, again.works, outcomes)
        return found

    def delivered(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Those that a reader sees."""
        known = self.known(outcomes)
        return tuple(w for w in self.of_rows if known.get(w.identity) is Outcome.COMMITTED)

    def untold(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Those of which nobody can tell whether a reader sees them, nor a later COMMIT proves."""
        known = self.known(outcomes)
        return tuple(w for w in self.of_rows if known.get(w.identity) is Outcome.UNKNOWN)

    def owed(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Work of the newest COMMIT that no reader is known to have; at zero all is kept."""
        return tuple(w for w in self.newest if outcomes.get(w.identity) is not Outcome.COMMITTED)

    def lost_rows(self, there: Collection[WorkIdentity]) -> int:
        """How many promised rows a system does not show, of whose work only ``there`` is there.

        Decision by decision: what a later one named again excuses no row of its own.
        """
        lost = 0
        for decided, again in zip_longest(self.commits, self.commits[1:]):
            named_again = again.works if again is not None else ()
            kept = sum(w.rows for w in decided.works) - sum(w.rows for w in named_again)
            lost += max(0, kept - sum(w.rows for w in decided.works if w.identity in there))
        return lost

    def missing_rows(self, outcomes: Outcomes) -> int:
        """How many promised rows no reader sees; 0 when the promise is kept.

        Raises:
            DecisionNeededError: nobody can tell any more what became of some that are owed.
        """
        unknown = [w for w in self.newest if outcomes.get(w.identity) is Outcome.UNKNOWN]
        if unknown:
            raise DecisionNeededError(
                f"Batch {self.batch_id}: nobody can tell any more whether {len(unknown)} promised "
                f"pieces of work ({sum(work.rows for work in unknown)} rows) were committed, first "
                f"{unknown[0].identity}. Look at the output: does a read_committed reader have "
                "its rows?",
                *rulings_on(unknown[0]),
            )
        return sum(work.rows for work in self.owed(outcomes))

    def check_whole(self, tasks: Iterable[Content]) -> None:
        """Refuse a batch that evaluates to other rows than were promised.

        Raises:
            NonDeterministicReplayError: rows or their content differ.
        """
        found = together(tasks)
        if found != (self.rows, self.fingerprint):
            raise NonDeterministicReplayError(
                f"Batch {self.batch_id} was promised with {self.rows} rows and now evaluates to "
                f"{found[0]} rows"
                + (" of other content" if found[0] == self.rows else "")
                + ". Nothing was made visible. The query must give the same rows for the same "
                "offsets: look for rand(), uuid(), current time, an outside table that changed, "
                f"or a changed program; put it back and start again. {self._or_accept}"
            )

    def check_replay(self, outcomes: Outcomes, replayed: Sequence[PreparedWork]) -> None:
        """Refuse a replay that would not add up to the promise.

        Raises:
            NonDeterministicReplayError: delivered + replayed is not what was promised.
        """
        seen = [w for w in self.newest if outcomes.get(w.identity) is Outcome.COMMITTED]
        found = together(work.content for work in (*seen, *replayed))
        if found != together(work.content for work in self.newest):
            raise NonDeterministicReplayError(
                f"Batch {self.batch_id}: {self.rows} rows were promised, but what is delivered "
                f"and what would be replayed are {found[0]} rows together and not the same "
                "content. Nothing was made visible. Compare the output with the promise "
                f"(airflow-eos audit) before you go on. {self._or_accept}"
            )

    @property
    def _or_accept(self) -> str:
        return (
            "If that cannot be, go on without the rows that are missing: airflow-eos accept "
            f"CHECKPOINT --batch {self.batch_id} (docs/recovery.md)."
        )


def _proven(
    works: Sequence[PreparedWork], again: Sequence[PreparedWork], told: Outcomes
) -> dict[WorkIdentity, Outcome]:
    """What became of ``works``, of whose rows ``again`` is what was missing; {}: it is not proven.

    By the first guess that adds up, in rows and in content: what is told, and that of the untold
    all were lost, or none; that lost are those that pair with ``again``; that all are.
    """
    committed = {w.identity for w in works if told.get(w.identity) is Outcome.COMMITTED}
    untold = {w.identity for w in works if told.get(w.identity) in (None, Outcome.UNKNOWN)}
    lost, paired = Counter(work.content for work in again), set()
    for work in works:
        if lost[work.content]:
            lost[work.content] -= 1
        else:
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


def rulings_on(work: PreparedWork) -> tuple[Remedy, Remedy]:
    """The two things that a person may say of work whose outcome nobody can tell any more."""
    told = f"airflow-eos recover CHECKPOINT --force --transaction {work.key} --assume"
    lost, twice = "rows if no reader has them", "rows twice if readers have them"
    return (
        Remedy((f"{told} committed",), start=True, costs=f"{work.rows} {lost}"),
        Remedy((f"{told} aborted",), start=True, costs=f"{work.rows} {twice}"),
    )

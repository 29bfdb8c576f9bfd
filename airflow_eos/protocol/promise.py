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

import msgspec

from airflow_eos.errors import DecisionNeededError, NonDeterministicReplayError
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
class Missing:
    """What a batch still owes its readers."""

    works: int
    rows: int

    def __bool__(self) -> bool:
        return self.rows > 0


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

    def delivered(self, outcomes: Outcomes) -> tuple[PreparedWork, ...]:
        """Those that a reader sees."""
        return tuple(w for w in self.of_rows if outcomes[w.identity] is Outcome.COMMITTED)

    def unseen_rows(self, outcomes: Outcomes) -> int:
        """How many promised rows no reader is known to have."""
        return self.rows - sum(work.rows for work in self.delivered(outcomes))

    def missing(self, delivered: Collection[WorkIdentity]) -> Missing:
        """Return the promise less what is ``delivered`` (identities, of any attempt).

        Rows are compared before fingerprints: where the parallelism changed between two attempts,
        the same rows are cut into other works, which no fingerprint pairs, and yet a full count
        means that nothing is missing, because a later decision names only what was missing.
        """
        arrived = [work for work in self.works if work.identity in delivered]
        rows = self.rows - sum(work.rows for work in arrived)
        if rows <= 0:
            return Missing(0, 0)
        unpaired = Counter(work.content for work in self.promised)
        unpaired -= Counter(work.content for work in arrived)
        return Missing(works=unpaired.total(), rows=rows)

    def missing_rows(self, outcomes: Outcomes) -> int:
        """How many promised rows no reader sees; 0 when the promise is kept.

        Raises:
            DecisionNeededError: nobody can tell any more what became of some work.
        """
        unknown = [work for work in self.of_rows if outcomes[work.identity] is Outcome.UNKNOWN]
        if unknown:
            raise DecisionNeededError(
                f"Batch {self.batch_id}: nobody can tell any more whether {len(unknown)} promised "
                f"pieces of work ({sum(work.rows for work in unknown)} rows) were committed, first "
                f"{unknown[0].identity}. Look at the output, then decide: airflow-eos recover "
                "CHECKPOINT --transaction ID --assume committed|aborted."
            )
        return self.unseen_rows(outcomes)

    def check_whole(self, tasks: Iterable[Content]) -> None:
        """Refuse a batch that evaluates to other rows than were promised.

        Raises:
            NonDeterministicReplayError: rows or their content differ.
        """
        found = _together(tasks)
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
        found = _together(work.content for work in (*self.delivered(outcomes), *replayed))
        if found != (self.rows, self.fingerprint):
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


def _together(contents: Iterable[Content]) -> Content:
    rows, fingerprints = 0, []
    for count, fingerprint in contents:
        rows += count
        fingerprints.append(fingerprint)
    return rows, combined(fingerprints)

"""What a new version of an app made of batches that the old one has delivered.

Rows are compared by the fingerprints that decisions keep, and where these differ by content. What
could not be compared is *not known*, and never the same.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from airflow_eos.protocol.decision import Stored
from airflow_eos.protocol.promise import Content

Verdict = Literal["same", "differs", "not known"]

SAME, DIFFERS, FAILED, NOT_KNOWN = 0, 1, 2, 3
"""Exit statuses, as those of the audit."""


class RowExample(msgspec.Struct, frozen=True):
    """One row or pair of rows that differs, as text.

    Attributes:
        what: ``changed``: readers have another row of the key; ``missing``: the new version does
            not give it; ``new``: readers do not have it.
        key: by which rows are paired; empty where none has one.
        delivered: what readers have of it: the columns that differ.
        rehearsed: what the new version gives.
    """

    what: Literal["changed", "missing", "new"]
    key: str
    delivered: str = ""
    rehearsed: str = ""


class RowDifference(msgspec.Struct, frozen=True):
    """How many rows differ, by content.

    Attributes:
        changed: pairs of a row that readers have and another one of its key.
        missing: rows that readers have, and the new version does not give.
        new: rows that it gives, and readers do not have.
        examples: some of them.
        untold: columns of which it is not known whether the old version has set them, since the
            system fills them in.
    """

    changed: int = 0
    missing: int = 0
    new: int = 0
    examples: tuple[RowExample, ...] = ()
    untold: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.missing or self.new)


class OutputComparison(msgspec.Struct, frozen=True):
    """One output of one batch.

    Attributes:
        batch: Spark's number.
        output: the participant's name; empty where the batch as a whole could not be compared.
        verdict: see the module.
        delivered: rows that were promised; None where no decision says so.
        rehearsed: rows that the new version gives; None where it was not evaluated.
        difference: by content; None where it was not needed or could not be had.
        why: what has no answer, for people.
    """

    batch: int
    output: str
    verdict: Verdict
    delivered: int | None = None
    rehearsed: int | None = None
    difference: RowDifference | None = None
    why: str = ""


def compared(
    batch: int,
    output: str,
    promised: Content,
    rehearsed: Content,
    difference: RowDifference | str | None,
) -> OutputComparison:
    """The verdict on one output.

    Args:
        batch: Spark's number.
        output: the participant's name.
        promised: rows and fingerprint, by the decisions.
        rehearsed: what the new version gives.
        difference: what the content says, or why it could not be had; None where nobody had to ask.
    """
    rows = (promised[0], rehearsed[0])
    if promised == rehearsed:
        return OutputComparison(batch, output, "same", *rows)
    if not isinstance(difference, RowDifference):
        why = difference or "the content was not asked"
        return OutputComparison(batch, output, "differs", *rows, why=why)
    if difference:
        return OutputComparison(batch, output, "differs", *rows, difference)
    if difference.untold:
        names = ", ".join(difference.untold)
        why = f"rows are the same but for {names}: whether the old version has set them"
        return OutputComparison(batch, output, "not known", *rows, difference, why)
    return OutputComparison(batch, output, "same", *rows, difference)


class RehearsalReport(Stored, frozen=True, kw_only=True):
    """What a rehearsal found.

    Attributes:
        checkpoint: of the old version, which was only read.
        compared: by batch and output.
        copied_bytes: of the checkpoint, most of them state.
        seconds: from the first batch to the end of the last one.
        error: what the new version failed with; batches after it were not evaluated.
    """

    checkpoint: str
    compared: tuple[OutputComparison, ...]
    copied_bytes: int
    seconds: float
    error: str

    @property
    def exit_status(self) -> int:
        """0 nothing differs, 1 something does, 2 it failed, 3 not known."""
        if self.error:
            return FAILED
        verdicts = {each.verdict for each in self.compared}
        if "differs" in verdicts:
            return DIFFERS
        return SAME if verdicts == {"same"} else NOT_KNOWN

    @property
    def verdict(self) -> str:
        """The exit status as a word."""
        return {SAME: "same", DIFFERS: "differs", FAILED: "failed"}.get(
            self.exit_status, "not known"
        )

    def to_json(self) -> str:
        """For programs; the verdict comes first."""
        told = {"verdict": self.verdict, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()

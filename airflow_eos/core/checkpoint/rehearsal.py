"""A copy of a checkpoint in which delivered batches are in flight once more, one after another.

Spark runs just the newest planned batch again, over the range that its entry says. So a batch N is
laid out as a driver that died in it would have left it: ``offsets/N``, ``commits/N-1``, and the
state as batch N-1 has left it. The checkpoint itself is only read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import msgspec

from airflow_eos.core.checkpoint.backend import COMMITS, METADATA, OFFSETS, SOURCES, STATE_STORES
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.mending import beside, decided_offsets
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.rulings import INPUT, read_acceptance
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Stored
from airflow_eos.core.protocol.promise import Content, Promise
from airflow_eos.core.settings import environment
from airflow_eos.errors import CheckpointFormatError, ConfigurationError

REHEARSAL = "EOS_REHEARSAL"
REPORT = "rehearsal.json"
_VERSIONED = re.compile(r"([0-9]+)[._]", re.ASCII)
_COPIES_AT_ONCE = 8


class RehearsalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request, as JSON, by which an app is told to rehearse.

    Attributes:
        checkpoint: the old version's; the app must be about to start on it.
        scratch: an empty location that drivers and executors reach, for the copy and the report.
        key: columns by which rows are paired; none: ``key``, where an output has one.
        keep: an empty topic that the rows go to, too; an empty string for none.
    """

    checkpoint: str
    scratch: str
    batches: int
    key: tuple[str, ...] = ()
    examples: int = 3
    keep: str = ""

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ
    ) -> RehearsalRequest | None:
        """Read the request from the environment; None where this start is no rehearsal.

        Raises:
            ConfigurationError: the request cannot be read. Nothing is delivered then, either.
        """
        text = environment.get(REHEARSAL)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{REHEARSAL} cannot be read: {error}.") from error

    def environment(self) -> dict[str, str]:
        """Return the variables that tell an app to rehearse; its checkpoint among them."""
        told = msgspec.json.encode(self).decode()
        return {REHEARSAL: told} | environment(checkpoint_location=self.checkpoint)


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """The batches that can be evaluated again, and those that cannot.

    Attributes:
        promises: by batch, one after another, without a gap; read now, before they are pruned.
        unknown: earlier batches that were asked for, and why each cannot be compared.
    """

    promises: Mapping[int, Promise]
    unknown: Mapping[int, str]

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of the batches to evaluate, in ascending order."""
        return tuple(sorted(self.promises))


def rehearsable(store: CheckpointStore, most: int) -> RehearsalPlan:
    """Return the newest ``most`` delivered batches, as far back as each can be compared.

    Raises:
        ConfigurationError: nothing was delivered yet.
    """
    newest = read_state(store).latest_commit
    if newest is None:
        raise ConfigurationError(f"{store.location} has no complete batch: nothing to compare.")
    asked = range(max(0, newest - most + 1), newest + 1)
    promises: dict[int, Promise] = {}
    for batch in reversed(asked):
        found = _promised(store, batch)
        if isinstance(found, str):
            earlier = dict.fromkeys(range(asked.start, batch), f"batch {batch} comes after it")
            return RehearsalPlan(promises, {**earlier, batch: found})
        promises[batch] = found
    return RehearsalPlan(promises, {})


def _promised(store: CheckpointStore, batch: int) -> Promise | str:
    """Return what was promised of the batch, or why it cannot be compared."""
    promise, log = Promise.of(DecisionLog(store).of_batch(batch)), SparkLog(store)
    if promise is None:
        return "no decision says which rows it has"
    if read_acceptance(store, batch, promise.nonce) is not None:
        return "a person has let it go on as it was: readers do not have all that was promised"
    if batch and (log.offsets(batch - 1) is None or log.commit(batch - 1) is None):
        return "Spark's log does not go back to where it begins"
    return promise


class CheckpointCopy:
    """The copy of a checkpoint in which delivered batches are evaluated again."""

    def __init__(self, original: CheckpointStore, scratch: CheckpointStore) -> None:
        self._original = original
        self._scratch = scratch
        self._decisions = DecisionLog(original)
        self.copied_bytes = 0

    def begin(self, batch: int) -> None:
        """Copy all that a first batch, or one after a gap, needs but its own entry."""
        paths = [METADATA, *self._original.below(SOURCES), *self._original.below(INPUT)]
        if batch:
            self._put(f"{OFFSETS}/{batch - 1}", self._planned(batch - 1).encode())
            paths.append(f"{COMMITS}/{batch - 1}")
            paths += [
                path for path in self._original.below(STATE_STORES) if _is_before(path, batch)
            ]
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            for copied in pool.map(self._copied, paths):
                self.copied_bytes += copied

    def plan(self, batch: int) -> None:
        """Put the batch in flight: over the range that was delivered, with the copy's watermark.

        The original's watermark is what the old version made of the batches before.
        """
        text = self._planned(batch)
        before = SparkLog(self._scratch).commit(batch - 1) if batch else None
        if before is not None:
            text = with_watermark(text, before.next_watermark_ms)
        self._put(f"{OFFSETS}/{batch}", text.encode())

    def _planned(self, batch: int) -> str:
        """Return the batch's entry: the decision's where it differs from Spark's."""
        decided = decided_offsets(self._decisions, batch)
        if decided is not None:
            return decided
        data = self._original.get(f"{OFFSETS}/{batch}")
        if data is None:
            raise CheckpointFormatError(
                f"{self._original.location}/{OFFSETS}/{batch} is gone: the pipeline that runs has "
                "removed it meanwhile. Rehearse fewer batches."
            )
        return data.decode()

    def _copied(self, path: str) -> int:
        data = self._original.get(path)
        if data is None:
            return 0  # Spark's maintenance removes old files; what was needed is missed by Spark
        self._put(path, data)
        return len(data)

    def _put(self, path: str, data: bytes) -> None:
        self._scratch.delete([beside(path)])
        self._scratch.put(path, data)


def with_watermark(text: str, watermark_ms: int) -> str:
    """Return an entry of ``offsets/`` with this watermark; unchanged where it has that already."""
    lines = text.split("\n")
    metadata = json.loads(lines[1])
    if metadata["batchWatermarkMs"] == watermark_ms:
        return text
    metadata["batchWatermarkMs"] = watermark_ms
    lines[1] = json.dumps(metadata, separators=(",", ":"))
    return "\n".join(lines)


def _is_before(path: str, batch: int) -> bool:
    """Whether a file of the state was there when the batch began, or is of no version.

    Batch N reads version N, which the batch before it has written.
    """
    version = _VERSIONED.match(path.rpartition("/")[2])
    return version is None or int(version[1]) <= batch


# --- reports --------------------------------------------------------------------------------------
# What a new version of an app made of batches that the old one has delivered.
#
# Rows are compared by the fingerprints that decisions keep, and where these differ by content. What
# could not be compared is *not known*, and never the same.


Verdict = Literal["same", "differs", "not known"]

SAME, DIFFERS, FAILED, NOT_KNOWN = 0, 1, 2, 3
"""Exit statuses of a rehearsal, the same as those of the audit."""


class RowExample(msgspec.Struct, frozen=True):
    """One row or pair of rows that differs, as text.

    Attributes:
        what: ``changed``: readers have another row of the key; ``missing``: the new version does
            not give it; ``new``: readers do not have it.
        key: by which rows are paired; empty where none has one.
        delivered: what readers have of it: the columns that differ.
    """

    what: Literal["changed", "missing", "new"]
    key: str
    delivered: str = ""
    rehearsed: str = ""


class RowDifference(msgspec.Struct, frozen=True):
    """The number of rows that differ, by content, and examples.

    Attributes:
        changed: pairs of a row that readers have and another one of its key.
        missing: rows that readers have, and the new version does not give.
        new: rows that it gives, and readers do not have.
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
    """The comparison of one output of one batch.

    Attributes:
        output: the participant's name; empty where the batch as a whole could not be compared, or
            where it is what is read that differs, of the newest batch.
        verdict: ``not known`` where rows could not be compared, and never ``same``.
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
    """Return the verdict on one output of a batch.

    Args:
        promised: rows and fingerprint, by the decisions.
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
    """The report of a rehearsal.

    Attributes:
        checkpoint: of the old version, which was only read.
        copied_bytes: how many of the checkpoint were copied, most of them state.
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
        """The exit status: 0 nothing differs, 1 something does, 2 the app failed, 3 not known."""
        if self.error:
            return FAILED
        verdicts = {each.verdict for each in self.compared}
        if "differs" in verdicts:
            return DIFFERS
        return SAME if verdicts == {"same"} and not self.is_empty else NOT_KNOWN

    @property
    def has_other_rows(self) -> bool:
        """Whether an output differs, and not only what is read."""
        return any(each.verdict == "differs" and each.output for each in self.compared)

    @property
    def is_empty(self) -> bool:
        """Whether no batch has a row, as where none closes a window: nothing was compared."""
        return all(each.delivered == 0 == each.rehearsed for each in self.compared)

    @property
    def verdict(self) -> str:
        """The exit status as a word."""
        return {SAME: "same", DIFFERS: "differs", FAILED: "failed"}.get(
            self.exit_status, "not known"
        )

    def to_json(self) -> str:
        """Return the report as JSON for programs; the verdict comes first."""
        told = {"verdict": self.verdict, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()

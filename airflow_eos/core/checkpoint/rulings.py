"""A person's rulings where no program may decide; three kinds, each an immutable object.

- What became of promised work whose outcome nobody can read any more: ``eos/rulings/<key>.json``.
- That a batch counts as delivered as it is, whatever is missing of its promise:
  ``eos/rulings/batches/<batch>.json``.
- That offsets of the input are stepped over, because nobody can read what they hold:
  ``eos/rulings/input/<topic>/<partition>/<first>-<last>.json``.

Created if absent: the first ruling stands for ever, because readers of it may already have acted.
Both recovery and the starting driver consult them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping

from airflow_eos.core.checkpoint.backend import EOS, is_hidden
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.layout import newest_planned
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.protocol.decision import Outcome, Stored, WorkIdentity, encode, is_key
from airflow_eos.core.protocol.promise import OperatorRuling, Promise
from airflow_eos.errors import ConfigurationError, DecisionNeededError, Remedy, StoreError

RULINGS = f"{EOS}/rulings"
INPUT = f"{RULINGS}/input"


class Ruling(Stored, frozen=True, kw_only=True):
    """A ruling on work: COMMITTED (readers have its rows) or ABORTED (they do not: replay them)."""

    work: WorkIdentity
    outcome: Outcome
    ruled_by: str
    ruled_at_ms: int
    nonce: str


class Acceptance(Stored, frozen=True, kw_only=True):
    """A ruling that batch ``batch_id`` counts as delivered, though ``rows`` rows are missing.

    ``missing`` has the missing rows of each participant, by name, when the ruling was made.
    ``promise`` is the nonce of the COMMIT decision that promised the batch, so that no copy of
    this ruling speaks of another promise. ``given_up`` is work that could still have been
    committed then, and is never to be.
    """

    batch_id: int
    promise: str
    rows: int
    missing: dict[str, int]
    given_up: tuple[WorkIdentity, ...]
    ruled_by: str
    ruled_at_ms: int
    nonce: str


class SkippedInput(Stored, frozen=True, kw_only=True):
    """A ruling that offsets ``first`` to ``last``, both included, are never read by this query."""

    topic: str
    partition: int
    first: int
    last: int
    ruled_by: str
    ruled_at_ms: int
    nonce: str


def resolve(
    store: CheckpointStore,
    work: WorkIdentity,
    outcome: Outcome,
    *,
    ruled_by: str = "a person",
) -> Ruling:
    """Record the outcome of ``work``, by a person's word; return the ruling that stands.

    The caller makes sure that no system tells the outcome: ``recover --assume`` takes only work
    that a fresh plan ASKs about.

    Raises:
        ConfigurationError: The outcome is neither COMMITTED nor ABORTED, the id is no name, or the
            opposite is proven.
        DecisionNeededError: It was ruled the other way before.
        CheckpointFormatError: The ruling that stands there cannot be read.
    """
    if outcome not in (Outcome.COMMITTED, Outcome.ABORTED):
        raise ConfigurationError(
            f"A ruling says committed or aborted, not {outcome.value!r}: look at the output topic."
        )
    proof = proven(store).get(work, outcome)
    if proof is not outcome:
        raise ConfigurationError(
            f"{work} cannot be ruled {outcome.value!r}: {proof.value!r} is proven, by a later "
            "COMMIT decision of its batch, which named again just what was missing. Nothing was "
            "recorded.",
            Remedy(start=True),
        )
    ruling = Ruling(
        work=work,
        outcome=outcome,
        ruled_by=ruled_by,
        ruled_at_ms=time.time_ns() // 1_000_000,
        nonce=uuid.uuid4().hex,
    )
    if store.create(_path(work), encode(ruling)):
        return ruling
    there = _read(store, work)
    if there is None or there.outcome is not outcome:
        found = "gone again" if there is None else f"{there.outcome.value!r}"
        raise DecisionNeededError(
            f"{work} was ruled before, and that ruling is {found}, not {outcome.value!r}. "
            "A ruling cannot be changed, because the pipeline may have acted on it. If it was "
            f"wrong, stop the pipeline and look at {store.location}/{_path(work)}."
        )
    return there


def proven(store: CheckpointStore) -> Mapping[WorkIdentity, Outcome]:
    """Return the outcomes that later COMMIT decisions of the newest batch prove."""
    batch = newest_planned(store)
    promise = Promise.of(DecisionLog(store).of_batch(batch)) if batch is not None else None
    return promise.known({}) if promise is not None else {}


def read_rulings(
    store: CheckpointStore, works: Iterable[WorkIdentity]
) -> Mapping[WorkIdentity, Outcome]:
    """Return the outcomes that a person ruled, for those of ``works`` that have one.

    Ask only for work whose outcome the system does not tell: each costs one read of the store.
    """
    found = {}
    for work in works:
        ruling = _read(store, work)
        if ruling is not None:
            found[work] = ruling.outcome
    return found


def with_rulings(
    store: CheckpointStore, told: Mapping[WorkIdentity, Outcome]
) -> Mapping[WorkIdentity, Outcome]:
    """Return the outcomes that witnesses told, and a person's ruling where one is UNKNOWN."""
    mute = [work for work, outcome in told.items() if outcome is Outcome.UNKNOWN]
    return {**told, **read_rulings(store, mute)}


def rulings_on_promise(store: CheckpointStore, promise: Promise) -> OperatorRuling:
    """Return all rulings of a person on one batch, on its work and as a whole.

    Hardly any work has a ruling, so a listing goes first, which tells no hidden names.
    """
    accepted = read_acceptance(store, promise.batch_id, promise.nonce)
    there = {entry.name for entry in store.list(RULINGS)}
    works = [work.identity for work in promise.works]
    asked = [work for work in works if f"{work.key}.json" in there or is_hidden(work.key)]
    ruled = read_rulings(store, asked)
    return OperatorRuling(
        committed=frozenset(each for each, was in ruled.items() if was is Outcome.COMMITTED),
        missing_rows=accepted.missing if accepted is not None else {},
    )


def accept(
    store: CheckpointStore,
    batch_id: int,
    promise: str,
    *,
    missing: Mapping[str, int],
    ruled_by: str,
    given_up: Collection[WorkIdentity] = (),
) -> Acceptance:
    """Record that the batch counts as delivered as it is; return the ruling that stands.

    The caller makes sure that something is ``missing`` (rows, by the participant's name), and that
    a person has seen how much.

    Raises:
        DecisionNeededError: A ruling about another promise stands in its place, or one that gives
            up less.
        CheckpointFormatError: The ruling that stands there cannot be read.
    """
    acceptance = Acceptance(
        batch_id=batch_id,
        promise=promise,
        rows=sum(missing.values()),
        missing=dict(missing),
        given_up=tuple(sorted(given_up)),
        ruled_by=ruled_by,
        ruled_at_ms=time.time_ns() // 1_000_000,
        nonce=uuid.uuid4().hex,
    )
    if store.create(_batch_path(batch_id), encode(acceptance)):
        return acceptance
    there = read_acceptance(store, batch_id, promise)
    if there is None:
        raise StoreError(
            f"{store.location}/{_batch_path(batch_id)} was written and is gone: who deletes it?"
        )
    more = set(given_up) - set(there.given_up)
    if more:
        raise DecisionNeededError(
            f"{store.location}/{_batch_path(batch_id)} was made by {there.ruled_by} and does "
            f"not give up {min(more)}, which could be committed since. Make sure that no driver "
            "runs, remove that file, and accept the batch again."
        )
    return there


def read_acceptance(store: CheckpointStore, batch_id: int, promise: str) -> Acceptance | None:
    """Return the ruling that lets the pipeline go on without what is missing of ``promise``.

    Args:
        promise: The nonce of the batch's first COMMIT decision.

    Raises:
        DecisionNeededError: The ruling speaks of another batch or promise.
        CheckpointFormatError: It cannot be read.
    """
    path = _batch_path(batch_id)
    found = store.read(path, Acceptance)
    if found is None:
        return None
    if (found.batch_id, found.promise) != (batch_id, promise):
        raise DecisionNeededError(
            f"{store.location}/{path} speaks of batch {found.batch_id} as promised by the decision "
            f"{found.promise}, not of batch {batch_id} and {promise}: it was copied or renamed, or "
            "the checkpoint is not the one it was made for. Nothing was given up; remove it and "
            "rule again."
        )
    store.make_durable(path)
    return found


def is_accepted(store: CheckpointStore, batch_id: int) -> bool:
    """Whether a person let the batch go on as it was, so that its promise tells no numbers."""
    return store.head(_batch_path(batch_id)) is not None


def skip_input(
    store: CheckpointStore, topic: str, partition: int, first: int, last: int, *, ruled_by: str
) -> SkippedInput:
    """Record that these offsets are stepped over; return the ruling that stands.

    The caller makes sure that no promise that is to be kept has rows of them, and that a person has
    seen how many.

    Raises:
        DecisionNeededError: What stands in its place speaks of other offsets.
        CheckpointFormatError: It cannot be read.
    """
    ruling = SkippedInput(
        topic=topic,
        partition=partition,
        first=first,
        last=last,
        ruled_by=ruled_by,
        ruled_at_ms=time.time_ns() // 1_000_000,
        nonce=uuid.uuid4().hex,
    )
    path = _input_path(ruling)
    return ruling if store.create(path, encode(ruling)) else _read_skipped(store, path)


def skipped_input(store: CheckpointStore, topics: Iterable[str]) -> tuple[SkippedInput, ...]:
    """Return all offsets of these topics that are stepped over, in the order of their names.

    Raises:
        DecisionNeededError: A ruling is not where it belongs.
        CheckpointFormatError: One cannot be read.
    """
    return tuple(
        _read_skipped(store, entry.path)
        for topic in sorted(topics)
        for partition in sorted(store.folders(f"{INPUT}/{topic}"))
        for entry in store.list(f"{INPUT}/{topic}/{partition}")
    )


def _read_skipped(store: CheckpointStore, path: str) -> SkippedInput:
    found = store.read(path, SkippedInput)
    if found is None:
        raise StoreError(f"{store.location}/{path} was there and is gone: who deletes it?")
    if _input_path(found) != path:
        raise DecisionNeededError(
            f"{store.location}/{path} speaks of offsets {found.first} to {found.last} of partition "
            f"{found.partition} of topic {found.topic!r}: it was copied or renamed. Nothing was "
            "read.",
            Remedy(change="remove it, and rule again", start=True),
        )
    store.make_durable(path)
    return found


def _input_path(ruling: SkippedInput) -> str:
    return f"{INPUT}/{ruling.topic}/{ruling.partition}/{ruling.first}-{ruling.last}.json"


def _read(store: CheckpointStore, work: WorkIdentity) -> Ruling | None:
    path = _path(work)
    ruling = store.read(path, Ruling)
    if ruling is None:
        return None
    if ruling.work != work or ruling.outcome is Outcome.OPEN:
        raise DecisionNeededError(
            f"{store.location}/{path} speaks of {ruling.work} ({ruling.outcome.value}): it "
            "was copied or renamed. Nothing was assumed; remove it and rule again."
        )
    store.make_durable(path)
    return ruling


def _path(work: WorkIdentity) -> str:
    if not is_key(work.key):
        raise ConfigurationError(
            f"{work.key!r} is no key of prepared work: expected letters, digits, dots, underscores "
            "and hyphens. Take it from the plan."
        )
    return f"{RULINGS}/{work.key}.json"


def _batch_path(batch_id: int) -> str:
    return f"{RULINGS}/batches/{batch_id}.json"

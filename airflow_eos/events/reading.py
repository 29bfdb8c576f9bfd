"""The settled batches of a checkpoint, from Spark's log and from the decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.logs import kafka_offsets, parse_offsets
from airflow_eos.checkpoint.paths import COMMITS, OFFSETS, is_batch
from airflow_eos.checkpoint.spark_log import SparkLog
from airflow_eos.checkpoint.state import read_state
from airflow_eos.errors import CheckpointFormatError, Remedy, SupersededError
from airflow_eos.events.settled import Settled, SettledBatch
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.checkpoint.logs import OffsetsEntry
    from airflow_eos.checkpoint.store import CheckpointStore


def pipeline_of(store: CheckpointStore) -> str | None:
    """The query's id, which Spark gives to a checkpoint once and for ever; None before that.

    Raises:
        CheckpointFormatError: the file ``metadata`` is damaged.
        StoreError: the store did not answer.
    """
    return SparkLog(store).query_id()


def newest_settled(store: CheckpointStore) -> int | None:
    """The newest batch whose rows every reader can see; None before the first.

    Spark writes ``commits/N`` only after the sink has returned, and ours returns only when all that
    was decided is settled.

    Raises:
        CheckpointFormatError: Spark's logs cannot be read, or do not fit together.
        StoreError: the store did not answer.
    """
    state = read_state(store)
    if state.mends:
        damaged = "; ".join(map(str, state.mends))
        raise CheckpointFormatError(
            f"{store.location} is damaged: {damaged}. Nothing is told of it until then.",
            Remedy(start=True),
        )
    return state.latest_commit


def read_settled(
    store: CheckpointStore, *, after: int | None, at_most: int | None = None
) -> Settled:
    """What is settled, with the batches after ``after`` as far as Spark still has them.

    Costs the look of :func:`newest_settled`, two listings, and some small reads for each batch.

    Args:
        store: the checkpoint.
        after: the last batch that was told; None: none was.
        at_most: the oldest so many of these batches; None: all.

    Raises:
        CheckpointFormatError: Spark's logs or a decision cannot be read.
        StoreError: the store did not answer.
    """
    log = SparkLog(store)
    newest = newest_settled(store)
    query_id = pipeline_of(store) or ""
    if newest is None:
        return Settled(query_id, None, {}, ())
    first = 0 if after is None else after + 1
    kept = _numbers(store, OFFSETS) & _numbers(store, COMMITS)
    batches = []
    for batch in sorted(number for number in kept if first <= number <= newest):
        found = _batch(store, log, batch)
        if found is not None:  # else it was purged since it was listed
            batches.append(found)
        if at_most is not None and len(batches) == at_most:
            break
    sources = batches[0].end if batches else ()
    began = {name: _named(start) for name in sources if (start := log.began(name)) is not None}
    return Settled(query_id, newest, began, tuple(batches))


def _numbers(store: CheckpointStore, folder: str) -> set[int]:
    return {int(entry.name) for entry in store.list(folder) if is_batch(entry.name)}


def _batch(store: CheckpointStore, log: SparkLog, batch: int) -> SettledBatch | None:
    commit, written = log.commit(batch), log.find("commits", batch)
    try:
        promise = Promise.of(DecisionLog(store).of_batch(batch))
    except SupersededError:
        promise = None  # its decisions are being pruned
    decided = promise.commits[0].offsets if promise is not None else None
    entry = log.offsets(batch)
    if decided is not None:  # Spark's log is not exclusive; where the two differ, this one is right
        entry = parse_offsets(decided.encode(), f"the decision of batch {batch}")
    if commit is None or written is None or entry is None:
        return None
    return SettledBatch(
        batch_id=batch,
        end=_ends(entry),
        rows=None if promise is None else _rows(promise),
        watermark_ms=commit.next_watermark_ms or None,
        settled_at_ms=written.modified_at_ms,
    )


def _ends(entry: OffsetsEntry) -> dict[str, Any]:
    """By source; one that has not given anything yet is left out."""
    found = {name: raw for name, raw in entry.ends.items() if raw is not None}
    return {
        name: raw if (kafka := kafka_offsets(raw)) is None else _named(kafka)
        for name, raw in found.items()
    }


def _named(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    """As JSON has it, where a partition is a name."""
    return {
        topic: {str(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in offsets.items()
    }


def _rows(promise: Promise) -> dict[str, int]:
    rows: dict[str, int] = {}
    for work in promise.promised:
        if not work.follows:
            rows[work.participant] = rows.get(work.participant, 0) + work.rows
    return rows

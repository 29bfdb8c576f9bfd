"""Read what the planner needs, in the order on which the proof rests.

First the open transactions are listed, then the checkpoint and the decisions are read. What was
open at the listing therefore belongs to the newest batch that is read afterwards, or to an older
one, and what no decision names once the next attempt is sealed can never be named.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.liveness import read_heartbeat
from airflow_eos.checkpoint.pipeline import read_pipeline
from airflow_eos.checkpoint.state import read_state
from airflow_eos.errors import CheckpointError, ConfigurationError, OwnershipError
from airflow_eos.failpoints import failpoint
from airflow_eos.kafka.transactions.listing import list_open
from airflow_eos.kafka.transactions.outcomes import outcomes
from airflow_eos.recovery.plan import Facts
from airflow_eos.recovery.promise import named_by
from airflow_eos.recovery.rulings import read_rulings
from airflow_eos.transactions import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_eos.checkpoint.decisions import Decision
    from airflow_eos.checkpoint.pipeline import Pipeline
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.kafka.client.wire import Wire
    from airflow_eos.transactions import OpenTransaction, TransactionIdentity


def gather(store: CheckpointStore, wire: Wire, *, prefix: str | None = None) -> Facts:
    """List what is open under the pipeline's prefix (or ``prefix``), then read all the rest.

    Raises:
        ConfigurationError: The checkpoint names no pipeline and no prefix was given.
        OwnershipError: The pipeline belongs to another Kafka cluster than the one asked.
        CheckpointError: The checkpoint cannot be read, or is an older copy.
        KafkaError: The cluster cannot be reached or refuses.
    """
    listed_under = _prefix(store, prefix)
    listed = list_open(wire, listed_under)
    failpoint("recovery-listed")
    return read_facts(store, wire, listed, prefix=listed_under)


def read_facts(
    store: CheckpointStore,
    wire: Wire,
    listed: Iterable[OpenTransaction],
    *,
    prefix: str,
    listed_batch: int | None = None,
) -> Facts:
    """Read everything but the listing. Call it again with the same one as often as needed.

    Args:
        store: The checkpoint.
        wire: The Kafka cluster.
        listed: What was open under ``prefix`` before this call.
        prefix: See :class:`Facts`.
        listed_batch: The newest batch when the listing was young; None when this is the first
            reading after it.
    """
    pipeline = read_pipeline(store)
    _require_cluster(store, pipeline, wire.cluster_id)
    state = read_state(store)
    log = DecisionLog(store)
    newest = state.latest_offsets
    _require_not_rolled_back(store, log, newest, listed_batch)
    batch = newest if listed_batch is None else listed_batch
    decisions = log.of_batch(batch) if batch is not None else ()
    listed = tuple(listed)
    in_flight = batch is not None and batch == state.in_flight
    ours = pipeline is not None and pipeline.transactional_id_prefix == prefix
    return Facts(
        location=store.location,
        prefix=prefix,
        cluster_id=wire.cluster_id,
        pipeline=pipeline,
        checkpoint=state,
        listed_batch=batch,
        decisions=decisions,
        listed=listed,
        # A complete batch was settled before Spark completed it: its outcomes are not asked for,
        # or an idle pipeline would be ASKed about as soon as its rows pass retention.
        outcomes=_outcomes(store, wire, decisions, listed) if in_flight and ours else {},
        heartbeat=read_heartbeat(store),
        now_ms=time.time_ns() // 1_000_000,
    )


def _prefix(store: CheckpointStore, given: str | None) -> str:
    """The prefix to list. ``pipeline.json`` never changes, so it may be read before the listing."""
    if given is not None:
        return given
    pipeline = read_pipeline(store)
    if pipeline is not None:
        return pipeline.transactional_id_prefix
    raise ConfigurationError(
        f"{store.location} names no pipeline: there is no eos/pipeline.json. Is this the "
        "checkpoint location that the query uses? If the checkpoint is lost, give the "
        "transactional id prefix (--prefix) to see what is still open under it."
    )


def _require_cluster(store: CheckpointStore, pipeline: Pipeline | None, cluster_id: str) -> None:
    if pipeline is not None and pipeline.cluster_id != cluster_id:
        raise OwnershipError(
            f"The pipeline of {store.location} writes to Kafka cluster {pipeline.cluster_id!r}, "
            f"but the one that was asked is {cluster_id!r}. Nothing was done: give the bootstrap "
            "servers or the connection of the pipeline's own cluster."
        )


def _require_not_rolled_back(
    store: CheckpointStore, log: DecisionLog, newest: int | None, listed_batch: int | None
) -> None:
    """Refuse an older copy of a checkpoint: its newest batches were decided already.

    Asked of the batch after the newest one only, which costs one listing. A live driver may
    begin and decide that batch between two readings, so Spark's log is read once more.
    """
    after = 0 if newest is None else newest + 1
    found = listed_batch is not None and after <= listed_batch
    if not found and any(each.verdict.name == "COMMIT" for each in log.of_batch(after)):
        latest = read_state(store).latest_offsets
        found = latest is None or latest < after
    if found:
        raise CheckpointError(
            f"{store.location} is older than what was decided on it: Spark's newest batch is "
            f"{newest}, but batch {after} was promised or seen before. It looks like an older "
            "copy put back. Nothing was done: restore the newest copy (offsets/, commits/ and "
            "eos/ together); resuming from this one would deliver rows twice."
        )


def _outcomes(
    store: CheckpointStore,
    wire: Wire,
    decisions: Iterable[Decision],
    listed: tuple[OpenTransaction, ...],
) -> Mapping[TransactionIdentity, Outcome]:
    """Ask the log about what was decided and is not open; a person's ruling where it is mute."""
    is_open = {each.identity for each in listed}
    decided = [entry.transaction for entry in named_by(decisions) if entry.identity not in is_open]
    found = dict(outcomes(wire, decided)) if decided else {}
    mute = [identity for identity, outcome in found.items() if outcome is Outcome.UNKNOWN]
    return {**found, **read_rulings(store, mute)}

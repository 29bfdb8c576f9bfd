"""Recovery of the Kafka transactions that Flink left open, by its checkpoint, as a person asks."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping

from airflow_eos.core.checkpoint.locations import located
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.errors import (
    CheckpointError,
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    PipelineAliveError,
    Remedy,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import Deadline, wait
from airflow_eos.kafka.transactions.coordinator import EndResult, end_transactions
from airflow_eos.kafka.transactions.hanging import require_ended_everywhere
from airflow_eos.kafka.transactions.identity import OpenTransaction, TransactionIdentity
from airflow_eos.kafka.transactions.listing import (
    described,
    list_lookalikes,
    open_in_partitions,
    raised_by_a_commit,
)
from airflow_eos.ops.flink.state import (
    CoordinatorState,
    FlinkCheckpoint,
    ForeignAction,
    ForeignPlan,
    is_of_flink,
    make_plan,
    read_checkpoint,
)

_METADATA = "_metadata"
_SHOWN = 50
_CHECKPOINT = re.compile("chk-([0-9]+)")


def plan_flink(
    wire: ConnectionPool,
    location: str,
    prefixes: Collection[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    deadline_s: float = 60.0,
) -> ForeignPlan:
    """Return the plan for the transactions that Flink left open; change nothing.

    Args:
        location: folder of the completed checkpoint that Flink is to be restored from.
        prefixes: ``sink.transactional-id-prefix`` of the sinks whose transactions are planned.

    Raises:
        ConfigurationError: no sink of the checkpoint has one of the prefixes.
        CheckpointFormatError: it is not known for sure what the checkpoint promises.
        CheckpointError: the checkpoint is not complete, or not the newest of its job.
        KafkaError: not all transactions could be listed.
    """
    deadline = Deadline(deadline_s)
    still_open: dict[OpenTransaction, str] = {}
    for prefix in prefixes:
        # Raises without the right to describe: the listing would then be empty.
        wire.cluster.coordinators([f"{prefix}-0-0"], timeout_s=deadline.remaining)
        still_open |= dict(list_lookalikes(wire, prefix, deadline_s=deadline.remaining))
    try:
        checkpoint = _read(location, storage_options)
    except CheckpointFormatError as error:
        raise _with_list(error, still_open) from error
    unknown = sorted(set(prefixes) - set(checkpoint.prefixes))
    if unknown or not prefixes:
        raise ConfigurationError(
            f"No exactly-once sink in {location} has the transactional id prefix "
            f"{', '.join(unknown) or 'that is to be named'}; its sinks have "
            f"{', '.join(checkpoint.prefixes) or 'none'}.",
            Remedy(change="name with --prefix the one that is meant"),
        )
    promised = {
        each.transactional_id
        for each in checkpoint.promised
        if any(is_of_flink(each.transactional_id, prefix) for prefix in prefixes)
    }
    told = {
        each.transactional_id: CoordinatorState(
            each.transaction_state, each.producer_id, each.producer_epoch
        )
        for each in described(wire, promised, deadline)
    }
    return make_plan(location, checkpoint, prefixes, still_open, told, raised_by_a_commit(wire))


def _with_list(error: CheckpointFormatError, still_open: Collection[OpenTransaction]) -> Exception:
    """Return the error, preceded by the open transactions (oldest first) for a person to judge."""
    now_ms = time.time_ns() // 1_000_000
    each = [
        f"{one.identity} for {(now_ms - one.started_at_ms) // 1000} s in "
        + " ".join(f"{topic}/{partition}" for topic, partition in one.partitions)
        for one in sorted(still_open, key=lambda each: each.started_at_ms)[:_SHOWN]
    ]
    if len(still_open) > _SHOWN:
        each.append(f"and {len(still_open) - _SHOWN} more, which kafka-transactions.sh list shows")
    told = CheckpointFormatError(f"Open now: {'; '.join(each) or 'nothing'}. {error}")
    told.remedies = error.remedies
    return told


def recover_flink(
    wire: ConnectionPool, plan: ForeignPlan, *, give_up_lost: bool = False, quiet_s: float = 10.0
) -> dict[TransactionIdentity, EndResult]:
    """Commit and abort the planned transactions, by id, producer id and epoch, and no others.

    A second run, or one at the same time elsewhere, has no further effect. A marker that a broker
    leaves out (KAFKA-20734) is written: Flink's next commit would show what was aborted.

    Args:
        plan: the plan that a person has seen.
        give_up_lost: go on although some promised transactions cannot be committed any more.
        quiet_s: for how long no row may be written, so that the job counts as stopped.

    Raises:
        DecisionNeededError: a promised transaction is lost, or its outcome is not known.
        PipelineAliveError: rows were written, or a transaction began, meanwhile.
        KafkaError: Kafka refused, or did not answer: call again. Or a marker is missing where a
            transaction has ended, which a second call does not look for.
    """
    lost = plan.of(ForeignAction.LOST)
    if lost and not give_up_lost:
        raise DecisionNeededError(
            f"Checkpoint {plan.checkpoint} promises {len(lost)} transactions that cannot be "
            f"committed any more, as {lost[0].identity}: {lost[0].reason}. Nothing was done.",
            Remedy(
                change="run the command again with --give-up-lost",
                costs="their rows: Flink restored from this checkpoint does not write them again",
            ),
            Remedy(
                change="restore Flink from a checkpoint before this one",
                costs="what was committed since is written twice",
            ),
        )
    commits, aborts = plan.of(ForeignAction.COMMIT), plan.of(ForeignAction.ABORT)
    if not commits and not aborts:
        return {}
    _require_quiet(wire, plan, quiet_s)
    done = end_transactions(wire, [step.identity for step in commits], commit=True)
    done |= end_transactions(wire, [step.identity for step in aborts], commit=False)
    for steps, commit in ((commits, True), (aborts, False)):
        partitions = {s.identity: s.places for s in steps if done[s.identity] is EndResult.DONE}
        require_ended_everywhere(wire, partitions, commit=commit)
    return done


def _require_quiet(wire: ConnectionPool, plan: ForeignPlan, quiet_s: float) -> None:
    """Refuse while the job runs: it would lose transactions that it is about to promise.

    Raises:
        PipelineAliveError: the job runs.
    """
    before = _written(wire, plan)
    wait(quiet_s)
    if _written(wire, plan) == before:
        return
    raise PipelineAliveError(
        f"Within {quiet_s:.0f} s rows were written, or a transaction began or ended: the job "
        "runs, and ends its transactions itself. Nothing was done.",
        Remedy(change="stop the job, wait until its task managers are gone, and plan again"),
    )


def _written(wire: ConnectionPool, plan: ForeignPlan) -> object:
    """Return a value that changes with each row that the job writes, and each begin and end.

    By what only grows: the times of rows are the job's to choose, and all alike in a backfill.
    """
    steps = plan.of(ForeignAction.COMMIT, ForeignAction.ABORT)
    still_open = {
        each
        for prefix in plan.prefixes
        for each, _ in list_lookalikes(wire, prefix)
        if is_of_flink(each.transactional_id, prefix)
    }
    partitions = {tp for step in steps for tp in step.places}
    partitions |= {tp for each in still_open for tp in each.partitions}
    producers = {step.producer_id for step in steps} | {each.producer_id for each in still_open}
    found = open_in_partitions(wire, partitions, Deadline(60.0))
    return still_open, {each for each in found if each.producer_id in producers}


def _read(location: str, options: Mapping[str, str] | None) -> FlinkCheckpoint:
    """Read the checkpoint's promises, if it is complete and the newest of its job.

    Raises:
        CheckpointError: as :func:`plan_flink`.
    """
    at = located(location)
    folder = str(at).removesuffix(f"/{_METADATA}")
    store = CheckpointStore.open(folder, storage_options=options)
    metadata = store.get(_METADATA)
    if metadata is None:
        raise CheckpointError(
            f"{store.location} has no {_METADATA}: it is no completed checkpoint or savepoint.",
            Remedy(change="name the folder chk-… or savepoint-… that Flink is to be restored from"),
        )

    def beside(name: str) -> bytes:
        found = store.get(name)
        if found is None:
            raise CheckpointError(
                f"{store.location} lacks {name}, which its {_METADATA} names: Flink cannot be "
                "restored from it either.",
                Remedy(change="restore the file, or name an older checkpoint"),
            )
        return found

    checkpoint = read_checkpoint(metadata, beside)
    _require_newest(folder, checkpoint, options)
    return checkpoint


def _require_newest(
    folder: str, checkpoint: FlinkCheckpoint, options: Mapping[str, str] | None
) -> None:
    """Refuse an older checkpoint: a later one's promises would be aborted, and lost to Flink.

    Raises:
        CheckpointError: the job has a later completed checkpoint.
    """
    parent, _, name = folder.rpartition("/")
    if _CHECKPOINT.fullmatch(name) is None:
        return  # a savepoint stands alone
    above, _, job = parent.rpartition("/")
    if not job or above.endswith(":/"):
        raise CheckpointError(
            f"{folder} is at the root: whether it is the newest of its job cannot be listed.",
            Remedy(change="copy the job's checkpoints into a folder, and name it there"),
        )
    store = CheckpointStore.open(above or "/", storage_options=options)
    numbers = [_CHECKPOINT.fullmatch(each) for each in store.folders(job)]
    for later in sorted((int(each[1]) for each in numbers if each), reverse=True):
        if later <= checkpoint.number:
            return
        if store.head(f"{job}/chk-{later}/{_METADATA}") is not None:
            raise CheckpointError(
                f"{folder} is not the newest completed checkpoint of its job: chk-{later} is. "
                "What that one promises would be aborted.",
                Remedy(change=f"name {parent}/chk-{later}"),
            )

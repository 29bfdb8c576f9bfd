"""The two calls that most callers need: make a plan, carry it out."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint.pipeline import read_pipeline
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import ConfigurationError, Remedy
from airflow_eos.participants import connect
from airflow_eos.protocol.participant import Member, Participant
from airflow_eos.recovery.execute import ALLOWED_BY_DEFAULT, execute
from airflow_eos.recovery.facts import gather
from airflow_eos.recovery.plan import Action, Plan, make_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.recovery.execute import Report

NOBODYS = "nobodys"
"""The name of a participant that was asked for by its address and not by a checkpoint."""


def plan_recovery(
    checkpoint: str,
    kafka: Any = None,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Plan:
    """Look at a checkpoint and its participants and say what recovery would do; does nothing.

    Args:
        checkpoint: The query's checkpoint location, a path or URL.
        kafka: A librdkafka-style configuration, as in Airflow's Kafka connection.
        reach: How to get to the other participants, by their name or their kind: what a
            checkpoint does not hold, such as ``{"totals": "host=db dbname=shop password=…"}``.
        prefix: Transactional id prefix, where the checkpoint does not tell it any more.
        storage_options: obstore's configuration keys for the checkpoint's store.
        timeout_s: Seconds to look for each system.

    Raises:
        EosError: See :func:`airflow_eos.recovery.facts.gather`.
    """
    store = CheckpointStore.open(checkpoint, storage_options=storage_options)
    with closing(
        participant_of(store, kafka, reach=reach, prefix=prefix, timeout_s=timeout_s)
    ) as participant:
        return make_plan(gather(store, participant, look=True))


def execute_recovery(
    plan: Plan | str,
    kafka: Any = None,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    allow: Collection[Action] = ALLOWED_BY_DEFAULT,
    force: bool = False,
    executed_by: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Report:
    """Carry out a plan, or the plan of this moment for a checkpoint location.

    Running it twice, or in two processes at once, does no more than running it once. See
    :func:`airflow_eos.recovery.execute.execute` and :func:`plan_recovery` for the arguments and
    errors.
    """
    location = plan.location if isinstance(plan, Plan) else plan
    store = CheckpointStore.open(location, storage_options=storage_options)
    reached = (
        connect(plan.participants, _reach(kafka, reach), store=store, timeout_s=timeout_s)
        if isinstance(plan, Plan)
        else participant_of(store, kafka, reach=reach, prefix=prefix, timeout_s=timeout_s)
    )
    with closing(reached) as participant:
        if not isinstance(plan, Plan):
            plan = make_plan(gather(store, participant))
        return execute(plan, store, participant, allow=allow, force=force, executed_by=executed_by)


def participant_of(
    store: CheckpointStore | None,
    kafka: Any,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    timeout_s: float = 30.0,
) -> Participant:
    """Reach all who take part in this checkpoint's decisions, as one; close it when done.

    Args:
        store: The checkpoint. ``eos/pipeline.json`` never changes, so it may be read first.
        kafka: How to reach Kafka.
        reach: How to reach the others; see :func:`plan_recovery`.
        prefix: What is open under it is to be listed, whatever the checkpoint says.
        timeout_s: Seconds to look for each system.

    Raises:
        ConfigurationError: The checkpoint names no pipeline and no prefix was given; or nothing
            says how to reach a participant.
        EosError: A participant cannot be reached.
    """
    members = _members(store, prefix)
    return connect(members, _reach(kafka, reach), store=store, timeout_s=timeout_s)


def watched(
    store: CheckpointStore | None,
    kafka: Any,
    *,
    reach: Mapping[str, Any] | None = None,
    prefix: str | None = None,
) -> Participant:
    """Reach all who may hold open work, to list it: close it when done.

    Unlike :func:`participant_of`, a prefix that is not the pipeline's never takes the place of
    those who take part: whoever watches would look at nothing of theirs, and see that all is well.

    Args:
        store: The checkpoint; all whom it names are reached.
        kafka: How to reach Kafka.
        reach: How to reach the others; see :func:`plan_recovery`.
        prefix: Looked at besides them, and alone where nobody has claimed the checkpoint yet.

    Raises:
        ConfigurationError: As for :func:`participant_of`.
        EosError: A participant cannot be reached.
    """
    theirs = _named(store)
    besides = [each for each in _members(store, prefix) if each not in theirs]
    return connect([*theirs, *besides], _reach(kafka, reach), store=store)


def _reach(kafka: Any, reach: Mapping[str, Any] | None) -> Mapping[str, Any]:
    # A consumer group is where the source is, which mostly is the output's cluster, too.
    return {"kafka": kafka, "consumer_group": kafka, **(reach or {})}


def _members(store: CheckpointStore | None, prefix: str | None) -> tuple[Member, ...]:
    if prefix is None:
        return require_pipeline(store)
    members = _named(store)
    nobodys = Member(NOBODYS, "kafka", {"transactional_id_prefix": prefix})
    is_theirs = any(each.address.items() >= nobodys.address.items() for each in members)
    return members if is_theirs else (nobodys,)


def require_pipeline(store: CheckpointStore | None) -> tuple[Member, ...]:
    """Who takes part in the pipeline of this checkpoint.

    Raises:
        ConfigurationError: none has started there.
    """
    if not (members := _named(store)):
        where = "Nothing" if store is None else store.location
        raise ConfigurationError(
            f"{where} names no pipeline: there is no eos/pipeline.json. Is this the checkpoint "
            "location that the query uses, and was it started once?",
            Remedy(change="give the checkpointLocation of the query"),
            Remedy(
                change="where the checkpoint is lost, give the transactional id prefix "
                "(--prefix), which shows what is still open under it"
            ),
        )
    return members


def _named(store: CheckpointStore | None) -> tuple[Member, ...]:
    """Who takes part, as the checkpoint says it; nobody before its first driver has started."""
    pipeline = read_pipeline(store) if store is not None else None
    return pipeline.participants if pipeline is not None else ()

"""Pipelines in short: as ``eos/pipeline.json`` has them, by their checkpoints, and decided."""

from __future__ import annotations

import uuid
from typing import Any

from airflow_eos.core.checkpoint import PipelineIdentity
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, Decision, PreparedWork, Verdict
from airflow_eos.core.protocol.participant import Member, Owner, Participant
from airflow_eos.recovery import Plan, Step


def kafka_member(prefix: str = "etl", cluster_id: str = "cluster") -> Member:
    address = {"cluster_id": cluster_id, "transactional_id_prefix": prefix}
    return Member(DEFAULT_PARTICIPANT, "kafka", address, "kafka:out")


def kafka_pipeline(prefix: str = "etl", cluster_id: str = "cluster") -> PipelineIdentity:
    return PipelineIdentity(
        id="0" * 32,
        participants=(kafka_member(prefix, cluster_id),),
        created_at_ms=0,
        created_by="test",
    )


def plan_of(*steps: Step, alive: tuple[str, ...] = ()) -> Plan:
    """Of a pipeline at ``/ck``, whose batch 7 is in flight."""
    return Plan(
        made_at_ms=1,
        location="/ck",
        participants=(),
        batch_id=7,
        in_flight=7,
        seal=None,
        steps=steps,
        alive=alive,
        listed=(),
    )


# --- owners ---------------------------------------------------------------------------------------
# Pipelines by the place of their checkpoint: each place has a pipeline of its own.


def owner_at(location: str) -> Owner:
    """The pipeline whose checkpoint is there."""
    return Owner.at(f"id-of-{location.replace('/', '.')}", location)  # ids are parts of names


def require_at(
    participant: Participant, location: str, planned: int | None = None, **decided: Any
) -> None:
    """What a start asks of the systems' memory; ``b7``: the decisions of batch 7."""
    asking = owner_at(location)
    decisions = {int(name[1:]): found for name, found in decided.items()}
    for name in participant.ownership(asking):
        name.require(asking, newest_planned=planned, decisions=decisions)


def commit_of(batch_id: int, *works: PreparedWork, **said: Any) -> Decision:
    """What a driver has promised, at its first attempt where nothing else is said."""
    return _decision(Verdict.COMMIT, batch_id, works=works, **{"offsets": "v1\n{}\n{}", **said})


def abort_of(batch_id: int, **said: Any) -> Decision:
    """An attempt that somebody has sealed."""
    by_a_recovery = {"reason": "sealed", "decided_by": "recovery"}
    return _decision(Verdict.ABORT, batch_id, **{**by_a_recovery, **said})


def _decision(verdict: Verdict, batch_id: int, **said: Any) -> Decision:
    by_a_driver = {"attempt": 1, "decided_by": "driver", "decided_at_ms": 0}
    own = {"nonce": uuid.uuid4().hex}
    return Decision(batch_id=batch_id, verdict=verdict, **{**by_a_driver, **own, **said})

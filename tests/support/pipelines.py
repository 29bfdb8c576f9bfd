"""``eos/pipeline.json`` of a pipeline to Kafka, in short."""

from __future__ import annotations

from airflow_eos.checkpoint import PipelineIdentity
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT
from airflow_eos.protocol.participant import Member


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

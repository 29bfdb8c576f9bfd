"""What an app must know and nobody else may see, from Airflow's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.participants import ParticipantsHook
from airflow_eos.hooks.store import CheckpointStoreHook
from airflow_eos.supervision.workspace import Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.checkpoint import CheckpointStore


class Connected(Protocol):
    """An operator that hands its connections on to an app."""

    kafka_config_id: str
    storage_conn_id: str | None
    storage_options: Mapping[str, str] | None
    participant_conn_ids: Mapping[str, str] | None


class Located(Connected, Protocol):
    """One of these that has a checkpoint."""

    checkpoint_location: str


def secrets_of(task: Connected) -> Secrets:
    """Read the connections; what is secret in them is masked in every log from now on."""
    return Secrets(
        kafka=KafkaSettingsHook(task.kafka_config_id).librdkafka(),
        storage=CheckpointStoreHook(task.storage_conn_id, task.storage_options).options(),
        participants=ParticipantsHook(task.participant_conn_ids).reach(),
    )


def store_of(task: Located) -> CheckpointStore:
    """Open its checkpoint with what the connection says now."""
    hook = CheckpointStoreHook(task.storage_conn_id, task.storage_options)
    return hook.open(task.checkpoint_location)

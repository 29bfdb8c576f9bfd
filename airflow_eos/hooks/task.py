"""What a running task gives to its app: its name, what the connections hold, the prefix in use.

Parsing a DAG imports none of it.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Protocol

from airflow_eos.checkpoint import StartedBy
from airflow_eos.delivery.configured import OutputConfig, transactional_prefix
from airflow_eos.delivery.options import AppFacts
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.supervision.workspace import Secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from airflow_eos.checkpoint import CheckpointStore
    from airflow_eos.supervision.preflight import TimeoutBudget


def task_of(context: Context) -> StartedBy:
    """The task instance, without a submission yet.

    Outside of Airflow there is none: then no two calls are the same task, and none adopts an app.
    """
    ti = context.get("ti")
    if ti is None:
        run_id = f"outside-of-airflow-{uuid.uuid4().hex}"
        return StartedBy(dag_id="", task_id="", run_id=run_id, map_index=-1, submission="")
    return StartedBy(
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=ti.map_index if ti.map_index is not None else -1,
        submission="",
    )


# --- secrets --------------------------------------------------------------------------------------
# What an app must know and nobody else may see, from Airflow's connections.


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


# --- outputs --------------------------------------------------------------------------------------
# Builds the configured outputs once in Airflow: a bad configuration fails before Spark starts.


_THE_APPS_OWN = "the-apps-own"


def prefix_in_use(
    guarantee: str, outputs: object, prefix: str | None, budget: TimeoutBudget, secrets: Secrets
) -> str | None:
    """The prefix under which a recovery has to look, whatever the checkpoint says.

    None where no output writes to Kafka under ``prefix``: a recovery that looked there would see
    nothing, and pass over what the checkpoint says of the others.

    Raises:
        ConfigurationError: the guarantee or an output cannot work.
    """
    app = AppFacts(
        kafka=KafkaSettings.from_librdkafka(secrets.kafka),
        prefix=_THE_APPS_OWN if prefix is None else prefix,
        transaction_timeout=budget.transaction_timeout,
        batch_within=budget.batch_within,
        recover_within=budget.recover_within,
    )
    made = OutputConfig.of(guarantee, outputs).outputs(app, secrets.participants)
    used = not made or any(transactional_prefix(each) == prefix for each in made)
    return prefix if used else None

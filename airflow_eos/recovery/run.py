"""The two calls that most callers need: make a plan, carry it out."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.client.wire import Wire
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.recovery.execute import ALLOWED_BY_DEFAULT, execute
from airflow_eos.recovery.facts import gather
from airflow_eos.recovery.plan import make_plan
from airflow_eos.recovery.steps import Action, Plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.recovery.report import Report


def plan_recovery(
    checkpoint: str,
    kafka: Mapping[str, object] | KafkaSettings,
    *,
    prefix: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Plan:
    """Look at a checkpoint and its Kafka cluster and say what recovery would do; does nothing.

    Args:
        checkpoint: The query's checkpoint location, a path or URL.
        kafka: A librdkafka-style configuration, as in Airflow's Kafka connection.
        prefix: Transactional id prefix, where the checkpoint does not tell it any more.
        storage_options: obstore's configuration keys for the checkpoint's store.
        timeout_s: Seconds to look for a first broker.

    Raises:
        EosError: See :func:`airflow_eos.recovery.facts.gather`.
    """
    store = CheckpointStore.open(checkpoint, storage_options=storage_options)
    with connect(kafka, timeout_s) as wire:
        return make_plan(gather(store, wire, prefix=prefix))


def execute_recovery(
    plan: Plan | str,
    kafka: Mapping[str, object] | KafkaSettings,
    *,
    prefix: str | None = None,
    allow: Collection[Action] = ALLOWED_BY_DEFAULT,
    force: bool = False,
    executed_by: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Report:
    """Carry out a plan, or the plan of this moment for a checkpoint location.

    Running it twice, or in two processes at once, does no more than running it once. See
    :func:`airflow_eos.recovery.execute.execute` for the arguments and errors.
    """
    location = plan.location if isinstance(plan, Plan) else plan
    store = CheckpointStore.open(location, storage_options=storage_options)
    settings = _settings(kafka)
    with connect(settings, timeout_s) as wire:
        if not isinstance(plan, Plan):
            plan = make_plan(gather(store, wire, prefix=prefix))
        with closing(PrefixLedger(settings, prefix=plan.prefix)) as ledger:
            return execute(
                plan, store, wire, ledger, allow=allow, force=force, executed_by=executed_by
            )


def connect(kafka: Mapping[str, object] | KafkaSettings, timeout_s: float = 30.0) -> Wire:
    """Open connections for recovery; closing them never ends a transaction."""
    return Wire(_settings(kafka), client_id="airflow-eos-recovery", timeout_s=timeout_s)


def _settings(kafka: Mapping[str, object] | KafkaSettings) -> KafkaSettings:
    return kafka if isinstance(kafka, KafkaSettings) else KafkaSettings.from_librdkafka(kafka)

"""Builds the configured outputs once in Airflow: a bad configuration fails before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.delivery.configured import OutputConfig, transactional_prefix
from airflow_eos.delivery.options import AppFacts
from airflow_eos.kafka.client.settings import KafkaSettings

if TYPE_CHECKING:
    from airflow_eos.supervision.preflight import TimeoutBudget
    from airflow_eos.supervision.workspace import Secrets

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

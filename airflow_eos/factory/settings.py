"""The settings of a pipeline, which all its DAGs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, Any

from airflow.sdk import get_current_context

from airflow_eos.core.arguments import (
    Anything,
    Count,
    Duration,
    PositiveDuration,
    arguments_of,
    is_template,
    spelled,
)
from airflow_eos.core.settings import INTERVAL, TRIGGER, AppSettings, flags
from airflow_eos.hooks.answers import answered
from airflow_eos.sinks.source import tuned_spark_conf

TEMPLATES = frozenset(
    {
        *("checkpoint", "prefix", "storage_conn_id", "kafka_config_id", "input_topic"),
        *("output_topic", "dead_letter_topic"),
    }
)
"""The names of the settings that each task renders when it runs."""

_LIMIT = "max_offsets_per_trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The settings of one pipeline; a duration is a ``timedelta``, seconds, or ``"10 seconds"``.

    ``checkpoint``, topics, ``prefix`` and the names of connections may be Jinja templates, which
    each task renders when it runs: ``"{{ var.value.lake }}/clicks"``.

    Attributes:
        dag_id: id of the DAG that runs the app.
        recovery_dag_id, watchdog_dag_id: ids of the others; named after ``dag_id`` where None.
        application: path of the app, a Python file.
        checkpoint: Spark's checkpoint location, seen by the driver and by Airflow's workers.
        storage_conn_id: connection of its object store; None leaves it to the environment.
        prefix: of the transactional ids; no other pipeline may use it.
        outputs, participant_conn_ids: "Outputs by configuration" in docs/sinks.md; no audit then.
        dead_letter_topic: of an app that takes ``--dead-letter-topic``; others are not given one.
        order_id: what names a row in all topics (``value.id``, ``key``, ``headers.id``); then each
            recovery audits, which reads the topics as a whole. None: no audit, as nothing names a
            row.
        audit: False: no audit, whatever names a row.
        consumer_group: the group whose lag shows how far the pipeline is; see docs/sinks.md.
        conf: Spark properties.
        packages, jars, env: Spark's Kafka connector (jars win); the driver's environment.
        trigger: time between two batches, or ``available-now``: stop when everything has been read.
            A run may be started with another trigger, and another limit (DAG params).
        transaction_timeout: covers ``trigger`` + ``batch_within`` + ``recover_within``.
        max_restarts: restarts of the app by its own task, before a recovery is needed at all.
        retries: retries of that task, which ends with a killed worker: the next try adopts the app.
        first_batch_within: longest time from a start to the first batch, which may replay rows.
        stall_after: no commit for this long is a stall, unless a live driver has nothing to read.
        ask_within: how long a recovery waits for a person, where it must ask one.
        scratch: folder for a rehearsal's copy of the state, which executors elsewhere reach.
    """

    dag_id: str
    recovery_dag_id: str | None = None
    watchdog_dag_id: str | None = None
    application: str
    checkpoint: str
    prefix: str
    input_topic: str
    output_topic: str
    dead_letter_topic: str | None = None
    outputs: list[dict[str, Any]] | None = None
    participant_conn_ids: Mapping[str, str] | None = None
    audit: bool = True
    order_id: str | None = None
    consumer_group: str | None = None
    kafka_config_id: str = "kafka_default"
    spark_conn_id: str = "spark_default"
    storage_conn_id: str | None = None
    packages: str | None = None
    jars: str | None = None
    conf: Mapping[str, str] = field(default_factory=tuned_spark_conf)
    env: Mapping[str, str] = field(default_factory=dict)
    trigger: Annotated[Duration, TRIGGER] = INTERVAL
    max_offsets_per_trigger: Count | None = None
    batch_within: Duration = AppSettings.batch_within
    recover_within: Duration = AppSettings.recover_within
    transaction_timeout: PositiveDuration = AppSettings.transaction_timeout
    max_restarts: int = 3
    retries: int = 3
    first_batch_within: PositiveDuration = timedelta(minutes=5)
    stall_after: PositiveDuration = timedelta(minutes=2)
    ask_within: PositiveDuration = timedelta(days=1)
    scratch: str | None = None
    watchdog_schedule: Annotated[str | None, Anything()] = "* * * * *"

    def __post_init__(self) -> None:
        for name, argument in arguments_of(Pipeline).items():
            value = getattr(self, name)
            if not (name in TEMPLATES and is_template(value)):
                object.__setattr__(self, name, argument.of(name, value))

    @property
    def trigger_interval(self) -> timedelta:
        """The time between two batches, for the budget of a transaction."""
        return self.trigger if isinstance(self.trigger, timedelta) else INTERVAL

    @property
    def recovery(self) -> str:
        """The id of the DAG that recovers."""
        return self.recovery_dag_id or f"{self.dag_id}_recovery"

    @property
    def watchdog(self) -> str:
        """The id of the DAG that watches."""
        return self.watchdog_dag_id or f"{self.dag_id}_watchdog"

    @property
    def upgrade(self) -> str:
        """The id of the DAG that brings a new version in."""
        return f"{self.dag_id}_upgrade"

    @property
    def application_args(self) -> list[str]:
        """The app's arguments beside its environment; templates for those that a run may change."""
        limit, letters = self.max_offsets_per_trigger, self.dead_letter_topic
        return [
            *("--input-topic", self.input_topic),
            *("--output-topic", self.output_topic),
            *(() if letters is None else ("--dead-letter-topic", letters)),
            *flags(
                trigger_interval="{{ params.trigger }}",
                max_offsets_per_trigger=None if limit is None else f"{{{{ params.{_LIMIT} }}}}",
            ),
        ]

    @property
    def params(self) -> dict[str, Any]:
        """The DAG params, by which a single run overrides settings."""
        limit, trigger = self.max_offsets_per_trigger, self.trigger
        said = spelled(trigger) if isinstance(trigger, timedelta) else trigger
        return {"trigger": said} | ({} if limit is None else {_LIMIT: limit})

    @property
    def location(self) -> dict[str, Any]:
        """The arguments of operators and sensors that locate the checkpoint."""
        return {
            "checkpoint_location": self.checkpoint,
            "kafka_config_id": self.kafka_config_id,
            "storage_conn_id": self.storage_conn_id,
        }

    @property
    def reached(self) -> dict[str, Any]:
        """The arguments of :attr:`location`, with the connections of the other participants."""
        return {**self.location, "participant_conn_ids": self.participant_conn_ids}

    @property
    def transactions(self) -> dict[str, Any]:
        """The arguments of :attr:`reached`, with the prefix of the transactions to look for."""
        # With outputs, only the checkpoint says whether one of them uses the prefix.
        return {**self.reached, "transactional_id_prefix": None if self.outputs else self.prefix}


def pinned(**task_defaults: Any) -> dict[str, Any]:
    """Return the DAG arguments that override Airflow-wide defaults, meant for ordinary tasks.

    A site may give every task retries and a timeout, and pause every DAG that fails three times:
    then an outage switches the watchdog off, and the task of an app that runs for ever ends.

    Args:
        task_defaults: default arguments of the tasks, besides those below or in their place.
    """
    return {
        "catchup": False,
        "max_active_runs": 1,
        "max_active_tasks": 16,
        "max_consecutive_failed_dag_runs": 0,
        "dagrun_timeout": None,
        "default_args": {
            "retries": 0,
            # Airflow has waited for a dead worker already; until the retry no task watches the app.
            "retry_delay": timedelta(seconds=5),
            "execution_timeout": None,
            "depends_on_past": False,
            "weight_rule": "downstream",
            **task_defaults,
        },
    }


def rendered(pipeline: Pipeline) -> Pipeline:
    """Render the settings' templates in a ``@task``: Airflow renders those of operators only."""
    found = {name: getattr(pipeline, name) for name in TEMPLATES}
    templates = {name: text for name, text in found.items() if is_template(text)}
    if not templates:
        return pipeline
    context = get_current_context()
    return replace(pipeline, **answered(context["task"].render_template, templates, context))

"""Run a checkpointed Spark streaming app to its end, exactly once, through its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_eos.hooks.failures import no_retry_where_useless
from airflow_eos.sinks.policy import INTERVAL, CheckpointPolicy
from airflow_eos.supervision.preflight import TimeoutBudget

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_eos.hooks.spark import SparkSubmission
    from airflow_eos.supervision.recovering import Recovery
    from airflow_eos.supervision.run import StreamRun
    from airflow_eos.supervision.workspace import Secrets


class SparkStreamingOperator(BaseOperator):
    """Runs a Spark streaming app that delivers with ``start_exactly_once``.

    In order: check the chain of timeouts; recover what a former driver left open; submit; watch;
    after a failure recover and start again. The task is green only where the app exited with 0
    *and* its driver wrote that it stopped in order *and* nothing is left open.

    The driver runs on the worker (Spark's client deploy mode) and takes its slot for as long as
    the app lives: a triggerer cannot be the parent of a process. The sensors are deferrable.

    Stopping is draining: on a user's clear or mark, on an execution timeout *and on a graceful
    shutdown of the worker* Airflow calls ``on_kill``. It asks the app to end its running batch,
    waits ``drain_timeout`` and only then kills it. Airflow ends the task's process 5 s after a
    user's clear; the app then goes on draining by itself, and the next try waits for it
    (``patience``) instead of starting a second one. A stopped task is never green.

    The app finds its settings in its environment (``EOS_...``, see docs/airflow.md), and what is
    secret in files that only this user may read, gone once they are read. Nothing of it is on a
    command line. Secrets belong into connections, not into ``application_args``.

    Args:
        application: path of the app, a Python file (templated).
        checkpoint_location: what the app gives to ``start_exactly_once`` (templated).
        transactional_id_prefix: None means the one that the checkpoint names; then the first
            start, where there is none yet, has nothing to recover (templated).
        conn_id: Spark connection.
        kafka_config_id: Kafka connection; its extra is a librdkafka configuration (templated).
        application_args: arguments of the app (templated).
        conf: Spark properties (templated).
        jars, packages, py_files, files: comma-separated, as for ``spark-submit`` (templated).
        name: of the Spark application; the task's id where None (templated).
        env_vars: added to the driver's environment (templated).
        deploy_mode: None takes the connection's; ``cluster`` is refused.
        spark_submit: further arguments of ``SparkSubmitHook``, such as ``driver_memory``.
        ship_package: send this package (not its dependencies) to the driver and the executors.
        storage_conn_id, storage_options, participant_conn_ids: see :class:`PlanRecoveryOperator`.
        outputs, guarantee, consumer_group: where the rows go in the place of the app's own topic,
            what is promised, and who shows how far it is: see docs/sinks.md (templated).
        trigger_interval, batch_within, recover_within, transaction_timeout: the budget of a
            transaction: the last must cover the sum of the first three, and the broker's
            ``transaction.max.timeout.ms`` must allow it.
        max_restarts, restart_delay: restarts within one Airflow try, and the pause before each;
            ``retries`` start the count again.
        policy: pauses, the timeout of batches, how many are kept, other restart strategies; in it
            ``interval`` is ``trigger_interval``, and ``restart`` the two above.
        recover_before_start: end what is open before each start. Without it the plan is only
            printed, and the app itself recovers as it starts.
        drain_timeout: for the running batch to end when the task is stopped.
        patience: how long a young heartbeat is watched before the pipeline counts as alive.
    """

    template_fields: Sequence[str] = (
        "application",
        "checkpoint_location",
        "transactional_id_prefix",
        "kafka_config_id",
        "storage_conn_id",
        "participant_conn_ids",
        "outputs",
        "guarantee",
        "consumer_group",
        "application_args",
        "conf",
        "jars",
        "packages",
        "py_files",
        "files",
        "name",
        "env_vars",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json", "env_vars": "json"}
    ui_color = "#ffe8d6"

    def __init__(
        self,
        *,
        application: str,
        checkpoint_location: str,
        transactional_id_prefix: str | None = None,
        conn_id: str = "spark_default",
        kafka_config_id: str = "kafka_default",
        application_args: Sequence[str] = (),
        conf: Mapping[str, str] | None = None,
        jars: str | None = None,
        packages: str | None = None,
        py_files: str | None = None,
        files: str | None = None,
        name: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        deploy_mode: str | None = None,
        spark_submit: Mapping[str, Any] | None = None,
        ship_package: bool = True,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        participant_conn_ids: Mapping[str, str] | None = None,
        outputs: Sequence[Mapping[str, Any]] | str | None = None,
        guarantee: str = "exactly_once",
        consumer_group: str | None = None,
        trigger_interval: timedelta = INTERVAL,
        batch_within: timedelta = timedelta(minutes=1),
        recover_within: timedelta = timedelta(minutes=5),
        transaction_timeout: timedelta = timedelta(minutes=15),
        max_restarts: int = 3,
        restart_delay: timedelta = timedelta(seconds=10),
        policy: CheckpointPolicy | None = None,
        recover_before_start: bool = True,
        drain_timeout: timedelta = timedelta(minutes=2),
        patience: timedelta = timedelta(minutes=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application = application
        self.checkpoint_location = checkpoint_location
        self.transactional_id_prefix = transactional_id_prefix
        self.conn_id, self.kafka_config_id = conn_id, kafka_config_id
        self.application_args = application_args
        self.conf = conf
        self.jars, self.packages = jars, packages
        self.py_files, self.files = py_files, files
        self.name, self.env_vars = name, env_vars
        self.deploy_mode, self.spark_submit = deploy_mode, spark_submit
        self.ship_package = ship_package
        self.storage_conn_id, self.storage_options = storage_conn_id, storage_options
        self.participant_conn_ids = participant_conn_ids
        self.outputs, self.guarantee, self.consumer_group = outputs, guarantee, consumer_group
        self.policy = policy or CheckpointPolicy()
        interval, self.restart = self.policy.beside(
            trigger_interval=trigger_interval,
            max_restarts=max_restarts,
            restart_delay=restart_delay,
        )
        self.budget = TimeoutBudget(interval, batch_within, recover_within, transaction_timeout)
        self.recover_before_start = recover_before_start
        self.drain_timeout, self.patience = drain_timeout, patience
        self._stream: StreamRun | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """Run the app; returns ``{"batch_id": last committed batch, "restarts": n}``.

        Raises:
            AirflowFailException: settings that cannot work, or a plan that a person must decide.
            PipelineAliveError: the pipeline is already running elsewhere.
            AppFailedError: the app failed once more than it may be restarted.
            AppStoppedError: the task was stopped; the app was drained.
        """
        from airflow_eos.hooks.secrets import secrets_of
        from airflow_eos.supervision.recovering import leave_nothing_open, recover_before_start
        from airflow_eos.supervision.run import StreamRun
        from airflow_eos.supervision.workspace import private_folder

        with no_retry_where_useless(), private_folder(self.checkpoint_location) as folder:
            secrets = secrets_of(self)
            recovery = self._preflight(secrets)
            self._stream = stream = StreamRun(
                recovery.store,
                submit=lambda: self._submission(folder, secrets),
                recover=lambda: recover_before_start(
                    recovery, known_dead=stream.owns, act=self.recover_before_start
                ),
                strategy=self.restart,
                drain_timeout=self.drain_timeout,
            )
            restarts = stream.until_finished()
            return {"batch_id": leave_nothing_open(recovery), "restarts": restarts}

    def on_kill(self) -> None:
        """Drain; called on a user's action, an execution timeout and a worker's shutdown."""
        if self._stream is not None:
            self._stream.stop("Airflow called on_kill (a user's action or the worker's shutdown)")

    def _preflight(self, secrets: Secrets) -> Recovery:
        """Check all that can be checked before anything is started."""
        from airflow_eos.hooks.outputs import prefix_in_use
        from airflow_eos.hooks.spark import refuse_cluster_mode
        from airflow_eos.kafka.client.settings import KafkaSettings
        from airflow_eos.supervision.preflight import reached_within
        from airflow_eos.supervision.recovering import Recovery

        refuse_cluster_mode(self.conn_id, deploy_mode=self.deploy_mode, conf=self.conf or {})
        settings = KafkaSettings.from_librdkafka(secrets.kafka)
        prefix = prefix_in_use(
            self.guarantee, self.outputs, self.transactional_id_prefix, self.budget, secrets
        )
        return Recovery(
            checkpoint=self.checkpoint_location,
            kafka=settings,
            prefix=prefix,
            storage_options=secrets.storage,
            reach=secrets.participants,
            patience=self.patience,
            first=reached_within(self.budget, settings),
        )

    def _submission(self, folder: Path, secrets: Secrets) -> SparkSubmission:
        """Make a start of the app; no driver of the pipeline is alive now."""
        from airflow_eos.hooks.spark import SparkSubmission, redacting
        from airflow_eos.sinks.chosen import environment
        from airflow_eos.sinks.policy_arguments import policy_environment
        from airflow_eos.supervision.archive import build_archive
        from airflow_eos.supervision.workspace import PACKAGE, app_environment, remove_leftovers

        remove_leftovers(folder, self.checkpoint_location)
        told = {
            **secrets.hand_over(folder),
            **app_environment(self.checkpoint_location, self.transactional_id_prefix, self.budget),
            **policy_environment(self.policy),
            **environment(self.guarantee, self.outputs, self.consumer_group),
        }
        shipped = str(build_archive(folder / PACKAGE)) if self.ship_package else None
        arguments: dict[str, Any] = {
            **(self.spark_submit or {}),
            "conn_id": self.conn_id,
            "conf": redacting(self.conf or {}),
            "jars": self.jars,
            "packages": self.packages,
            "py_files": ",".join(filter(None, [self.py_files, shipped])) or None,
            "files": self.files,
            "name": self.name or self.task_id,
            "application_args": [str(argument) for argument in self.application_args],
            "deploy_mode": self.deploy_mode,
        }
        told |= {name: str(value) for name, value in (self.env_vars or {}).items()}
        return SparkSubmission(self.application, env=told, arguments=arguments)

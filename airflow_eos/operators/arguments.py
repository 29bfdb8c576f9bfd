"""The arguments of a task that submits an app: where it runs, what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import conf as airflow_conf

from airflow_eos.core.arguments import Duration, taken
from airflow_eos.core.delivery.policy import INTERVAL, CheckpointPolicy
from airflow_eos.hooks.arguments import CheckedArguments, as_rendered, own_arguments
from airflow_eos.lineage import BatchLineage
from airflow_eos.links import LINKS
from airflow_eos.ops.supervision.preflight import TimeoutBudget

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperatorLink, XComArg

    from airflow_eos.ops.supervision.heartbeat_monitor import Cancel


class SparkArguments(CheckedArguments):
    """An operator that submits an app.

    Args:
        application: path of the app, a Python file (templated).
        conn_id: Spark connection.
        application_args: arguments of the app (templated).
        conf: Spark properties (templated).
        jars, packages, exclude_packages, repositories, py_files, files, archives,
            driver_class_path: comma-separated, as for ``spark-submit`` (templated).
        name: name of the Spark application; the task's id where None (templated).
        env_vars: added to the driver's environment (templated). On YARN in deploy mode ``cluster``
            they pass through a shell script that does not escape quotes. In that mode they are on
            the command line: names of secrets are refused.
        deploy_mode: ``client`` or ``cluster``; None takes the connection's.
        driver_memory, executor_memory: such as ``2g`` (templated).
        num_executors, executor_cores, total_executor_cores: for the cluster manager (templated).
        principal, keytab, proxy_user, use_krb5ccache: Kerberos (the first three templated).
        yarn_queue, properties_file: as for ``spark-submit`` (templated).
        spark_binary, verbose: as for ``SparkSubmitOperator``.
        spark_submit: further arguments of ``SparkSubmitHook`` that have no name here.
    """

    template_fields: Sequence[str] = (
        "application",
        "application_args",
        "conf",
        "jars",
        "packages",
        "exclude_packages",
        "repositories",
        "py_files",
        "files",
        "archives",
        "driver_class_path",
        "name",
        "env_vars",
        "driver_memory",
        "executor_memory",
        "num_executors",
        "executor_cores",
        "total_executor_cores",
        "principal",
        "keytab",
        "proxy_user",
        "yarn_queue",
        "properties_file",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json", "env_vars": "json"}

    def __init__(
        self,
        *,
        application: str | XComArg,
        conn_id: str = "spark_default",
        application_args: Sequence[str | XComArg] | XComArg = (),
        conf: Mapping[str, str] | XComArg | None = None,
        jars: str | XComArg | None = None,
        packages: str | XComArg | None = None,
        exclude_packages: str | XComArg | None = None,
        repositories: str | XComArg | None = None,
        py_files: str | XComArg | None = None,
        files: str | XComArg | None = None,
        archives: str | XComArg | None = None,
        driver_class_path: str | XComArg | None = None,
        name: str | XComArg | None = None,
        env_vars: Mapping[str, str] | XComArg | None = None,
        deploy_mode: str | None = None,
        driver_memory: str | XComArg | None = None,
        executor_memory: str | XComArg | None = None,
        num_executors: int | str | XComArg | None = None,
        executor_cores: int | str | XComArg | None = None,
        total_executor_cores: int | str | XComArg | None = None,
        principal: str | XComArg | None = None,
        keytab: str | XComArg | None = None,
        proxy_user: str | XComArg | None = None,
        use_krb5ccache: bool | None = None,
        yarn_queue: str | XComArg | None = None,
        properties_file: str | XComArg | None = None,
        spark_binary: str | None = None,
        verbose: bool | None = None,
        spark_submit: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application: str = as_rendered(application)
        self.conn_id = conn_id
        self.application_args: Sequence[str] = as_rendered(application_args)
        self.conf: Mapping[str, str] | None = as_rendered(conf)
        self.packages = packages
        self.exclude_packages, self.repositories = exclude_packages, repositories
        self.jars: str | None = as_rendered(jars)
        self.py_files: str | None = as_rendered(py_files)
        self.files: str | None = as_rendered(files)
        self.archives: str | None = as_rendered(archives)
        self.driver_class_path = driver_class_path
        self.name: str | None = as_rendered(name)
        self.env_vars: Mapping[str, str] | None = as_rendered(env_vars)
        self.deploy_mode = deploy_mode
        self.driver_memory, self.executor_memory = driver_memory, executor_memory
        self.num_executors, self.executor_cores = num_executors, executor_cores
        self.total_executor_cores = total_executor_cores
        self.principal, self.keytab, self.proxy_user = principal, keytab, proxy_user
        self.use_krb5ccache = use_krb5ccache
        self.yarn_queue, self.properties_file = yarn_queue, properties_file
        self.spark_binary, self.verbose = spark_binary, verbose
        self.spark_submit = spark_submit

    def of_the_hook(self) -> dict[str, Any]:
        """Return the arguments that go to ``SparkSubmitHook`` unchanged."""
        given = {name: getattr(self, name) for name in own_arguments(SparkArguments)}
        as_it_is = given.keys() - {"application", "conf", "env_vars", "spark_submit"}
        found = {name: given[name] for name in as_it_is if given[name] is not None}
        return {**(self.spark_submit or {}), **found}


class StreamingArguments(BatchLineage, SparkArguments):
    """The arguments of a streaming task; :class:`SparkStreamingOperator` documents them."""

    operator_extra_links: Collection[BaseOperatorLink] = LINKS
    template_fields: Sequence[str] = (
        *SparkArguments.template_fields,
        "checkpoint_location",
        "transactional_id_prefix",
        "kafka_config_id",
        "storage_conn_id",
        "participant_conn_ids",
        "outputs",
        "guarantee",
        "consumer_group",
        "content",
    )

    def __init__(
        self,
        *,
        checkpoint_location: str | XComArg,
        transactional_id_prefix: str | XComArg | None = None,
        kafka_config_id: str | XComArg = "kafka_default",
        ship_package: bool = True,
        storage_conn_id: str | XComArg | None = None,
        storage_options: Mapping[str, str] | None = None,
        participant_conn_ids: Mapping[str, str] | XComArg | None = None,
        outputs: Sequence[Mapping[str, Any]] | str | XComArg | None = None,
        guarantee: str | XComArg = "exactly_once",
        consumer_group: str | XComArg | None = None,
        content: str | XComArg | None = None,
        trigger_interval: Duration = INTERVAL,
        batch_within: Duration = timedelta(minutes=1),
        recover_within: Duration = timedelta(minutes=5),
        transaction_timeout: Duration = timedelta(minutes=15),
        max_restarts: int = 3,
        restart_delay: Duration = timedelta(seconds=10),
        policy: CheckpointPolicy | None = None,
        recover_before_start: bool = True,
        drain_timeout: Duration = timedelta(minutes=2),
        patience: Duration = timedelta(minutes=1),
        submit_timeout: Duration = timedelta(minutes=10),
        cancel: Cancel = "drain",
        standby: bool = False,
        deferrable: bool | None = None,
        poke_interval: Duration = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint_location: str = as_rendered(checkpoint_location)
        self.transactional_id_prefix: str | None = as_rendered(transactional_id_prefix)
        self.kafka_config_id: str = as_rendered(kafka_config_id)
        self.ship_package = ship_package
        self.storage_conn_id: str | None = as_rendered(storage_conn_id)
        self.storage_options = storage_options
        self.participant_conn_ids: Mapping[str, str] | None = as_rendered(participant_conn_ids)
        self.outputs: Sequence[Mapping[str, Any]] | str | None = as_rendered(outputs)
        self.guarantee: str = as_rendered(guarantee)
        self.consumer_group: str | None = as_rendered(consumer_group)
        self.content: str | None = as_rendered(content)
        self.policy = policy or CheckpointPolicy()
        self.restart_delay: timedelta = taken("restart_delay", restart_delay)
        interval, self.restart = self.policy.beside(
            trigger_interval=taken("trigger_interval", trigger_interval),
            max_restarts=taken("max_restarts", max_restarts),
            restart_delay=self.restart_delay,
        )
        self.budget = TimeoutBudget(
            interval,
            taken("batch_within", batch_within),
            taken("recover_within", recover_within),
            taken("transaction_timeout", transaction_timeout),
        )
        self.recover_before_start = recover_before_start
        self.drain_timeout: timedelta = taken("drain_timeout", drain_timeout)
        self.patience: timedelta = taken("patience", patience)
        self.submit_timeout: timedelta = taken("submit_timeout", submit_timeout)
        self.cancel = cancel
        self.standby = standby
        if deferrable is None:
            deferrable = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self.poke_interval: timedelta = taken("poke_interval", poke_interval)

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return the serialized fields and ``standby``, by which the page tells standbys."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]
        return fields | {"standby"}

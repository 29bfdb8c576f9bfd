"""The arguments of a task that submits an app: where it runs, what it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from airflow.providers.common.compat.sdk import conf as airflow_conf
from airflow.sdk import XComArg

from airflow_eos.core.arguments import (
    Cancel,
    Count,
    Duration,
    GuaranteeName,
    Instance,
    PositiveDuration,
    Texts,
    Word,
    arguments_of,
)
from airflow_eos.core.delivery.policy import CheckpointPolicy
from airflow_eos.core.settings import INTERVAL, AppSettings
from airflow_eos.hooks.arguments import CheckedArguments
from airflow_eos.links import LINKS
from airflow_eos.operators.lineage import BatchLineage
from airflow_eos.ops.supervision.preflight import TimeoutBudget

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink


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

    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json", "env_vars": "json"}

    application: str
    conn_id: str
    application_args: Sequence[str]
    conf: Mapping[str, str] | None
    jars: str | None
    py_files: str | None
    files: str | None
    name: str | None
    env_vars: Mapping[str, str] | None
    deploy_mode: str | None
    properties_file: str | None
    spark_submit: Mapping[str, Any] | None

    def __init__(
        self,
        *,
        application: str | XComArg,
        conn_id: str = "spark_default",
        application_args: Annotated[Sequence[str | XComArg], Texts()] | XComArg = (),
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
        deploy_mode: Annotated[str, Word(words=("client", "cluster"))] | None = None,
        driver_memory: str | XComArg | None = None,
        executor_memory: str | XComArg | None = None,
        num_executors: Count | str | XComArg | None = None,
        executor_cores: Count | str | XComArg | None = None,
        total_executor_cores: Count | str | XComArg | None = None,
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
        self._take(locals())

    def of_the_hook(self) -> dict[str, Any]:
        """Return the arguments that go to ``SparkSubmitHook`` unchanged."""
        given = {name: getattr(self, name) for name in arguments_of(SparkArguments.__init__)}
        as_it_is = given.keys() - {"application", "conf", "env_vars", "spark_submit"}
        found = {name: given[name] for name in as_it_is if given[name] is not None}
        return {**(self.spark_submit or {}), **found}


class StreamingArguments(BatchLineage, SparkArguments):
    """The arguments of a streaming task; :class:`SparkStreamingOperator` documents them."""

    operator_extra_links: Collection[BaseOperatorLink] = LINKS

    ship_package: bool
    outputs: Sequence[Mapping[str, Any]] | str | None
    guarantee: str
    consumer_group: str | None
    content: str | None
    trigger_interval: timedelta
    batch_within: timedelta
    recover_within: timedelta
    transaction_timeout: timedelta
    max_restarts: int
    restart_delay: timedelta
    recover_before_start: bool
    drain_timeout: timedelta
    patience: timedelta
    submit_timeout: timedelta
    cancel: Cancel
    standby: bool
    poke_interval: timedelta

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
        guarantee: GuaranteeName | XComArg = AppSettings.guarantee,
        consumer_group: str | XComArg | None = None,
        content: str | XComArg | None = None,
        trigger_interval: Duration = INTERVAL,
        batch_within: Duration = AppSettings.batch_within,
        recover_within: Duration = AppSettings.recover_within,
        transaction_timeout: PositiveDuration = AppSettings.transaction_timeout,
        max_restarts: int = 3,
        restart_delay: Duration = timedelta(seconds=10),
        policy: Annotated[CheckpointPolicy, Instance(kind="CheckpointPolicy")] | None = None,
        recover_before_start: bool = True,
        drain_timeout: Duration = timedelta(minutes=2),
        patience: Duration = timedelta(minutes=1),
        submit_timeout: PositiveDuration = timedelta(minutes=10),
        cancel: Cancel = "drain",
        standby: bool = False,
        deferrable: bool | None = None,
        poke_interval: PositiveDuration = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._take(locals())
        self.policy = policy or CheckpointPolicy()
        interval, self.restart = self.policy.beside(
            trigger_interval=self.trigger_interval,
            max_restarts=self.max_restarts,
            restart_delay=self.restart_delay,
        )
        self.budget = TimeoutBudget(
            interval, self.batch_within, self.recover_within, self.transaction_timeout
        )
        if deferrable is None:
            deferrable = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return the serialized fields and ``standby``, by which the page tells standbys."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]
        return fields | {"standby"}

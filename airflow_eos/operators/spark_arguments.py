"""The arguments of ``spark-submit``, by the names that ``SparkSubmitOperator`` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_eos.hooks.arguments import CheckedArguments, as_rendered

if TYPE_CHECKING:
    from airflow.sdk import XComArg


class SparkArguments(CheckedArguments):
    """An operator that submits an app.

    Args:
        application: path of the app, a Python file (templated).
        conn_id: Spark connection.
        application_args: arguments of the app (templated).
        conf: Spark properties (templated).
        jars, packages, exclude_packages, repositories, py_files, files, archives,
            driver_class_path: comma-separated, as for ``spark-submit`` (templated).
        name: of the Spark application; the task's id where None (templated).
        env_vars: added to the driver's environment (templated). On YARN in deploy mode ``cluster``
            they pass through a shell script that does not escape quotes. In that mode they are on
            the command line: names of secrets are refused.
        deploy_mode: ``client`` or ``cluster``; None takes the connection's.
        driver_memory, executor_memory: such as ``2g`` (templated).
        num_executors, executor_cores, total_executor_cores: of the cluster's managers (templated).
        principal, keytab, proxy_user, use_krb5ccache: Kerberos (the first three templated).
        yarn_queue: (templated).
        properties_file: (templated).
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

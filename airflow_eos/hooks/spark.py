"""One run of ``spark-submit``, watched from another thread; composes Airflow's ``SparkSubmitHook``.

In deploy mode ``client`` the run lives as long as the app; in ``cluster`` it ends after the submit.

Only the hook's public methods are used: ``submit`` (blocks, raises when the program fails, hands
its keyword arguments to ``Popen``) and ``on_kill``.
"""

from __future__ import annotations

import contextvars
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_eos.core.checkpoint import StartedBy
from airflow_eos.core.settings import READ_ONCE, SECRET_FILES, SETTINGS
from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.answers import AnsweredHook
from airflow_eos.hooks.store import extra_of
from airflow_eos.ops.packaging import Secrets, write_private
from airflow_eos.ops.supervision.heartbeat_monitor import ClusterManager
from airflow_eos.secret_names import spark_redaction_regex

_AIRFLOWS_OWN = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__")
"""Prefixes of variables with the worker's settings and secrets, which no driver is given."""
_REDACTION = "spark.redaction.regex"


class SparkSubmission:
    """``spark-submit`` as a child process of this task: it is the driver's parent, or submits it.

    ``SparkSubmitHook.submit`` runs in a thread of its own, for two reasons: Airflow calls
    ``on_kill`` in a signal handler *inside* the main thread, and somebody must go on reading the
    app's output while it drains, or it would block on a full pipe and never end.

    Args:
        env: added to this process's environment. It reaches the driver through ``Popen``, never
            through the command line, whatever the cluster manager.
        arguments: the constructor arguments of ``SparkSubmitHook``.
        detached: the driver runs elsewhere, and its environment is among ``arguments``.
        spent: secret files to remove once they were submitted.
    """

    def __init__(
        self,
        application: str,
        *,
        env: Mapping[str, str],
        arguments: Mapping[str, Any],
        detached: bool = False,
        spent: Sequence[Path] = (),
    ) -> None:
        self.detached = detached
        self._spent = spent
        self._application = application
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_AIRFLOWS_OWN)}
        self._env = inherited | dict(env)
        try:
            self._hook = SparkSubmitHook(**arguments)
        except RuntimeError as error:  # the provider for Kubernetes is not installed
            raise ConfigurationError(
                f"SparkSubmitHook cannot submit from this worker: {error} On Kubernetes install "
                "apache-airflow-providers-cncf-kubernetes beside the Spark provider."
            ) from error
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._submit,),
            name="spark-submit",
            daemon=True,
        )

    def start(self) -> None:
        """Start the app; returns at once."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the driver process is still there; safe to ask in a signal handler."""
        return self._thread.is_alive()

    @property
    def failure(self) -> BaseException | None:
        """Why the app failed, once it is no longer running; None where it exited with 0."""
        return self._failure

    def kill(self) -> None:
        """Kill the driver without asking it; recovery ends the transactions that it left open."""
        self._hook.on_kill()

    def _submit(self) -> None:
        try:
            # A session of its own: Airflow sends SIGTERM, then SIGKILL after 5 s, to the whole
            # process group of a cleared task. The app must outlive that to end its batch.
            # Nor is it to hold the task's fd 0, Airflow's socket for its requests: the supervisor
            # of a killed task would wait for its end, 60 s, before it tells anybody.
            self._hook.submit(
                self._application,
                env=self._env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                errors="replace",  # else a byte that is no text would end the watch, not the app
            )
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that watches
            self._failure = failure
        finally:
            for each in self._spent:
                each.unlink(missing_ok=True)


def redacting(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark properties with Kafka's secrets redacted in Spark's UI, plans, event log."""
    return {**conf, _REDACTION: spark_redaction_regex(conf.get(_REDACTION))}


# --- target ---------------------------------------------------------------------------------------
# Where an app is submitted to: the master and deploy mode, and what each of them asks for.


_OUTPUTS = SETTINGS["outputs"].variable
_NAMESPACE = "spark.kubernetes.namespace"
_POD = "spark.kubernetes.driver.pod.name"
_TAGS = "spark.yarn.tags"


@dataclass(frozen=True, slots=True)
class SubmitEnvironment:
    """The environment variables of one start, and the files to ship (path to Spark's name)."""

    told: Mapping[str, str]
    shipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitTarget(ClusterManager):
    """A Spark connection with the deploy mode that was asked for."""

    conn_id: str

    @classmethod
    def of(cls, conn_id: str, *, deploy_mode: str | None, conf: Mapping[str, str]) -> SubmitTarget:
        """Read the Spark connection, and refuse settings that cannot work.

        Raises:
            ConfigurationError: deploy mode ``cluster`` on a master that has none for Python, or a
                setting by which the manager would run the driver again by itself.
            AirflowNotFoundException: no such connection (``SparkSubmitHook`` would go to YARN).
        """
        connection = AnsweredHook.get_connection(conn_id)
        host = connection.host or ""
        by_host = (
            connection.conn_type == "spark" and host and ("://" in host or not connection.port)
        )
        master = host if by_host else f"{connection.conn_type}://{host}"
        if connection.port:
            master += f":{connection.port}"
        extra = extra_of(connection)
        mode = deploy_mode or extra.get("deploy-mode") or conf.get("spark.submit.deployMode")
        target = cls(
            conn_id=conn_id,
            master=master,
            is_cluster=mode == "cluster",
            namespace=conf.get(_NAMESPACE) or extra.get("namespace") or "default",
        )
        target._require_workable(conf)
        return target

    @property
    def manager(self) -> ClusterManager:
        """The cluster manager without the connection id, for the code that ends a driver."""
        return ClusterManager(
            master=self.master, is_cluster=self.is_cluster, namespace=self.namespace
        )

    def conf(self, started_by: StartedBy, conf: Mapping[str, str]) -> dict[str, str]:
        """Return the user's Spark properties with ours, by which no manager restarts a driver.

        ``spark-submit`` returns at once, and the driver has a name that is known before the driver
        exists, so that a later try can end it.
        """
        if not self.is_cluster:
            return dict(conf)
        if self.is_kubernetes:
            return {**self._own(), **conf, _POD: self.pod_of(started_by.submission)}
        tags = filter(None, [conf.get(_TAGS), self.tag_of(started_by.submission)])
        return {**self._own(), **conf, _TAGS: ",".join(tags)}

    def hand_over(
        self, secrets: Secrets, folder: Path, variables: Mapping[str, str]
    ) -> SubmitEnvironment:
        """Write the secrets into files that only this user may read; return the environment.

        Raises:
            ConfigurationError: no mounted secret on Kubernetes, where no other way carries secrets.
        """
        if self.is_cluster and self.is_kubernetes:
            return SubmitEnvironment(self._mounted(secrets, variables))
        handed = {
            name: path for name, path in secrets.hand_over(folder).items() if name not in variables
        }
        once = {READ_ONCE: ",".join(handed)}  # a file that env_vars names is its owner's
        if not self.is_cluster:
            return SubmitEnvironment({**handed, **once, **variables})
        if _OUTPUTS in variables:  # JSON: YARN writes variables into a shell script, quotes and all
            handed[_OUTPUTS] = write_private(folder / "outputs.json", variables[_OUTPUTS])
        aliases = {name: f"eos-{path.rpartition('/')[2]}" for name, path in handed.items()}
        shipped = {path: f"{path}#{aliases[name]}" for name, path in handed.items()}
        return SubmitEnvironment({**once, **variables, **aliases}, shipped)

    def _own(self) -> Mapping[str, str]:
        if self.is_yarn:
            return {
                "spark.yarn.submit.waitAppCompletion": "false",
                "spark.yarn.maxAppAttempts": "1",
            }
        return {"spark.kubernetes.submission.waitAppCompletion": "false"}

    def _mounted(self, secrets: Secrets, variables: Mapping[str, str]) -> dict[str, str]:
        lacks = [
            variable
            for name, variable in SECRET_FILES.items()
            if getattr(secrets, name) and not variables.get(variable)
        ]
        if lacks:
            raise ConfigurationError(
                f"Kubernetes hands files to a driver as secrets alone, and nothing says where "
                f"{', '.join(lacks)} will be. Create a secret with one JSON file for each, mount "
                "it with conf={'spark.kubernetes.driver.secrets.<secret>': '/etc/eos'}, and name "
                f"the files in env_vars={{'{SECRET_FILES['kafka']}': '/etc/eos/kafka.json', …}}."
            )
        return dict(variables)

    def _require_workable(self, conf: Mapping[str, str]) -> None:
        if not self.is_cluster:
            return
        if not (self.is_yarn or self.is_kubernetes):
            raise ConfigurationError(
                f"Spark connection {self.conn_id!r} asks for deploy mode 'cluster' on "
                f"{self.master!r}, where Spark has none for Python apps. Expected YARN or "
                "Kubernetes; take deploy_mode='client' here: the driver then runs on the worker."
            )
        if self.is_kubernetes and _POD in conf:
            raise ConfigurationError(
                f"conf says {_POD}={conf[_POD]}: the pod of a driver that has ended stays, and "
                "under its name Kubernetes takes no other, so that the app could never be started "
                f"again. Leave it out: each start has a pod of its own, {self.pod_of('<id>')}."
            )
        for name, ours in self._own().items():
            if str(conf.get(name, ours)).lower() != ours:
                raise ConfigurationError(
                    f"conf says {name}={conf[name]}; expected {ours}: the operator alone watches "
                    "the driver, and starts it again after a recovery. Leave it out."
                )

"""One run of ``spark-submit``, watched from another thread; composes Airflow's ``SparkSubmitHook``.

In deploy mode ``client`` it lives as long as the app; in ``cluster`` it ends after the submit.

Only the hook's public methods are used: ``submit`` (blocks, raises when the program fails, hands
its keyword arguments to ``Popen``) and ``on_kill``.
"""

from __future__ import annotations

import contextvars
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_eos.errors import ConfigurationError
from airflow_eos.secret_names import spark_redaction_regex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_AIRFLOWS_OWN = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__")
"""Settings and secrets of the worker, which a Spark driver has no business to know."""
_REDACTION = "spark.redaction.regex"


class SparkSubmission:
    """``spark-submit`` as a child process of this task: the driver's parent, or what submits it.

    ``SparkSubmitHook.submit`` runs in a thread of its own, for two reasons: Airflow calls
    ``on_kill`` in a signal handler *inside* the main thread, and somebody must go on reading the
    app's output while it drains, or it would block on a full pipe and never end.

    Args:
        application: path of the app.
        env: added to this process's environment. It reaches the driver through ``Popen``, never
            through the command line, whatever the cluster manager.
        arguments: the constructor arguments of ``SparkSubmitHook``.
        detached: the driver runs elsewhere, and what it is told is among ``arguments``.
        spent: secret files that are of no use any more once they were submitted.
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
        """Kill the driver without asking it; what it left open is for recovery to end."""
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
            )
        except BaseException as failure:  # noqa: BLE001 - handed to the thread that watches
            self._failure = failure
        finally:
            for each in self._spent:
                each.unlink(missing_ok=True)


def redacting(conf: Mapping[str, str]) -> dict[str, str]:
    """Let Spark's UI, plans and event log leave out what Kafka's clients keep secret, too."""
    return {**conf, _REDACTION: spark_redaction_regex(conf.get(_REDACTION))}

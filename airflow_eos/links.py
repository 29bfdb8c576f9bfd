"""Links of a streaming task, each a template of ``[airflow_eos]`` filled in from the heartbeat.

Airflow asks a link for its address when a task has ended. A stream does not end for weeks, so
:func:`push_links` is called once its driver lives.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import Heartbeat

log = logging.getLogger(__name__)

_APPLICATION = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", re.ASCII)

SECTION = "airflow_eos"
SPARK_UI_URL = "http://{host}:4040"
PAGE_URL = "{airflow}/plugin/eos-pipelines#/{pipeline}"
PLAN_URL = "{airflow}/dags/{recovery_dag}"
RECOVERY_DAG = "{dag_id}_recovery"


class _Link(BaseOperatorLink):
    """A link whose address is made of a template and of the driver's last heartbeat."""

    option: str
    default: str

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the address; empty where its template has a placeholder that is not known (yet).

        Airflow calls this method where a task ends, and 3.1.0 fails the task with any error: a
        checkpoint that cannot be read just now, a connection that is gone, a secrets backend that
        is away, a malformed template.
        """
        try:
            from airflow_eos.core.checkpoint import read_heartbeat
            from airflow_eos.hooks.store import checkpoint_of

            return self.address(operator, read_heartbeat(checkpoint_of(operator)))
        except Exception:
            log.warning("The link %s has no address", self.name, exc_info=True)
            return ""

    def address(self, operator: Any, heartbeat: Heartbeat | None) -> str:
        """Return the address as :meth:`get_link`, by the given heartbeat."""
        template = conf.get(SECTION, self.option, fallback=self.default)
        return filled(template, _known(operator, heartbeat))


class SparkUILink(_Link):
    """The link to Spark's own UI of the driver that gave the last sign of life."""

    name = "Spark UI"
    option, default = "spark_ui_url", SPARK_UI_URL


class PipelinePageLink(_Link):
    """The link to this pipeline on the page: batches, open work, the plan."""

    name = "Pipeline"
    option, default = "page_url", PAGE_URL


class RecoveryLink(_Link):
    """The link to the DAG that plans a recovery, asks who must be asked, and carries it out."""

    name = "Recovery"
    option, default = "recovery_url", PLAN_URL


LINKS = (SparkUILink(), PipelinePageLink(), RecoveryLink())


def filled(template: str, known: Mapping[str, str]) -> str:
    """Fill in the template's placeholders; return an empty text where one is not known."""
    try:
        return template.format_map(known)
    except KeyError:
        return ""


def push_links(operator: Any, context: Any, heartbeat: Heartbeat) -> None:
    """Store the links' addresses for a running driver, where Airflow's page looks for them.

    An error costs the links, and not the stream.
    """
    try:
        for link in operator.operator_extra_links:
            if address := link.address(operator, heartbeat):
                context["ti"].xcom_push(key=link.xcom_key, value=address)
    except Exception:
        log.exception("The links of the task could not be stored")


def _known(operator: Any, heartbeat: Heartbeat | None) -> dict[str, str]:
    from airflow_eos.ops.page.views import pipeline_id  # pulls the store in: not at parse time

    location = operator.checkpoint_location
    recovery_dag = conf.get(SECTION, "recovery_dag", fallback=RECOVERY_DAG)
    known = {
        "airflow": conf.get("api", "base_url", fallback="").rstrip("/"),
        "checkpoint": quote(location, safe=""),
        "pipeline": pipeline_id(location, operator.dag_id, operator.task_id),
        "recovery_dag": filled(recovery_dag, {"dag_id": operator.dag_id}),
    }
    if heartbeat is not None and _APPLICATION.fullmatch(heartbeat.application_id):
        known["application_id"] = heartbeat.application_id
    if heartbeat is not None and _is_drivers_own(heartbeat):
        known["host"] = heartbeat.host
    return known


def _is_drivers_own(heartbeat: Heartbeat) -> bool:
    """Whether the heartbeat's host is this worker or that start's pod: only these get a link.

    Whoever may write to the checkpoint decides which host a heartbeat names.
    """
    # This import pulls the store in: not at parse time.
    from airflow_eos.ops.supervision.heartbeat_monitor import ClusterManager

    pod = heartbeat.deploy_mode == "cluster" and heartbeat.submission is not None
    own = ClusterManager().pod_of(heartbeat.submission or "") if pod else socket.gethostname()
    return heartbeat.host == own and _HOST.fullmatch(own) is not None

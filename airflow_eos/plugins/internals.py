"""What the page takes from Airflow that is none of its public interface: no other module does.

The page runs in the API server, with a user's session. Airflow's public way in is its REST API,
for which the page would need a token of that user's, and which says less than the page shows.
``notes/versions.md`` has the reason for each name.
"""

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType

__all__ = [
    "Connection",
    "DagAccessEntity",
    "DagDetails",
    "DagModel",
    "DagRun",
    "DagRunTriggeredByType",
    "Log",
    "SerializedDagModel",
    "TaskInstance",
    "create_session",
    "get_auth_manager",
    "get_user",
    "trigger_dag",
]

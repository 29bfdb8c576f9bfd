"""What the page takes from Airflow that is none of its public interface: no other module does.

The page runs in the API server, with a user's session. Airflow's public way in is its REST API,
for which the page would need a token of that user's, and which says less than the page shows.
``notes/versions.md`` has the reason for each name.
"""

from airflow.api.common.trigger_dag import trigger_dag as trigger_dag
from airflow.api_fastapi.app import get_auth_manager as get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    DagAccessEntity as DagAccessEntity,
)
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails as DagDetails
from airflow.api_fastapi.core_api.security import get_user as get_user
from airflow.models.connection import Connection as Connection
from airflow.models.dag import DagModel as DagModel
from airflow.models.dagrun import DagRun as DagRun
from airflow.models.log import Log as Log
from airflow.models.serialized_dag import SerializedDagModel as SerializedDagModel
from airflow.models.taskinstance import TaskInstance as TaskInstance
from airflow.utils.session import create_session as create_session
from airflow.utils.types import DagRunTriggeredByType as DagRunTriggeredByType

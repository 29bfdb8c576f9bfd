"""Airflow's database and configuration, as far as the page asks them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import func, select

from airflow_eos.errors import ConfigurationError
from airflow_eos.page.listed import Listed, Reach
from airflow_eos.plugins.found import InADag, in_a_dag, in_the_setting, joined, not_shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.plugins.found import Named

_READ_AGAIN_S = 10.0


@dataclass
class Dags:
    """What all DAGs say, read again where a DAG has changed, at most every few seconds."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: dict[str, Any] = field(default_factory=dict)
    _said: dict[str, InADag] = field(default_factory=dict)
    _read_at_s: float = float("-inf")

    def said(self) -> Mapping[str, InADag]:
        """What each DAG says that is not stale."""
        with self._lock:
            if time.monotonic() - self._read_at_s >= _READ_AGAIN_S:
                self._read()
                self._read_at_s = time.monotonic()
            return self._said

    def _read(self) -> None:
        with create_session() as session:
            newest = session.execute(
                select(SerializedDagModel.dag_id, func.max(SerializedDagModel.last_updated))
                .join(DagModel, DagModel.dag_id == SerializedDagModel.dag_id)
                .where(~DagModel.is_stale)
                .group_by(SerializedDagModel.dag_id)
            )
            changed: dict[str, Any] = {row[0]: row[1] for row in newest}
            anew = [dag_id for dag_id, at in changed.items() if self._changed.get(dag_id) != at]
            found = (
                SerializedDagModel.get_latest_serialized_dags(dag_ids=anew, session=session)
                if anew
                else ()
            )
            said = {each.dag_id: in_a_dag(each.dag_id, each.data or {}) for each in found}
        kept = {dag_id: each for dag_id, each in self._said.items() if dag_id in changed}
        self._said, self._changed = kept | said, changed


def pipelines(said: Mapping[str, InADag], may_see: set[str]) -> tuple[list[Listed], list[str]]:
    """Those of DAGs that a user may see, and what cannot be shown of them."""
    remarks: list[str] = []
    setting: tuple[Named, ...] = ()
    try:
        setting = in_the_setting(conf.get("airflow_eos", "pipelines", fallback="[]"))
    except ConfigurationError as error:
        remarks.append(str(error))
    for dag_id in sorted(said.keys() & may_see):
        remarks += not_shown(dag_id, said[dag_id], setting)
    every = joined(said, setting)
    several = {each.dag_id for each in every if sum(e.dag_id == each.dag_id for e in every) > 1}
    return [
        _listed(each, f"{each.dag_id}.{each.task_id}" if each.dag_id in several else each.dag_id)
        for each in every
        if each.dag_id in may_see
    ], remarks


def stall_after_ms() -> int:
    """From ``[airflow_eos] stall_after``, which is in seconds."""
    return conf.getint("airflow_eos", "stall_after", fallback=300) * 1000


def paused(dag_ids: set[str]) -> dict[str, bool]:
    """Of the DAGs that there are, whether each is paused."""
    with create_session() as session:
        found = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(
                DagModel.dag_id.in_(dag_ids), ~DagModel.is_stale
            )
        )
        return {row[0]: row[1] for row in found}


def _listed(named: Named, name: str) -> Listed:
    return Listed(
        name=name,
        location=named.checkpoint_location,
        storage=lambda: _storage(named),
        reach=lambda: _reach(named),
        dag_id=named.dag_id,
        task_id=named.task_id,
        recovery_dag_id=named.recovery_dag_id,
        name_cluster=(
            f"Airflow has no connection {named.kafka_config_id!r}, which {named.dag_id}."
            f"{named.task_id} names. Who may edit connections can add it, of type kafka with "
            '{"bootstrap.servers": "host:port"} as its extra; this page then shows the plan.'
        ),
    )


def _storage(named: Named) -> dict[str, str]:
    from airflow_eos.hooks.store import CheckpointStoreHook

    try:
        return CheckpointStoreHook(named.storage_conn_id, named.storage_options).options()
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"storage_conn_id of {named.dag_id}: {error}") from error


def _reach(named: Named) -> Reach:
    from airflow_eos.hooks.kafka import KafkaSettingsHook
    from airflow_eos.hooks.participants import ParticipantsHook

    try:
        kafka = KafkaSettingsHook(named.kafka_config_id).settings()
    except AirflowNotFoundException:
        kafka = None  # not every pipeline has to do with Kafka; where one has, its plan says so
    try:
        participants = ParticipantsHook(named.participant_conn_ids).reach()
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"participant_conn_ids of {named.dag_id}: {error}") from error
    return Reach(storage=_storage(named), kafka=kafka, participants=participants)

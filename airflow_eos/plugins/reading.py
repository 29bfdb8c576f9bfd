"""Airflow's database and configuration, as far as the page asks them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.utils.session import create_session
from sqlalchemy import func, select

from airflow_eos.errors import ConfigurationError
from airflow_eos.page.listed import Listed, Reach
from airflow_eos.plugins.found import (
    InADag,
    in_a_dag,
    in_the_setting,
    joined,
    not_shown,
    recovery_of,
    watchdogs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
                select(
                    SerializedDagModel.dag_id,
                    func.max(SerializedDagModel.last_updated),
                    DagModel.bundle_name,
                )
                .join(DagModel, DagModel.dag_id == SerializedDagModel.dag_id)
                .where(~DagModel.is_stale)
                .group_by(SerializedDagModel.dag_id, DagModel.bundle_name)
            ).all()
            bundles: dict[str, str | None] = {row[0]: row[2] for row in newest}
            changed: dict[str, Any] = {row[0]: (row[1], row[2]) for row in newest}
            anew = [dag_id for dag_id, at in changed.items() if self._changed.get(dag_id) != at]
            found = (
                SerializedDagModel.get_latest_serialized_dags(dag_ids=anew, session=session)
                if anew
                else ()
            )
            said = {
                each.dag_id: in_a_dag(each.dag_id, each.data or {}, bundles[each.dag_id])
                for each in found
            }
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
    every = [each for each in joined(said, setting) if each.dag_id in may_see]
    looking = {dog for each in every for dog in watchdogs(said, each)}
    asleep = {dog for dog, is_paused in paused(looking).items() if is_paused} if looking else ()
    listed = []
    for each in every:
        if each.recovery_dag_id is None and (why := recovery_of(said, each)[1]):
            remarks.append(why)
        remarks += (
            f"{dog}, which watches {each.dag_id}, is paused: nobody notices when it dies."
            for dog in watchdogs(said, each)
            if dog in asleep
        )
        listed.append(_listed(each, _name_of(each, every), by_setting=each in setting))
    return listed, remarks


def _name_of(each: Named, every: Sequence[Named]) -> str:
    """As short as it can be among all others."""
    if sum(other.key == each.key for other in every) > 1:
        return f"{each.dag_id}.{each.task_id} {each.checkpoint_location}"
    if sum(other.dag_id == each.dag_id for other in every) > 1:
        return f"{each.dag_id}.{each.task_id}"
    return each.dag_id


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


def _listed(named: Named, name: str, *, by_setting: bool) -> Listed:
    def allowed() -> None:
        if not by_setting:
            _require_allowed(named)

    def storage() -> dict[str, str]:
        allowed()
        return _storage(named)

    def reach() -> Reach:
        allowed()
        return _reach(named)

    return Listed(
        name=name,
        location=named.checkpoint_location,
        storage=storage,
        reach=reach,
        dag_id=named.dag_id,
        task_id=named.task_id,
        recovery_dag_id=named.recovery_dag_id,
        name_cluster=(
            f"Airflow has no connection {named.kafka_config_id!r}, which {named.dag_id}."
            f"{named.task_id} names. Who may edit connections can add it, of type kafka with "
            '{"bootstrap.servers": "host:port"} as its extra; this page then shows the plan.'
        ),
    )


def _require_allowed(named: Named) -> None:
    """Refuse a location that the author of a DAG has no connection to, or not for it.

    What a DAG says is its author's word, and this server has rights of its own (a role of the
    machine it runs on): they are for what its owner names in the setting.

    Raises:
        ConfigurationError: so it is.
    """
    place, dag_id = named.checkpoint_location, named.dag_id
    or_name_it = (
        f"Or whoever configures Airflow names the pipeline of {dag_id}.{named.task_id} in the "
        "setting [airflow_eos] pipelines."
    )
    if named.storage_conn_id is None and "://" in place and not place.startswith("file://"):
        raise ConfigurationError(
            f"{place} is not opened: the page uses no rights of Airflow's own for what a DAG "
            f"says. Give the task a storage_conn_id. {or_name_it}"
        )
    conn_ids = {named.kafka_config_id, *(named.participant_conn_ids or {}).values()}
    conn_ids |= {named.storage_conn_id} if named.storage_conn_id is not None else set()
    foreign = _of_another_team(dag_id, conn_ids)
    if foreign:
        raise ConfigurationError(
            f"{place} is not opened: the connections {', '.join(foreign)} are of another team than "
            f"{dag_id}. Give the task some of its own team. {or_name_it}"
        )
    below = _meant_for(named)
    if below is not None and not any(_is_below(place, each) for each in below):
        raise ConfigurationError(
            f"{place} is not opened: the connection {named.storage_conn_id} is for "
            f"{', '.join(below)} (eos_locations in its extra). {or_name_it}"
        )


def _of_another_team(dag_id: str, conn_ids: set[str]) -> list[str]:
    """Connections that a worker would not give to a task of this DAG; a server reads them all."""
    if not hasattr(Connection, "team_name"):  # before Airflow 3.2 there are no teams
        return []
    with create_session() as session:
        found = session.execute(
            select(Connection.conn_id, Connection.team_name).where(
                Connection.conn_id.in_(conn_ids), Connection.team_name.is_not(None)
            )
        ).all()
    own = DagModel.get_team_name(dag_id) if found else None
    return sorted(conn_id for conn_id, team in found if team != own)


def _meant_for(named: Named) -> list[str] | None:
    """The folders that the store's connection is for; None: it does not say."""
    from airflow_eos.hooks.store import CheckpointStoreHook

    if named.storage_conn_id is None:
        return None
    try:
        extra = CheckpointStoreHook.get_connection(named.storage_conn_id).extra_dejson
    except AirflowNotFoundException:
        return None  # what opens the store says so
    found = extra.get("eos_locations")
    return [found] if isinstance(found, str) else found


def _is_below(location: str, folder: str) -> bool:
    parts = location.split("/")
    return ".." not in parts and f"{location}/".startswith(f"{folder.rstrip('/')}/")


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

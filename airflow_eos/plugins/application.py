"""The page inside Airflow's API server: its users, its permissions, and the three buttons.

Airflow mounts a plugin's application without authentication: each route here asks for the user
as Airflow's own routes do, and for what he may do with the pipeline's DAG.
"""

from __future__ import annotations

import inspect
import re
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from airflow.configuration import conf
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import PlainTextResponse, RedirectResponse
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from sqlalchemy import func, select
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_eos.core.arguments import TimeSpan, milliseconds
from airflow_eos.core.log import Log
from airflow_eos.errors import ConfigurationError, EosError
from airflow_eos.hooks.kafka import KafkaSettingsHook
from airflow_eos.hooks.store import CheckpointStoreHook, ParticipantsHook, extra_of
from airflow_eos.ops.page import views
from airflow_eos.ops.page.app import answer, create_app, find, late
from airflow_eos.ops.page.board import Board
from airflow_eos.ops.page.views import PipelineEntry, Reach
from airflow_eos.plugins.actions import NAMES, Allowed, act, asked_of, buttons
from airflow_eos.plugins.internals import (
    Connection,
    DagAccessEntity,
    DagDetails,
    DagModel,
    SerializedDagModel,
    TaskInstance,
    create_session,
    get_auth_manager,
    get_user,
)

log = Log(__name__)

HEADER = "x-eos-token"
MAX_AGE_S = 600


class Tokens:
    """Signs and checks the tokens with which a user confirms an action.

    Args:
        secret: Airflow's own secret key, the same in every API server.
    """

    def __init__(self, secret: str) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt="airflow_eos.ops.page")

    def make(self, user: str, pipeline: str, action: str) -> str:
        """Return a signed token for one confirmation."""
        return str(self._serializer.dumps([user, pipeline, action, uuid.uuid4().hex]))

    def nonce(self, token: str, user: str, pipeline: str, action: str) -> str:
        """Check a token, and return the nonce that tells its confirmation from others.

        Raises:
            HTTPException: 403, it is no token, too old, or of another user, pipeline or action.
        """
        try:
            told = self._serializer.loads(token, max_age=MAX_AGE_S)
        except SignatureExpired:
            raise HTTPException(403, "The confirmation is too old: ask again.") from None
        except BadSignature:
            raise HTTPException(403, f"{HEADER} holds no confirmation of this page.") from None
        if told[:3] != [user, pipeline, action]:
            raise HTTPException(
                403, "The confirmation is of another user, pipeline, button or driver."
            )
        return str(told[3])


def require_own(headers: Mapping[str, str], own: set[str]) -> None:
    """Refuse a request that another site has made the browser send.

    Args:
        headers: the request's headers, by lower-case names.
        own: hosts, with ports, under which this server is known.

    Raises:
        HTTPException: 403.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        raise HTTPException(403, f"The request comes from another place ({site}).")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc not in own:
        raise HTTPException(403, f"The request comes from another origin ({origin}).")
    if HEADER not in headers:
        raise HTTPException(403, f"The request has no {HEADER}: press the button on the page.")


# --- Airflow's pipelines --------------------------------------------------------------------------
# Airflow's pipelines are read from the serialized DAGs, and from one setting beside them.
#
# A DAG already says where its checkpoint is and which connections lead there, and what a user may
# do with a pipeline is what he may do with its DAG. A list in the configuration would say the same
# twice, so it holds only what cannot be read in a DAG: a location that is a template.


_RUNS = {"checkpoint_location", "application"}
_RECOVERS = {"checkpoint_location", "allowed_actions"}
_WATCHES = {"checkpoint_location", "since_batch"}
_REHEARSES = {"checkpoint_location", "application", "batches"}
"""Template fields that tell the kinds of operators: subclasses keep them, whatever their name."""
_NAMES = ("checkpoint_location", "kafka_config_id", "storage_conn_id", "participant_conn_ids")
_A_TEMPLATE = "its checkpoint or a connection is a template, which only its task can render"
_MAPPED = "what it is mapped over is known only when it runs, or is too much"
_MAPPED_AT_MOST = 1024
"""The number of tasks to which Airflow maps one, by default ([core] max_map_length)."""
_OF_A_GROUP = re.compile(r"MappedArgument\(.*_key='([^']*)'\)", re.DOTALL)
"""The text by which Airflow serializes an argument that a mapped task group gives to a task."""


class PipelineReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline with its task and the names of its connections, as a DAG or the setting has it."""

    dag_id: str
    task_id: str = "run"
    checkpoint_location: str
    kafka_config_id: str = "kafka_default"
    storage_conn_id: str | None = None
    storage_options: dict[str, str] | None = None
    participant_conn_ids: dict[str, str] | None = None
    recovery_dag_id: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The pipeline's task; a mapped task has several pipelines."""
        return self.dag_id, self.task_id


class DagOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a DAG comes from: Airflow itself says the bundle, the DAG's author the owners."""

    bundle: str | None = None
    file: str | None = None
    owners: frozenset[str] = frozenset()

    def is_of(self, other: DagOrigin) -> bool:
        """Whether both DAGs are of one bundle and of the same owners."""
        return (self.bundle, self.owners) == (other.bundle, other.owners)


class DagPipelines(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines and checkpoints that one DAG names.

    ``runs`` are its pipelines, ``stands_by`` those that its standbys would drive; ``recovers`` and
    ``watches`` the checkpoints that it recovers and watches; ``hidden`` the tasks whose fields
    cannot be read, each with the reason.
    """

    runs: tuple[PipelineReference, ...] = ()
    stands_by: tuple[PipelineReference, ...] = ()
    recovers: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()
    hidden: Mapping[str, str] = msgspec.field(default_factory=dict)
    origin: DagOrigin = DagOrigin()


def in_a_dag(dag_id: str, data: Mapping[str, Any], bundle: str | None = None) -> DagPipelines:
    """Read the pipelines of a serialized DAG; pure, and cheap: nothing is deserialized.

    A DAG that cannot be read says so, and does not take another DAG from the page.

    Args:
        data: the DAG as Airflow has serialized it.
        bundle: the bundle that it comes from, as Airflow says.
    """
    try:
        return _read_dag(dag_id, data, bundle)
    except Exception as error:  # raised by whatever its author has put there
        log.exception("page_dag_unreadable", dag_id=dag_id)
        return DagPipelines(hidden={"*": f"it cannot be read ({type(error).__name__})"})


def _read_dag(dag_id: str, data: Mapping[str, Any], bundle: str | None) -> DagPipelines:
    runs: list[PipelineReference] = []
    stands_by: list[PipelineReference] = []
    recovers, watches, hidden, owners = [], [], {}, set()
    groups = _groups(data)
    for stored in data.get("dag", {}).get("tasks", ()):
        task = stored.get("__var", stored)
        fields = set(task.get("template_fields", ()))
        owners.add(str(_argument(task, "owner") or ""))
        told = _told(task, groups.get(task.get("task_id", ""), ()))
        locations = [each["checkpoint_location"] for each in told or () if _is_plain(each)]
        if fields >= _REHEARSES:
            continue
        if fields >= _RUNS:
            found, why = _runs_of(dag_id, task["task_id"], told)
            (stands_by if _argument(task, "standby") else runs).extend(found)
            if why is not None:
                hidden[task["task_id"]] = why
        elif fields >= _RECOVERS:
            recovers += locations
        elif fields >= _WATCHES:
            watches += locations
    running = {each.checkpoint_location for each in (*runs, *stands_by)}
    return DagPipelines(
        runs=tuple(runs),
        stands_by=tuple(stands_by),
        recovers=tuple(dict.fromkeys(recovers)),
        watches=tuple(each for each in dict.fromkeys(watches) if each not in running),
        hidden=hidden,
        origin=DagOrigin(
            bundle=bundle,
            file=data.get("dag", {}).get("fileloc"),
            owners=frozenset(filter(None, owners)),
        ),
    )


def in_the_setting(text: str) -> tuple[PipelineReference, ...]:
    """Read the setting ``[airflow_eos] pipelines`` (ConfigurationError: it is no such list)."""
    try:
        return msgspec.json.decode(text or "[]", type=tuple[PipelineReference, ...])
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"The setting [airflow_eos] pipelines cannot be read: {error}. Expected a JSON list of "
            'objects such as {"dag_id": "etl", "checkpoint_location": "s3a://lake/etl"}.'
        ) from error


def joined(
    dags: Mapping[str, DagPipelines], setting: Iterable[PipelineReference]
) -> tuple[PipelineReference, ...]:
    """Return all pipelines, each with the DAG that recovers it; the setting wins over a DAG.

    A standby's pipeline is shown with the task that the standby waits for, where there is one.
    """
    named, tasks = list(setting), {each.key for each in setting}
    locations = {(each.key, each.checkpoint_location) for each in named}
    for dag in dags.values():
        of_task = Counter(each.key for each in dag.runs)
        for each in dag.runs:
            is_mapped = of_task[each.key] > 1
            replaced = (each.key, each.checkpoint_location) in locations
            if not replaced and (is_mapped or each.key not in tasks):
                named.append(each)
    shown = {each.checkpoint_location for each in named}
    for each in (each for dag in dags.values() for each in dag.stands_by):
        if each.checkpoint_location not in shown:
            named.append(each)
            shown.add(each.checkpoint_location)
    said = SaidOf.of(dags)
    return tuple(
        each
        if each.recovery_dag_id
        else msgspec.structs.replace(each, recovery_dag_id=recovery_of(dags, each, said)[0])
        for each in named
    )


class SaidOf(msgspec.Struct, frozen=True):
    """The DAGs that recover, and those that watch, each checkpoint; gathered once for all."""

    recovers: Mapping[str, Sequence[str]]
    watches: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, dags: Mapping[str, DagPipelines]) -> SaidOf:
        """Gather what all DAGs say."""
        recovers, watches = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for name, dag in dags.items():
            for location in dag.recovers:
                recovers[location].append(name)
            for location in dag.watches:
                watches[location].append(name)
        return cls(recovers, watches)


def recovery_of(
    dags: Mapping[str, DagPipelines],
    pipeline: PipelineReference,
    said: SaidOf,
    may_see: set[str] | None = None,
) -> tuple[str | None, str | None]:
    """Return ``(dag_id, None)`` for the one DAG that may recover the pipeline.

    ``(None, reason)`` if several, or only untrusted, DAGs name its checkpoint, and ``(None, None)``
    if no DAG names it.

    Anybody's DAG may name a checkpoint. A DAG counts if it is of the bundle and the owners of the
    pipeline's own; of several, the one in the pipeline's file; of several still, none: the DAG's
    name proves nothing. The reason names only DAGs of ``may_see`` where that is given.
    """
    say_so = said.recovers.get(pipeline.checkpoint_location, ())
    own = dags[pipeline.dag_id].origin if pipeline.dag_id in dags else DagOrigin()
    ours = [name for name in say_so if dags[name].origin.is_of(own)]
    if len(ours) > 1:
        beside = [name for name in ours if own.file and dags[name].origin.file == own.file]
        ours = beside if len(beside) == 1 else ours
    if len(ours) == 1 or not say_so:
        return (ours[0] if ours else None), None
    seen = sorted(say_so) if may_see is None else sorted(may_see.intersection(say_so))
    names = ", ".join(seen) or "which you may not see"
    found = f"several DAGs say that they recover it ({names})"
    if not ours:
        found = f"what says that it recovers it ({names}) is of another bundle or owner than "
        found += pipeline.dag_id
    return None, (
        f"{pipeline.dag_id}.{pipeline.task_id}: {found}, so no button starts one. Name the right "
        "one as recovery_dag_id in the setting [airflow_eos] pipelines."
    )


def watchdogs(
    dags: Mapping[str, DagPipelines], pipeline: PipelineReference, said: SaidOf
) -> tuple[str, ...]:
    """Return the DAGs of the pipeline's own bundle and owners that watch it."""
    own = dags[pipeline.dag_id].origin if pipeline.dag_id in dags else DagOrigin()
    looking = said.watches.get(pipeline.checkpoint_location, ())
    return tuple(name for name in looking if dags[name].origin.is_of(own))


def not_shown(
    dag_id: str, dag: DagPipelines, setting: Iterable[PipelineReference]
) -> Iterator[str]:
    """Yield a sentence for each task that cannot be read, and that the setting does not name."""
    known = {each.key for each in setting}
    for task_id, why in dag.hidden.items():
        if (dag_id, task_id) not in known:
            yield (
                f"{dag_id}.{task_id} is not shown: {why}. Name it in the setting [airflow_eos] "
                "pipelines."
            )


def _runs_of(
    dag_id: str, task_id: str, arguments: list[dict[str, Any]] | None
) -> tuple[list[PipelineReference], str | None]:
    """Return the pipelines of a task, and why one of them cannot be read."""
    if arguments is None:
        return [], _MAPPED
    runs, why = [], None
    for each in arguments:
        if not _is_plain(each):
            why = _A_TEMPLATE
            continue
        try:
            runs.append(
                msgspec.convert({"dag_id": dag_id, "task_id": task_id, **each}, PipelineReference)
            )
        except msgspec.ValidationError as error:  # one odd DAG must not hide the others
            why = f"its arguments cannot work ({error})"
    return runs, why


def _told(
    task: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]] | None:
    """Return the arguments that name a pipeline, once for each mapped task; None: not known."""
    plain = {name: _argument(task, name) for name in _NAMES}
    plain = {name: value for name, value in plain.items() if value is not None}
    found = [plain]
    for mapped in (task.get("expand_input"), *groups):
        if mapped is None:
            continue
        is_its_own = mapped is task.get("expand_input")
        by_name = {name: name for name in _NAMES}
        if not is_its_own:
            by_name = {n: key for n, v in plain.items() if (key := _key_of(v)) is not None}
        each = _mapped_over(mapped, set(by_name.values()))
        if each is None:
            return None
        keys = {key for one in each for key in one}
        by_name = {name: key for name, key in by_name.items() if key in keys}
        if by_name and len(found) * len(each) > _MAPPED_AT_MOST:
            return None
        if by_name:
            found = [
                {**one, **{name: value[key] for name, key in by_name.items() if key in value}}
                for one in found
                for value in each
            ]
    if any(_key_of(value) is not None for one in found for value in one.values()):
        return None
    return [one for n, one in enumerate(found) if one not in found[:n]]


def _mapped_over(mapped: Mapping[str, Any], wanted: set[str]) -> list[dict[str, Any]] | None:
    """Return the ``wanted`` arguments of each mapped task; None: not in the DAG, or too many."""
    value = _plain(mapped.get("value"))
    if mapped.get("type") == "list-of-dicts" and isinstance(value, list):
        each = [_plain(one) for one in value]
        return each if all(isinstance(one, dict) for one in each) else None
    if mapped.get("type") != "dict-of-lists" or not isinstance(value, dict):
        return None
    found: list[dict[str, Any]] = [{}]
    for name in (each for each in value if each in wanted):  # the others name no pipeline
        of_name = _plain(value[name])
        if not isinstance(of_name, list) or len(found) * len(of_name) > _MAPPED_AT_MOST:
            return None
        found = [{**one, name: _plain(each)} for one in found for each in of_name]
    return found


def _groups(data: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Return, by task, what the task groups around it are mapped over, the innermost first."""
    found: dict[str, tuple[Mapping[str, Any], ...]] = {}

    def walk(group: Mapping[str, Any], around: tuple[Mapping[str, Any], ...]) -> None:
        mapped = group.get("expand_input")
        inside = (mapped, *around) if mapped else around
        for kind, child in group.get("children", {}).values():
            if isinstance(child, dict):
                walk(child, inside)
            elif kind == "operator" and inside:
                found[child] = inside

    walk(data.get("dag", {}).get("task_group") or {}, ())
    return found


def _argument(task: Mapping[str, Any], name: str) -> Any:
    """Return an argument of an operator, or what ``partial`` was given where it is mapped."""
    value = task.get(name)
    return _plain((task.get("partial_kwargs") or {}).get(name) if value is None else value)


def _key_of(value: Any) -> str | None:
    """Return the key of the mapped task group's argument that a value stands for; None: none."""
    found = _OF_A_GROUP.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else found[1]


def _plain(value: Any) -> Any:
    """Remove the wrapping that some versions of Airflow give to dictionaries and lists."""
    if isinstance(value, dict) and value.keys() >= {"__type", "__var"}:
        return value["__var"] if value["__type"] in ("dict", "list", "tuple") else value
    return value


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether the location is text, and no argument is a template."""
    text = msgspec.json.encode(arguments, enc_hook=str).decode()
    is_text = isinstance(arguments.get("checkpoint_location"), str)
    return is_text and "{{" not in text and "{%" not in text


# --- Airflow's database ---------------------------------------------------------------------------


_READ_AGAIN_S = 10.0


@dataclass
class Dags:
    """A cache of what all DAGs say; a changed DAG is read again, at most every few seconds."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: dict[str, Any] = field(default_factory=dict)
    _said: dict[str, DagPipelines] = field(default_factory=dict)
    _read_at_s: float = float("-inf")

    def said(self) -> Mapping[str, DagPipelines]:
        """Return what each DAG says, stale DAGs left out."""
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
            changed_again = [
                dag_id for dag_id, at in changed.items() if self._changed.get(dag_id) != at
            ]
            found = (
                SerializedDagModel.get_latest_serialized_dags(
                    dag_ids=changed_again, session=session
                )
                if changed_again
                else ()
            )
            said = {
                each.dag_id: in_a_dag(each.dag_id, each.data or {}, bundles[each.dag_id])
                for each in found
            }
        kept = {dag_id: each for dag_id, each in self._said.items() if dag_id in changed}
        self._said, self._changed = kept | said, changed


def pipelines(
    said: Mapping[str, DagPipelines], may_see: set[str]
) -> tuple[list[PipelineEntry], list[str]]:
    """Return the pipelines of the DAGs that a user may see, and remarks on them."""
    remarks: list[str] = []
    setting: tuple[PipelineReference, ...] = ()
    try:
        setting = in_the_setting(conf.get("airflow_eos", "pipelines", fallback="[]"))
    except ConfigurationError as error:
        remarks.append(str(error))
    for dag_id in sorted(said.keys() & may_see):
        remarks += not_shown(dag_id, said[dag_id], setting)
    every = [each for each in joined(said, setting) if each.dag_id in may_see]
    by_place = SaidOf.of(said)
    named = {(each.key, each.checkpoint_location) for each in setting}
    dogs = [watchdogs(said, each, by_place) for each in every]
    needed = {name for of_one in dogs for name in of_one}
    needed |= {name for each in every for name in (each.dag_id, each.recovery_dag_id) if name}
    asleep = {name for name, is_paused in paused(needed).items() if is_paused} if needed else ()
    listed = []
    for each, name, of_one in zip(every, _names(every), dogs, strict=True):
        if each.recovery_dag_id is None and (why := recovery_of(said, each, by_place, may_see)[1]):
            remarks.append(why)
        is_named = (each.key, each.checkpoint_location) in named
        entry = _listed(each, name, by_setting=is_named)
        listed.append(
            replace(
                entry,
                watchdogs=tuple((dog, dog in asleep) for dog in of_one),
                remarks=tuple(
                    f"{dag_id}, which {does}"
                    for dag_id, does in (
                        (each.recovery_dag_id, "recovers it, is paused: nobody does"),
                        (each.dag_id, "runs the app, is paused: nothing starts it again"),
                    )
                    if dag_id in asleep
                ),
            )
        )
    return listed, remarks


def _names(every: Sequence[PipelineReference]) -> list[str]:
    """Return a name for each pipeline, as short as it can be and still unlike all others."""
    tasks, dags = Counter(each.key for each in every), Counter(each.dag_id for each in every)
    return [
        f"{each.dag_id}.{each.task_id} {each.checkpoint_location}"
        if tasks[each.key] > 1
        else f"{each.dag_id}.{each.task_id}"
        if dags[each.dag_id] > 1
        else each.dag_id
        for each in every
    ]


def stall_after_ms() -> int:
    """Read ``[airflow_eos] stall_after``, a duration, in ms (ConfigurationError: it is none)."""
    given = conf.get("airflow_eos", "stall_after", fallback="300")
    return milliseconds(TimeSpan(positive=True).of("[airflow_eos] stall_after", given))


def paused(dag_ids: set[str]) -> dict[str, bool]:
    """Return whether each DAG is paused; a DAG that does not exist is left out."""
    with create_session() as session:
        found = session.execute(
            select(DagModel.dag_id, DagModel.is_paused).where(
                DagModel.dag_id.in_(dag_ids), ~DagModel.is_stale
            )
        )
        return {row[0]: row[1] for row in found}


def _listed(named: PipelineReference, name: str, *, by_setting: bool) -> PipelineEntry:
    def allowed() -> None:
        if not by_setting:
            _require_allowed(named)

    def storage() -> dict[str, str]:
        allowed()
        return _storage(named)

    def reach() -> Reach:
        allowed()
        return _reach(named)

    return PipelineEntry(
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


def _require_allowed(named: PipelineReference) -> None:
    """Refuse a location that the DAG's author has no connection to, or one not meant for it.

    A DAG names what its author likes, and this server has rights of its own (a role of the machine
    it runs on): these are only for pipelines that the server's owner names in the setting.
    """
    location, dag_id = named.checkpoint_location, named.dag_id
    or_name_it = (
        f"Or whoever configures Airflow names the pipeline of {dag_id}.{named.task_id} in the "
        "setting [airflow_eos] pipelines."
    )
    if named.storage_conn_id is None and "://" in location and not location.startswith("file://"):
        raise ConfigurationError(
            f"{location} is not opened: the page uses no rights of Airflow's own for what a DAG "
            f"says. Give the task a storage_conn_id. {or_name_it}"
        )
    conn_ids = {named.kafka_config_id, *(named.participant_conn_ids or {}).values()}
    conn_ids |= {named.storage_conn_id} if named.storage_conn_id is not None else set()
    foreign = _of_another_team(dag_id, conn_ids)
    if foreign:
        raise ConfigurationError(
            f"{location} is not opened: the connections {', '.join(foreign)} are of another team "
            f"than {dag_id}. Give the task some of its own team. {or_name_it}"
        )
    below = _meant_for(named)
    if below is not None and not any(_is_below(location, each) for each in below):
        raise ConfigurationError(
            f"{location} is not opened: the connection {named.storage_conn_id} is for "
            f"{', '.join(below)} (eos_locations in its extra). {or_name_it}"
        )


def _of_another_team(dag_id: str, conn_ids: set[str]) -> list[str]:
    """List the connections of other teams: a worker would not give them to this DAG's tasks."""
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


def _meant_for(named: PipelineReference) -> list[str] | None:
    """Return the folders that the store's connection is for; None: it does not say."""
    if named.storage_conn_id is None:
        return None
    try:
        extra = extra_of(CheckpointStoreHook.get_connection(named.storage_conn_id))
    except AirflowNotFoundException:
        return None  # opening the store says so
    found = extra.get("eos_locations")
    return [found] if isinstance(found, str) else found


def _is_below(location: str, folder: str) -> bool:
    parts = location.split("/")
    return ".." not in parts and f"{location}/".startswith(f"{folder.rstrip('/')}/")


def _storage(named: PipelineReference) -> dict[str, str]:
    try:
        return CheckpointStoreHook(named.storage_conn_id, named.storage_options).options()
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"storage_conn_id of {named.dag_id}: {error}") from error


def _reach(named: PipelineReference) -> Reach:
    try:
        kafka = KafkaSettingsHook(named.kafka_config_id).settings()
    except AirflowNotFoundException:
        kafka = None  # not every pipeline uses Kafka; the plan of one that does says so
    try:
        participants = ParticipantsHook(named.participant_conn_ids).reach()
    except AirflowNotFoundException as error:
        raise ConfigurationError(f"participant_conn_ids of {named.dag_id}: {error}") from error
    return Reach(storage=_storage(named), kafka=kafka, participants=participants)


TOO_OLD = (
    "In a browser this page needs Airflow 3.1.1 or later: this one does not say who is logged in, "
    "but to its own pages. `airflow-eos ui` shows the same, to read, beside any Airflow."
)


@dataclass(frozen=True)
class Airflow:
    """The page's host inside Airflow: pipelines of its DAGs, and buttons by its permissions."""

    tokens: Tokens
    dags: Dags = field(default_factory=Dags)

    def pipelines(self, user: Any) -> tuple[Sequence[PipelineEntry], Sequence[str]]:
        """Return the pipelines of the DAGs that the user may read."""
        return pipelines(self.dags.said(), _dags(user, "GET"))

    def actions(
        self, user: Any, listed: PipelineEntry, detail: views.DetailView
    ) -> tuple[views.ButtonView, ...]:
        """Return the three buttons, as this user may press them now."""
        who = user.get_id()
        return buttons(
            listed,
            detail.row,
            _allowed(user, listed),
            lambda action: self.tokens.make(who, listed.id, asked_of(action, detail.row)),
        )

    def around(self, listed: PipelineEntry, detail: views.DetailView) -> views.Around:
        """Return links to Airflow's own pages, and which task supervises the pipeline."""
        heart = detail.row.heartbeat
        by = heart.started_by if heart is not None else None
        if by is not None and by.dag_id != listed.dag_id:
            by = None  # a checkpoint names no other DAG to a user who may not see it
        dags = [("Recovery DAG", listed.recovery_dag_id)]
        dags += [("Watchdog", name) for name, _ in listed.watchdogs]
        links = [views.LinkView(label, _address(name)) for label, name in dags if name]
        if by is None:
            return views.Around(links=tuple(links))
        run = _address(by.dag_id, "runs", by.run_id, "tasks", by.task_id)
        mapped = "" if by.map_index < 0 else f"/mapped/{by.map_index}"
        log_of = views.LinkView("Log of the task", run + mapped)
        return views.Around(links=(log_of, *links), supervised=supervised_by(by))


_BEATS_WITHIN_S = 60
"""Seconds within which a task that runs gives Airflow a heartbeat, by far."""


def supervised_by(by: views.Starter) -> str:
    """Say whether the task that has started a driver supervises it now, by Airflow's own rows."""
    task = f"task {by.dag_id}.{by.task_id}"
    with create_session() as session:
        found = session.execute(
            select(TaskInstance.state, TaskInstance.last_heartbeat_at).where(
                TaskInstance.dag_id == by.dag_id,
                TaskInstance.task_id == by.task_id,
                TaskInstance.run_id == by.run_id,
                TaskInstance.map_index == by.map_index,
            )
        ).first()
    state, beaten_at = found or (None, None)
    if state == "deferred":
        return f"by {task}, in the triggerer"
    if state != "running":
        return f"by nobody now: {task} is {state or 'no longer known'}"
    silent_s = 0 if beaten_at is None else int(time.time() - beaten_at.timestamp())
    if silent_s > _BEATS_WITHIN_S:
        return f"perhaps by nobody: {task} has given no heartbeat for {silent_s} s"
    return f"by {task}"


def _address(dag_id: str, *more: str) -> str:
    """Return the address of a DAG in Airflow's own UI, or of what is below it."""
    below = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return "/".join((f"{below}/dags", *(quote(each, safe="") for each in (dag_id, *more))))


def application() -> FastAPI:
    """Create the page's application for Airflow's API server."""
    board = Board(stall_after_ms())
    host = Airflow(Tokens(conf.get_mandatory_value("api", "secret_key")))
    app = create_app(host, board, user=get_user, read_only=False)
    asking = Depends(get_user)
    reads_cookies = "request" in inspect.signature(get_user).parameters

    @app.post("/api/pipelines/{id}/{action}")
    def press(
        request: Request,
        id: str,  # noqa: A002 - the name in the address
        action: str,
        user: Any = asking,
    ) -> Response:
        require_own(request.headers, _own(request))
        listed = find(host, user, id)
        if action not in NAMES:
            raise HTTPException(404, f"There is no button {action!r}.")
        board.forget(listed)  # the decision needs the present state
        detail = board.detail(listed)
        if detail is None:
            raise late(listed)
        pressed = next(each for each in host.actions(user, listed, detail) if each.name == action)
        asked = asked_of(action, detail.row)
        nonce = host.tokens.nonce(request.headers[HEADER], user.get_id(), listed.id, asked)
        if pressed.token is None:
            may = _allowed(user, listed)
            raise HTTPException(409 if _may_press(may, listed, action) else 403, pressed.not_now)
        try:
            said = act(action, listed, user.get_name(), nonce)
        except EosError as error:
            raise HTTPException(409, str(error)) from error
        board.forget(listed)
        return answer(views.ActionResult(said))

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        """Redirect a browser that is not logged in to the login; answer 401 to programs."""
        wants_page = "text/html" in request.headers.get("accept", "")
        if error.status_code == 401 and request.method == "GET" and wants_page:
            if not reads_cookies:  # the login would redirect back here for ever
                return PlainTextResponse(TOO_OLD, error.status_code)
            return RedirectResponse(get_auth_manager().get_url_login(next_url=str(request.url)))
        return await http_exception_handler(request, error)

    return app


def _dags(user: Any, method: Any) -> set[str]:
    return get_auth_manager().get_authorized_dag_ids(user=user, method=method)


def _allowed(user: Any, listed: PipelineEntry) -> Allowed:
    """Return whether the user may edit (as to pause a DAG), and run, which needs both rights."""
    dag_ids = {each for each in (listed.dag_id, listed.recovery_dag_id) if each is not None}
    editable = _dags(user, "PUT")
    return Allowed(
        edit=listed.dag_id in editable,
        run=frozenset(each for each in dag_ids & editable if _may_run(user, each)),
        paused=paused(dag_ids),
    )


def _may_run(user: Any, dag_id: str) -> bool:
    team = DagModel.get_team_name(dag_id) if hasattr(DagModel, "get_team_name") else None
    details = DagDetails(id=dag_id, team_name=team) if team else DagDetails(id=dag_id)
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
    )


def _may_press(allowed: Allowed, listed: PipelineEntry, action: str) -> bool:
    if action == "drain":
        return allowed.edit
    dag_id = listed.dag_id if action == "resume" else listed.recovery_dag_id
    return dag_id is None or dag_id in allowed.run


def _own(request: Request) -> set[str]:
    """Return this server's names: that of the request's Host header, and the configured one."""
    configured = urlsplit(conf.get("api", "base_url", fallback="")).netloc
    return {each for each in (request.headers.get("host", ""), configured) if each}

"""Which pipelines Airflow has: read from the serialized DAGs, and from one setting beside them.

A DAG already says where its checkpoint is and which connections lead there, and what a user may do
with a pipeline is what he may do with its DAG. A list in the configuration would be a second truth,
so it holds only what no DAG says in plain words: a location that is a template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RUNS = {"checkpoint_location", "application"}
_RECOVERS = {"checkpoint_location", "allowed_actions"}
_WATCHES = {"checkpoint_location", "since_batch"}
"""Fields that tell who runs, recovers and watches: subclasses keep them, whatever their name."""
_NAMES = ("checkpoint_location", "kafka_config_id", "storage_conn_id", "participant_conn_ids")
_A_TEMPLATE = "its checkpoint or a connection is a template, which only its task can render"
_MAPPED = "what it is mapped over is known only when it runs"
_OF_A_GROUP = re.compile(r"MappedArgument\(.*_key='([^']*)'\)", re.DOTALL)
"""How Airflow writes down an argument that a mapped task group gives to a task."""


class Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline by the names of its connections, as a DAG or the setting says it."""

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
        """Its task; one that is mapped has several pipelines."""
        return self.dag_id, self.task_id


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a DAG comes from. The bundle is Airflow's word, the owners are those of its author."""

    bundle: str | None = None
    file: str | None = None
    owners: frozenset[str] = frozenset()

    def is_of(self, other: Place) -> bool:
        """Whether both are of one bundle and of the same owners."""
        return (self.bundle, self.owners) == (other.bundle, other.owners)


class InADag(msgspec.Struct, frozen=True, kw_only=True):
    """What one DAG says.

    ``runs`` are its pipelines; ``recovers`` and ``watches`` the checkpoints that it recovers and
    looks at; ``hidden`` the tasks whose fields cannot be read, each with why.
    """

    runs: tuple[Named, ...] = ()
    recovers: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()
    hidden: Mapping[str, str] = msgspec.field(default_factory=dict)
    place: Place = Place()


def in_a_dag(dag_id: str, data: Mapping[str, Any], bundle: str | None = None) -> InADag:
    """Read a serialized DAG; pure, and cheap: nothing is deserialized.

    Args:
        dag_id: its id.
        data: what Airflow has stored of it.
        bundle: that it comes from, as Airflow says.
    """
    runs: list[Named] = []
    recovers, watches, hidden, owners = [], [], {}, set()
    groups = _groups(data)
    for task in _tasks(data):
        fields = set(task.get("template_fields", ()))
        owners.add(str(_argument(task, "owner") or ""))
        told = _told(task, groups.get(task.get("task_id", ""), ()))
        places = [each["checkpoint_location"] for each in told or () if _is_plain(each)]
        if fields >= _RUNS:
            found, why = _runs_of(dag_id, task["task_id"], told)
            runs += found
            if why is not None:
                hidden[task["task_id"]] = why
        elif fields >= _RECOVERS:
            recovers += places
        elif fields >= _WATCHES:
            watches += places
    running = {each.checkpoint_location for each in runs}
    return InADag(
        runs=tuple(runs),
        recovers=tuple(dict.fromkeys(recovers)),
        watches=tuple(each for each in dict.fromkeys(watches) if each not in running),
        hidden=hidden,
        place=Place(
            bundle=bundle,
            file=data.get("dag", {}).get("fileloc"),
            owners=frozenset(filter(None, owners)),
        ),
    )


def in_the_setting(text: str) -> tuple[Named, ...]:
    """The pipelines of ``[airflow_eos] pipelines``.

    Raises:
        ConfigurationError: it is no such list.
    """
    try:
        return msgspec.json.decode(text or "[]", type=tuple[Named, ...])
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"The setting [airflow_eos] pipelines cannot be read: {error}. Expected a JSON list of "
            'objects such as {"dag_id": "etl", "checkpoint_location": "s3a://lake/etl"}.'
        ) from error


def joined(dags: Mapping[str, InADag], setting: Iterable[Named]) -> tuple[Named, ...]:
    """All pipelines, each with the DAG that recovers it; the setting wins over a DAG."""
    named, tasks = list(setting), {each.key for each in setting}
    places = {(each.key, each.checkpoint_location) for each in named}
    for dag in dags.values():
        for each in dag.runs:
            is_mapped = sum(other.key == each.key for other in dag.runs) > 1
            replaced = (each.key, each.checkpoint_location) in places
            if not replaced and (is_mapped or each.key not in tasks):
                named.append(each)
    return tuple(
        each
        if each.recovery_dag_id
        else msgspec.structs.replace(each, recovery_dag_id=recovery_of(dags, each)[0])
        for each in named
    )


def recovery_of(dags: Mapping[str, InADag], pipeline: Named) -> tuple[str | None, str | None]:
    """The DAG that recovers it, or why none is taken for it; both None: none says that it does.

    Anybody's DAG may name a checkpoint. One counts that is of the bundle and the owners of the
    pipeline's own; of several the one of its file; and of several still none: a name says nothing.
    """
    say_so = [name for name, dag in dags.items() if pipeline.checkpoint_location in dag.recovers]
    own = dags[pipeline.dag_id].place if pipeline.dag_id in dags else Place()
    ours = [name for name in say_so if dags[name].place.is_of(own)]
    if len(ours) > 1:
        beside = [name for name in ours if own.file and dags[name].place.file == own.file]
        ours = beside if len(beside) == 1 else ours
    if len(ours) == 1 or not say_so:
        return (ours[0] if ours else None), None
    found = f"several DAGs say that they recover it ({', '.join(sorted(say_so))})"
    if not ours:
        found = f"what says that it recovers it ({', '.join(sorted(say_so))}) is of another bundle"
        found += f" or owner than {pipeline.dag_id}"
    return None, (
        f"{pipeline.dag_id}.{pipeline.task_id}: {found}, so no button starts one. Name the right "
        "one as recovery_dag_id in the setting [airflow_eos] pipelines."
    )


def watchdogs(dags: Mapping[str, InADag], pipeline: Named) -> tuple[str, ...]:
    """The DAGs of its own bundle and owners that look how it gets on."""
    own = dags[pipeline.dag_id].place if pipeline.dag_id in dags else Place()
    return tuple(
        name
        for name, dag in dags.items()
        if pipeline.checkpoint_location in dag.watches and dag.place.is_of(own)
    )


def not_shown(dag_id: str, dag: InADag, setting: Iterable[Named]) -> Iterator[str]:
    """A sentence for each task that cannot be read, and that the setting does not name."""
    known = {each.key for each in setting}
    for task_id, why in dag.hidden.items():
        if (dag_id, task_id) not in known:
            yield (
                f"{dag_id}.{task_id} is not shown: {why}. Name it in the setting [airflow_eos] "
                "pipelines."
            )


def _tasks(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for task in data.get("dag", {}).get("tasks", ()):
        yield task.get("__var", task)


def _runs_of(
    dag_id: str, task_id: str, told: list[dict[str, Any]] | None
) -> tuple[list[Named], str | None]:
    """The pipelines of a task, and why one of them cannot be read."""
    if told is None:
        return [], _MAPPED
    runs, why = [], None
    for each in told:
        if not _is_plain(each):
            why = _A_TEMPLATE
            continue
        try:
            runs.append(msgspec.convert({"dag_id": dag_id, "task_id": task_id, **each}, Named))
        except msgspec.ValidationError as error:  # one odd DAG is no matter of the others
            why = f"its arguments cannot work ({error})"
    return runs, why


def _told(
    task: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]] | None:
    """The arguments that name a pipeline, once for each that a mapped task has; None: not known.

    Args:
        task: as it is serialized.
        groups: what the task groups around it are mapped over.
    """
    plain = {name: _argument(task, name) for name in _NAMES}
    plain = {name: value for name, value in plain.items() if value is not None}
    found = [plain]
    for mapped in (task.get("expand_input"), *groups):
        if mapped is None:
            continue
        each = _mapped_over(mapped)
        if each is None:
            return None
        keys = {key for one in each for key in one}
        by_name = {name: name for name in keys & set(_NAMES)}
        if mapped is not task.get("expand_input"):
            by_name = {n: key for n, v in plain.items() if (key := _key_of(v)) in keys}
        if by_name:
            found = [
                {**one, **{name: value[key] for name, key in by_name.items() if key in value}}
                for one in found
                for value in each
            ]
    if any(_key_of(value) is not None for one in found for value in one.values()):
        return None
    return [one for n, one in enumerate(found) if one not in found[:n]]


def _mapped_over(mapped: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The arguments of each mapped task; None where they are not written in the DAG."""
    value = _plain(mapped.get("value"))
    if mapped.get("type") == "list-of-dicts" and isinstance(value, list):
        each = [_plain(one) for one in value]
        return each if all(isinstance(one, dict) for one in each) else None
    if mapped.get("type") != "dict-of-lists" or not isinstance(value, dict):
        return None
    found: list[dict[str, Any]] = [{}]
    for name, values in value.items():
        of_name = _plain(values)
        if not isinstance(of_name, list):
            if name in _NAMES:
                return None
            continue  # how many there are is no matter of where they are
        found = [{**one, name: _plain(each)} for one in found for each in of_name]
    return found


def _groups(data: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """By task: what the task groups around it are mapped over, the innermost first."""
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
    """An argument of an operator, or of what ``partial`` was given for each of a mapped one."""
    value = task.get(name)
    return _plain((task.get("partial_kwargs") or {}).get(name) if value is None else value)


def _key_of(value: Any) -> str | None:
    """Which argument of a mapped task group stands in its place; None: it is a value."""
    found = _OF_A_GROUP.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else found[1]


def _plain(value: Any) -> Any:
    """Without the wrapping that some versions of Airflow give to dictionaries."""
    if isinstance(value, dict) and value.keys() >= {"__type", "__var"}:
        return value["__var"] if value["__type"] in ("dict", "list", "tuple") else value
    return value


def _is_plain(told: Mapping[str, Any]) -> bool:
    """Whether all of it can be read here, and nothing is a template."""
    text = msgspec.json.encode(told, enc_hook=str).decode()
    is_text = isinstance(told.get("checkpoint_location"), str)
    return is_text and "{{" not in text and "{%" not in text

"""Which pipelines Airflow has: read from the serialized DAGs, and from one setting beside them.

A DAG already says where its checkpoint is and which connections lead there, and what a user may do
with a pipeline is what he may do with its DAG. A list in the configuration would be a second truth,
so it holds only what no DAG says in plain words: a location that is a template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RUNS = {"checkpoint_location", "application"}
_RECOVERS = {"checkpoint_location", "allowed_actions"}
"""Fields that tell who runs and who recovers: subclasses keep them, whatever they are called."""
_A_TEMPLATE = "its checkpoint or a connection is a template, which only its task can render"


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
        """What the setting replaces."""
        return self.dag_id, self.task_id


class InADag(msgspec.Struct, frozen=True, kw_only=True):
    """What one DAG says.

    ``runs`` are its pipelines; ``recovers`` the checkpoints that it recovers; ``hidden`` the tasks
    whose fields cannot be read, each with why.
    """

    runs: tuple[Named, ...] = ()
    recovers: tuple[str, ...] = ()
    hidden: Mapping[str, str] = msgspec.field(default_factory=dict)


def in_a_dag(dag_id: str, data: Mapping[str, Any]) -> InADag:
    """Read a serialized DAG; pure, and cheap: nothing is deserialized."""
    runs, recovers, hidden = [], [], {}
    for task in _tasks(data):
        fields = set(task.get("template_fields", ()))
        location = task.get("checkpoint_location")
        if fields >= _RUNS:
            told = _told(task)
            if not isinstance(location, str) or _has_template(told):
                hidden[task["task_id"]] = _A_TEMPLATE
                continue
            named = {"dag_id": dag_id, "task_id": task["task_id"], **told}
            try:
                runs.append(msgspec.convert(named, Named))
            except msgspec.ValidationError as error:  # one odd DAG is no matter of the others
                hidden[task["task_id"]] = f"its arguments cannot work ({error})"
        elif fields >= _RECOVERS and isinstance(location, str):
            recovers.append(location)
    return InADag(
        runs=tuple(runs),
        recovers=tuple(dict.fromkeys(recovers)),
        hidden=hidden,
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
    named = {each.key: each for dag in dags.values() for each in dag.runs}
    named |= {each.key: each for each in setting}
    recovering = {location: dag_id for dag_id, dag in dags.items() for location in dag.recovers}
    return tuple(
        each
        if each.recovery_dag_id
        else msgspec.structs.replace(each, recovery_dag_id=recovering.get(each.checkpoint_location))
        for each in named.values()
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


def _told(task: Mapping[str, Any]) -> dict[str, Any]:
    names = ("checkpoint_location", "kafka_config_id", "storage_conn_id", "participant_conn_ids")
    return {name: _plain(task[name]) for name in names if task.get(name) is not None}


def _plain(value: Any) -> Any:
    """Without the wrapping that some versions of Airflow give to dictionaries."""
    if isinstance(value, dict) and value.keys() >= {"__type", "__var"}:
        return value["__var"]
    return value


def _has_template(told: Mapping[str, Any]) -> bool:
    text = msgspec.json.encode(told).decode()
    return "{{" in text or "{%" in text

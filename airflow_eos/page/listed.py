"""Which pipelines the page shows, as whoever starts it says so."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Reach:
    """How to get to a checkpoint and to who takes part in its decisions; may hold secrets.

    ``kafka`` is None where nothing says how to reach a cluster.
    """

    storage: Mapping[str, str] | None = field(default=None, repr=False)
    kafka: Any = field(default=None, repr=False)
    participants: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One pipeline.

    Attributes:
        name: for people.
        location: of its checkpoint.
        storage: options of the checkpoint's store; called for each look, may raise EosError.
        reach: the same, and how to reach the participants: only for the plan.
        dag_id, task_id: who runs it; None where there is no Airflow.
        recovery_dag_id: who recovers it.
        name_cluster: what whoever looks at the page can do where no Kafka cluster is named.
    """

    name: str
    location: str
    storage: Callable[[], Mapping[str, str] | None]
    reach: Callable[[], Reach]
    dag_id: str | None = None
    task_id: str | None = None
    recovery_dag_id: str | None = None
    name_cluster: str = ""

    @property
    def id(self) -> str:
        """A name for addresses, see :func:`pipeline_id`."""
        return pipeline_id(self.location, self.dag_id, self.task_id)

    def open(self) -> CheckpointStore:
        """The checkpoint (EosError where a connection or a location cannot work)."""
        return CheckpointStore.open(self.location, storage_options=self.storage())


def pipeline_id(location: str, dag_id: str | None = None, task_id: str | None = None) -> str:
    """What an address calls a pipeline: it says nothing of the location, and has no slash in it."""
    told = "\n".join((dag_id or "", task_id or "", location))
    return hashlib.blake2s(told.encode(), digest_size=8).hexdigest()

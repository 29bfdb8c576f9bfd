"""All DAGs of one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from airflow_eos.arguments import require_known
from airflow_eos.factory.recovery import recovery
from airflow_eos.factory.running import running
from airflow_eos.factory.settings import Pipeline
from airflow_eos.factory.watchdog import watchdog

if TYPE_CHECKING:
    from airflow.sdk import DAG


def eos_pipeline(
    pipeline: Pipeline | None = None,
    /,
    *,
    tags: Sequence[str] = ("airflow-eos",),
    notifiers: Sequence[Any] = (),
    **settings: Any,
) -> tuple[DAG, DAG, DAG]:
    """The DAGs that run, recover and watch a pipeline; bind them to a name of the DAG file.

    Args:
        pipeline: its settings; or give them one by one.
        tags: of all DAGs.
        notifiers: told when a recovery waits for a person.
        settings: the fields of :class:`Pipeline`.

    Raises:
        ConfigurationError: a setting that there is none of, or a value that means nothing.
        TypeError: a setting is missing.
    """
    require_known("eos_pipeline", settings, [each.name for each in fields(Pipeline)])
    chosen = pipeline or Pipeline(**settings)
    marks = list(tags)
    return running(chosen, marks), recovery(chosen, marks, notifiers), watchdog(chosen, marks)

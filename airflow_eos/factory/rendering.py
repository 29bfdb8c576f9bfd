"""Settings that are Jinja templates, in tasks of ours: Airflow renders those of operators only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow.sdk import get_current_context

if TYPE_CHECKING:
    from airflow_eos.factory.settings import Pipeline

_FIELDS = (
    "checkpoint",
    "prefix",
    "storage_conn_id",
    "kafka_config_id",
    "input_topic",
    "output_topic",
    "dead_letter_topic",
)


def rendered(pipeline: Pipeline) -> Pipeline:
    """The settings as a task has them; as they are where none of them is a template."""
    found = {name: getattr(pipeline, name) for name in _FIELDS}
    templates = {name: text for name, text in found.items() if text and "{{" in text}
    if not templates:
        return pipeline
    context = get_current_context()
    return replace(pipeline, **context["task"].render_template(templates, context))

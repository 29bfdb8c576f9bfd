"""Settings that are Jinja templates, in tasks of ours: Airflow renders those of operators only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow.sdk import get_current_context

from airflow_eos.arguments import is_template
from airflow_eos.factory.settings import TEMPLATES

if TYPE_CHECKING:
    from airflow_eos.factory.settings import Pipeline


def rendered(pipeline: Pipeline) -> Pipeline:
    """The settings as a task has them; as they are where none of them is a template."""
    found = {name: getattr(pipeline, name) for name in TEMPLATES}
    templates = {name: text for name, text in found.items() if is_template(text)}
    if not templates:
        return pipeline
    context = get_current_context()
    return replace(pipeline, **context["task"].render_template(templates, context))

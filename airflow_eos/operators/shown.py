"""Links and lineage of a streaming task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.lineage.openlineage import BatchLineage
from airflow_eos.links.pipeline import LINKS

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import BaseOperatorLink


class Shown(BatchLineage):
    """For an operator that runs a pipeline, before ``BaseOperator`` among its bases."""

    operator_extra_links: Collection[BaseOperatorLink] = LINKS

"""What the tasks of a batch report to the driver: and none is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.errors import DeliveryError
from airflow_eos.sinks.port import TaskReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def collected(tasks: DataFrame, participants: Collection[str]) -> list[TaskReport]:
    """Run ``tasks``; their reports in the order of the tasks, one for each participant.

    How many there are is Spark's to say: what came cannot tell that the last ones are missing. It
    is asked of the plan that ran, afterwards: where Spark plans as it goes (the width of a
    shuffle) that is settled by then, and nothing is evaluated for the answer.

    Raises:
        DeliveryError: not one report for each task and participant.
    """
    reports = [msgspec.json.decode(bytes(row.report), type=TaskReport) for row in tasks.collect()]
    # DataFrame.rdd is public, and plans a conversion of rows that nobody needs.
    ran = int(tasks._jdf.queryExecution().toRdd().getNumPartitions())  # noqa: SLF001
    came = Counter(report.participant for report in reports)
    if came != Counter(dict.fromkeys(participants, ran)):
        raise DeliveryError(
            f"Spark ran {ran} tasks, and {dict(came)} reported what they wrote; expected one "
            "report each. Nothing was decided; the batch runs again."
        )
    return sorted(reports, key=lambda report: report.task)

"""What the tasks of a batch report to the driver: and none is missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from airflow_eos.delivery.port import TaskReport
from airflow_eos.errors import DeliveryError
from airflow_eos.protocol.decision import SPARED, PreparedWork, by_time_left
from airflow_eos.protocol.group import alone
from airflow_eos.protocol.participant import Deciding, Participant

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
    began_ms = time.time_ns() // 1_000_000
    rows = tasks.collect()
    ended_ms = time.time_ns() // 1_000_000
    came_in = [msgspec.json.decode(bytes(row.report), type=TaskReport) for row in rows]
    reports = [by_our_clock(report, began_ms, ended_ms) for report in came_in]
    # DataFrame.rdd is public, and plans a conversion of rows that nobody needs.
    ran = int(tasks._jdf.queryExecution().toRdd().getNumPartitions())  # noqa: SLF001
    came = Counter(report.participant for report in reports)
    if came != Counter(dict.fromkeys(participants, ran)):
        raise DeliveryError(
            f"Spark ran {ran} tasks, and {dict(came)} reported what they wrote; expected one "
            "report each. Nothing was decided; the batch runs again."
        )
    return sorted(reports, key=lambda report: report.task)


def by_our_clock(report: TaskReport, began_ms: int, ended_ms: int) -> TaskReport:
    """The report, its work dated by the clock of this machine and not of the task's.

    The work was opened after the tasks began, and the task reported before they ended: where its
    dates contradict that, its clock is ahead or behind by so much at least, and is put right. Work
    that nothing ends by itself is dated by its own system.
    """
    work = report.work
    if work is None or work.timeout_ms is None:
        return report
    least_ms, most_ms = report.reported_at_ms - ended_ms, work.opened_at_ms - began_ms
    ahead_ms = min(max(0, least_ms), most_ms)
    dated = msgspec.structs.replace(work, opened_at_ms=work.opened_at_ms - ahead_ms)
    return msgspec.structs.replace(report, work=dated)


def works_of(
    batch_id: int, participants: Collection[str], reports: Sequence[TaskReport]
) -> list[PreparedWork]:
    """The open work of all tasks, checked to be the whole batch for each participant."""
    for name in participants:
        check_tasks(batch_id, [report for report in reports if report.participant == name])
    return [report.work for report in reports if report.work]


def check_tasks(batch_id: int, reports: Sequence[TaskReport]) -> None:
    """One result for every task, or the batch is not whole.

    Raises:
        DeliveryError: a task reported twice or not at all.
    """
    tasks = [report.task for report in reports]
    if tasks != list(range(len(tasks))):
        raise DeliveryError(
            f"Batch {batch_id}: results came from tasks {tasks}, expected each of "
            f"0 to {len(tasks) - 1} once. Nothing was decided; the batch runs again."
        )


def require_decidable(participant: Participant, works: Sequence[PreparedWork]) -> None:
    """Refuse to promise work that its system is about to end, or that would show more than its own.

    Raises:
        DeliveryError: nothing was decided.
    """
    for each in alone(participant):
        if hasattr(each, "require_decidable"):
            names = {member.name for member in each.members}
            own = [work for work in works if work.participant in names]
            cast("Deciding", each).require_decidable(own)
    require_time_left(works, time.time_ns() // 1_000_000)


def require_time_left(works: Sequence[PreparedWork], now_ms: int) -> None:
    """Refuse to promise what its system is about to end: others would be settled, and it not.

    Raises:
        DeliveryError: less than a tenth of its timeout is left to some work.
    """
    for work in sorted(works, key=by_time_left):
        if work.timeout_ms is None or work.ends_at_ms is None:
            return
        left_ms = work.ends_at_ms - now_ms
        if left_ms < work.timeout_ms * SPARED:
            raise DeliveryError(
                f"{work.identity} was opened {(now_ms - work.opened_at_ms) / 1000:.1f} s ago, and "
                f"its system ends it after {work.timeout_ms / 1000:.1f} s: too little is left to "
                "promise it. Nothing was decided; the batch runs again, over the same range. Where "
                "batches take that long, raise the timeout (transaction_timeout of KafkaSink) and "
                "make later ones smaller (maxOffsetsPerTrigger)."
            )

"""Watches the app in the worker, or defers to the triggerer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseTrigger

from airflow_eos.supervision.exit_status import Patience
from airflow_eos.supervision.run import Rules
from airflow_eos.supervision.trigger_watch import AppResult, AppWatch
from airflow_eos.triggers.app import AppTrigger

if TYPE_CHECKING:
    from airflow_eos.hooks.spark import SubmitTarget
    from airflow_eos.operators.streaming import StreamingArguments

_POD_OF_ONE_TASK = "AIRFLOW_IS_K8S_EXECUTOR_POD"
"""Set by the KubernetesExecutor in the pods that it makes, each of which ends with its task."""


def rules_of(task: StreamingArguments, target: SubmitTarget) -> Rules:
    """The rules of one try; the task defers unless something speaks against it."""
    stays = _why_it_stays(task, target) if task.deferrable else None
    if stays is not None:
        task.log.warning("Not deferred: %s", stays)
    return Rules(
        strategy=task.restart,
        drain_timeout=task.drain_timeout,
        patience=Patience(task.patience.total_seconds(), task.submit_timeout.total_seconds()),
        cancel=task.cancel,
        hand_over=task.deferrable and stays is None,
        standby=task.standby,
        manager=target.manager,
    )


def _why_it_stays(task: StreamingArguments, target: SubmitTarget) -> str | None:
    if task.standby:
        return "a trigger watches a driver, and this one may stand by for long before it is one"
    if not target.is_cluster and _POD_OF_ONE_TASK in os.environ:
        return "the driver is in this pod, which ends with the task"
    if task.cancel != "leave" and not hasattr(BaseTrigger, "on_kill"):
        return (
            "below Airflow 3.3 nobody tells a trigger that a user has stopped its task, so the app "
            "would go on. Set cancel='leave' to defer all the same"
        )
    return None


def trigger_of(task: StreamingArguments, target: SubmitTarget, outcome: AppResult) -> AppTrigger:
    """Let the triggerer watch the app."""
    watch = AppWatch.of(outcome, checkpoint=task.checkpoint_location, rules=rules_of(task, target))
    return AppTrigger(
        watch=watch.as_dict(),
        storage_conn_id=task.storage_conn_id,
        storage_options=task.storage_options,
        poke_interval=task.poke_interval.total_seconds(),
    )

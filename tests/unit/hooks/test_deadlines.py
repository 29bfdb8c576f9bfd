"""The time that a task may take is counted over its deferrals."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowTaskTimeout
from airflow.sdk import BaseOperator

from airflow_eos.hooks.deadlines import TaskDeadline


def test_a_task_without_a_timeout_has_all_the_time():
    none = TaskDeadline.of(BaseOperator(task_id="a"))
    assert (none.kwargs, none.left) == ({}, None)
    with none.kept():
        pass


def test_the_time_left_goes_along_and_does_not_begin_anew():
    begun = TaskDeadline.of(BaseOperator(task_id="a", execution_timeout=timedelta(seconds=100)))
    resumed = TaskDeadline(**begun.kwargs)
    assert resumed.left is not None
    assert timedelta(seconds=90) < resumed.left <= timedelta(seconds=100)
    assert TaskDeadline(time.time() - 5).left == timedelta(0)


def test_a_resumed_task_ends_at_its_deadline():
    with pytest.raises(AirflowTaskTimeout), TaskDeadline(time.time() + 0.05).kept():
        time.sleep(30)

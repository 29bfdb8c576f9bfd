"""The ``execution_timeout`` of a task that defers: Airflow counts none of it while that waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


@dataclass(frozen=True, slots=True)
class TaskDeadline:
    """When the time of a task ends, in seconds since the epoch; None: it has no timeout.

    It goes along with each deferral, as ``kwargs``, to the process that the task resumes in.
    """

    until_s: float | None = None

    @classmethod
    def of(cls, task: BaseOperator) -> TaskDeadline:
        """Return the deadline of a task that begins now."""
        allowed = task.execution_timeout
        return cls() if allowed is None else cls(time.time() + allowed.total_seconds())

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments with which the task is to be resumed, beside the event."""
        return {} if self.until_s is None else {"until_s": self.until_s}

    @property
    def left(self) -> timedelta | None:
        """The time left, at least 0; None: there is no end."""
        if self.until_s is None:
            return None
        return timedelta(seconds=max(0.0, self.until_s - time.time()))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """End the block by ``AirflowTaskTimeout`` at the deadline; Airflow would count anew."""
        left = self.left
        if left is None:
            yield
            return
        if not left:  # a timer of no time may come after the block has ended
            raise AirflowTaskTimeout("The task's execution_timeout has ended, deferrals counted.")
        from airflow.sdk.execution_time.timeout import timeout

        with timeout(left.total_seconds()):  # type: ignore[no-untyped-call]
            yield

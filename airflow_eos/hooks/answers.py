"""Asks Airflow's own server from a task or a trigger: what got no answer is asked again.

The API server is restarted, rolled and moved while apps run for weeks. Airflow's client gives a
question up after some seconds, and tells a connection that it could not ask for as one that nobody
has defined. An outage ends no look here: the question is asked again, as long as the task may run.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

if TYPE_CHECKING:
    from airflow.sdk import Connection

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""The pauses before a question is asked again; the last one for every further time."""
AT_MOST_S = 600.0
"""How long a question is asked where the task has no timeout of its own; then its error counts."""
_RUNNER = "airflow.sdk.execution_time.task_runner"


def answered(question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return Airflow's answer to a question, which is asked until there is one.

    The task's own timeout ends it sooner; whatever is an answer, also a refusal, is raised.

    Args:
        question: asks Airflow; asked twice it must do no more than asked once.
    """
    asked = _Asked()
    while True:
        try:
            return question(*args, **kwargs)
        except Exception as error:
            comms = asked.probes(error)
            pause_s = asked.pause_s(error, silent=_is_silent(comms) if comms else None)
            if pause_s is None:
                raise
        time.sleep(pause_s)


async def aanswered(question: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return :func:`answered` inside a trigger, whose event loop may not be blocked."""
    asked = _Asked()
    while True:
        try:
            return await question(*args, **kwargs)
        except Exception as error:
            comms = asked.probes(error)
            pause_s = asked.pause_s(error, silent=await _ais_silent(comms) if comms else None)
            if pause_s is None:
                raise
        await asyncio.sleep(pause_s)


def is_unanswered(error: BaseException) -> bool:
    """Whether Airflow's server gave no answer: it was not reached, or failed by itself (5xx)."""
    if not isinstance(error, AirflowRuntimeError):
        return False
    if error.error.error is not ErrorType.API_SERVER_ERROR:
        return False
    status = (error.error.detail or {}).get("status_code")
    return status is None or status >= 500


class AnsweredHook(BaseHook):
    """A hook whose connections are asked for until Airflow answers."""

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Return the connection (AirflowNotFoundException: Airflow says that there is none)."""
        return answered(super().get_connection, conn_id)

    @classmethod
    async def aget_connection(cls, conn_id: str) -> Connection:
        """Return :meth:`get_connection` inside a trigger."""
        return await aanswered(super().aget_connection, conn_id)


class _Asked:
    """One question that is asked again and again.

    Airflow's client takes a server that is away for one that knows of no such thing. Which of the
    two it was, another question shows: one that any server answers.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + AT_MOST_S
        self._pauses = chain(PAUSES_S, repeat(PAUSES_S[-1]))
        self._was_there = False

    def probes(self, error: Exception) -> Any:
        """Return what to probe the server through; None where the error itself tells."""
        if isinstance(error, AirflowRuntimeError):
            is_unsure = error.error.error is ErrorType.VARIABLE_NOT_FOUND
        else:
            is_unsure = isinstance(error, AirflowNotFoundException)
        return _comms() if is_unsure else None

    def pause_s(self, error: Exception, *, silent: bool | None) -> float | None:
        """Return how long to wait before the question is asked again; None: the error counts.

        Args:
            silent: whether the server was found to be away; None: it was not probed.
        """
        if silent is False and not self._was_there:
            self._was_there = True  # it may have come back since it was asked
            return 0.0
        if not (silent or is_unanswered(error)) or time.monotonic() >= self._until:
            return None
        log.warning("Airflow did not answer; asking again: %s", error)
        return next(self._pauses)


def _comms() -> Any:
    """Return what a task or trigger asks Airflow's server through; None: this process is none."""
    return getattr(sys.modules.get(_RUNNER), "SUPERVISOR_COMMS", None)


def _is_silent(comms: Any) -> bool:
    try:
        comms.send(_probe())
    except Exception as error:  # noqa: BLE001 - any other error is an answer
        return is_unanswered(error)
    return False


async def _ais_silent(comms: Any) -> bool:
    try:
        await comms.asend(_probe())
    except Exception as error:  # noqa: BLE001 - as above
        return is_unanswered(error)
    return False


def _probe() -> Any:
    from airflow.sdk.execution_time.comms import GetDRCount

    return GetDRCount(dag_id="airflow_eos")

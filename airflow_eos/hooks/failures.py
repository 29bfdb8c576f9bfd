"""Which failures another try cannot heal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.errors import NO_RETRY_HEALS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_eos.supervision.exit_status import ExitStatus


@contextmanager
def no_retry_where_useless() -> Iterator[None]:
    """Fail the task at once where only a person can change the answer.

    Everything else (a broker that is away, a pipeline that is still alive, an app that failed)
    is left to the task's own ``retries``.
    """
    try:
        yield
    except NO_RETRY_HEALS as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error


@contextmanager
def no_retry_of_what_was_drained(how: ExitStatus | None) -> Iterator[None]:
    """Fail the task for good where a person has drained its app, whatever fails behind that.

    A retry cannot be told from a person who clears the task to start the app, so it would start it.

    Args:
        how: how the app ended; None where it has not.
    """
    from airflow_eos.supervision.exit_status import ExitKind

    try:
        yield
    except Exception as error:
        if how is None or how.end is not ExitKind.DRAINED:
            raise
        raise AirflowFailException(
            f"The app was drained ({how.found}), and a retry would start it again. What failed "
            f"behind it is {type(error).__name__}: {error}. Look whether something is left open "
            "(airflow-eos plan), or clear the task, which recovers that and starts the app."
        ) from error

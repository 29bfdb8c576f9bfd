"""Which failures another try cannot heal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.errors import NO_RETRY_HEALS

if TYPE_CHECKING:
    from collections.abc import Iterator


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

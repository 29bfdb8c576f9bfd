"""The newest batch once more, in a copy of Spark's log and into nothing, before its turn comes.

Where the state has another form than this app's, Spark refuses it here, while the other driver goes
on. And what a first batch takes its time for is done: classes are loaded and compiled, sources are
opened, Python workers have seen the app's functions.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint.backend import COMMITS, METADATA, OFFSETS, SOURCES
from airflow_eos.checkpoint.terms import newest_planned
from airflow_eos.delivery.causes import cause_of
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from airflow_eos.checkpoint import CheckpointStore

log = structlog.get_logger(__name__)

_WITHIN_S = 120
_FOLDERS = "airflow-eos-standby-"
_OF_SOURCES = 20
"""Files of a source's own log that are copied; a source of files has many, and is not evaluated."""
_STATE, _OF_THE_STATE = "state", "STATE_STORE_"
_SCHEMAS = ("_metadata", "_stateSchema")


def warm_up(
    store: CheckpointStore,
    rows: DataFrame,
    *,
    output_mode: str,
    evaluate: Callable[[DataFrame], object] | None,
) -> None:
    """Plan the newest batch as a start would, and let ``evaluate`` read and compute its rows.

    Args:
        store: the checkpoint; nothing is written to it.
        rows: the streaming query's, as they go to its sink.
        output_mode: Spark's.
        evaluate: delivers nothing; None where the query keeps state: that is not copied.

    Raises:
        ConfigurationError: the state in the checkpoint has another form than the query's.
    """
    newest = newest_planned(store)
    if newest is None:
        return
    planned = is_whole = False

    def into_nothing(batch: DataFrame, _batch_id: int) -> None:
        nonlocal planned
        planned = True
        if evaluate is not None and is_whole:
            evaluate(batch)

    # Spark may still be at its files for a moment when it has ended.
    with tempfile.TemporaryDirectory(prefix=_FOLDERS, ignore_cleanup_errors=True) as folder:
        is_whole = _copied(store, newest, Path(folder))
        try:
            query = (
                rows.writeStream.outputMode(output_mode)
                .foreachBatch(into_nothing)
                .option("checkpointLocation", f"file://{folder}")
                .trigger(once=True)
                .start()
            )
            try:
                query.awaitTermination(_WITHIN_S)
            finally:
                query.stop()
        except Exception as error:  # whatever Spark says, the start itself says it again
            cause = cause_of(error)
            of_the_state = cause.kind.startswith(_OF_THE_STATE)  # else the copy may lack something
            if not planned and of_the_state and cause.restart_heals is False:
                raise ConfigurationError(
                    f"This app cannot follow the one that runs on {store.location}: {cause}. That "
                    "one goes on."
                ) from error
            log.warning("standby_is_not_warm", batch=newest, why=str(cause))


def _copied(store: CheckpointStore, newest: int, folder: Path) -> bool:
    """Spark's log up to ``newest``, as if that was not complete; whether its sources are whole."""
    names = [f"{OFFSETS}/{newest}"]
    if newest:
        names += [f"{OFFSETS}/{newest - 1}", f"{COMMITS}/{newest - 1}"]
    of_sources = [
        entry.path
        for source in store.folders(SOURCES)
        for entry in store.list(f"{SOURCES}/{source}")
    ]
    is_whole = len(of_sources) <= _OF_SOURCES
    for name in [*names, *(of_sources if is_whole else ()), *_schemas(store)]:
        content = store.get(name)
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    # An id of its own: two queries of one id do not run in one JVM.
    (folder / METADATA).write_text(f'{{"id":"{uuid.uuid4()}"}}', encoding="utf-8")
    return is_whole


def _schemas(store: CheckpointStore) -> Iterator[str]:
    """What says of which form the state is: of each operator, and of the first of its parts."""
    for operator in store.folders(_STATE):
        first = f"{_STATE}/{operator}/0"
        stores = [f"{first}/{name}" for name in store.folders(first) if name not in _SCHEMAS]
        for parent in (f"{_STATE}/{operator}", first, *stores):
            for name in _SCHEMAS:
                yield from store.below(f"{parent}/{name}")

"""A checkpoint whose guarantee is changed: what is refused, and how a former driver is stopped.

Of the batch in flight a *mark* (:mod:`.spent`) says that some of it may be visible, a COMMIT
decision that some of it may be, or will be. Where both stand, the mark is that of a driver that was
superseded and wrote nothing: whoever decides has looked for marks after it took its term, and
whoever marks looks for newer terms after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint import DecisionLog, OffsetLog, read_state, take_term
from airflow_eos.checkpoint.decisions import sealed
from airflow_eos.checkpoint.pipeline import read_pipeline
from airflow_eos.errors import OwnershipError
from airflow_eos.protocol.promise import Promise
from airflow_eos.sinks.port import PROGRESS
from airflow_eos.sinks.replay import promise_in_flight
from airflow_eos.sinks.spent import is_spent

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore, Tenure


def require_nothing_promised(store: CheckpointStore) -> None:
    """Refuse to write at once what a decision has promised: it would come twice for good.

    Some of the promise may be visible by now, and the rest can be committed by any later recovery.

    Raises:
        OwnershipError: the batch in flight was promised with exactly_once.
    """
    if promise_in_flight(store):
        raise OwnershipError(
            f"{store.location}: the batch in flight was promised with exactly_once, and some of it "
            "may be visible or may be committed yet; at_least_once would write it again. Start "
            "once more with exactly_once (availableNow will do) until that batch is over, and "
            "change the guarantee then; or take a new checkpoint location."
        )


def require_no_group(store: CheckpointStore) -> None:
    """Refuse to write behind a consumer group that says how far the pipeline is.

    Only decisions move it on. Where the pipeline was drained it says that too, and a start from the
    group without the checkpoint would read again what was written since.

    Raises:
        OwnershipError: the pipeline of the checkpoint has a consumer group.
    """
    pipeline = read_pipeline(store)
    for each in pipeline.participants if pipeline is not None else ():
        if each.name == PROGRESS:
            raise OwnershipError(
                f"{store.location} belongs to a pipeline whose progress {each} shows, which only "
                "exactly_once moves on: a start from the group would read again what "
                "at_least_once writes meanwhile. Take a new checkpoint location for at_least_once, "
                "or go on with exactly_once."
            )


def require_not_spent(store: CheckpointStore) -> None:
    """Refuse to deliver exactly once what may be visible in part.

    Raises:
        OwnershipError: the batch in flight was begun with another guarantee.
    """
    if is_spent(store) and not promise_in_flight(store):
        raise OwnershipError(
            f"{store.location}: the batch in flight was begun with at_most_once or at_least_once, "
            "and some of its rows may be visible; exactly_once would write them again. Start once "
            "more with the guarantee that it had (availableNow will do) until that batch is over, "
            "and change it then; or take a new checkpoint location."
        )


def require_never_exact(store: CheckpointStore) -> None:
    """Refuse a checkpoint whose batch in flight may have been delivered exactly once.

    Not where that batch was begun with another guarantee, and never promised: exactly_once refuses
    it, and somebody must be able to end it.

    Raises:
        OwnershipError: a driver with decisions has run on it.
    """
    if read_pipeline(store) is None or (is_spent(store) and not promise_in_flight(store)):
        return
    raise OwnershipError(
        f"{store.location} belongs to a pipeline that delivers exactly once: the batch in flight "
        "may be promised, and would come twice. Take a new checkpoint location for at_most_once, "
        "or go on with exactly_once."
    )


def take_turn(store: CheckpointStore, *, driver: str) -> Tenure:
    """Become the newest driver, and take the attempt that a sleeping one may be about to decide.

    The term stops it from showing anything; but a promise that it left behind would be settled by
    the next driver with decisions, long after the rows were written here.

    Where it has decided before, nothing is taken: whoever starts looks for that afterwards.
    """
    tenure = take_term(store, taken_by=driver)
    OffsetLog(store, DecisionLog(store)).repair()
    batch = read_state(store).in_flight if read_pipeline(store) is not None else None
    log = DecisionLog(store)
    while batch is not None:
        decided = log.of_batch(batch)
        if Promise.of(decided) is not None or log.record(
            sealed(
                batch,
                len(decided) + 1,
                reason="sealed by a driver of another guarantee",
                decided_by=driver,
                term=tenure.term.number,
            )
        ):
            break
    return tenure

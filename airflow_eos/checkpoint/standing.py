"""Whether a checkpoint still is the newest of its name: held against the systems that remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.mending import newest_known
from airflow_eos.checkpoint.paths import COMMITS
from airflow_eos.checkpoint.rulings import said_of
from airflow_eos.errors import OwnershipError
from airflow_eos.protocol.promise import Promise

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.participant import Participant


def require_owner(store: CheckpointStore, participant: Participant) -> None:
    """Refuse a name of another checkpoint, and an older copy of this one.

    Asked again where the pipeline has gone on meanwhile: what was noted may be pruned by then.

    Raises:
        OwnershipError: See :meth:`~airflow_eos.protocol.participant.Participant.require_owner`.
    """
    log = DecisionLog(store)
    while True:
        planned = newest_known(store, log)
        promises = [Promise.of(log.of_batch(batch)) for batch in _settled(store, planned)]
        settled = [(each, said_of(store, each)) for each in promises if each is not None]
        try:
            participant.require_owner(
                store.location, newest_planned=planned, decisions_of=log.of_batch
            )
            for promise, said in settled:
                participant.require_settled(promise, said)
        except OwnershipError:
            if newest_known(store, log) == planned:
                raise
        else:
            return


def _settled(store: CheckpointStore, planned: int | None) -> list[int]:
    """The batch before the newest one, and the newest one where Spark has completed it.

    A run that ended in order leaves it so, and nobody would ask about it again.
    """
    if planned is None:
        return []
    newest = [planned] if store.head(f"{COMMITS}/{planned}") is not None else []
    return [planned - 1, *newest] if planned else newest

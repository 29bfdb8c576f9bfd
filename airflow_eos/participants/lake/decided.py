"""Which decision names a piece of work: the checkpoint says so, the work itself does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.backend import DECISIONS
from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.pipeline import Pipeline, read_pipeline
from airflow_eos.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision, WorkIdentity

_NEWEST = 2
"""Batches that are looked through: a batch is settled before the next one is decided."""


def pipeline_of(store: CheckpointStore) -> Pipeline:
    """The pipeline, by whose random id a new checkpoint under an old name reads no old witnesses.

    Raises:
        StoreError: the checkpoint does not know a pipeline.
    """
    pipeline = read_pipeline(store)
    if pipeline is None or not pipeline.id:
        raise StoreError(
            f"{store.location} holds no eos/pipeline.json with an id, and work that it names "
            "cannot be settled without. Restore it from a copy of the checkpoint."
        )
    return pipeline


def decisions_naming(
    store: CheckpointStore, works: Collection[WorkIdentity]
) -> dict[WorkIdentity, Decision]:
    """The decision that names each of ``works``, of the newest batches that were decided.

    Work that is missing in it was never decided, or is of a batch that was over long ago.
    """
    if not works:
        return {}
    wanted = set(works)
    found: dict[WorkIdentity, Decision] = {}
    batches = sorted((int(n) for n in store.folders(DECISIONS) if n.isdecimal()), reverse=True)
    for batch in batches[:_NEWEST]:
        if found.keys() == wanted:
            break
        for decision in DecisionLog(store).of_batch(batch):
            found |= {w.identity: decision for w in decision.works if w.identity in wanted}
    return found

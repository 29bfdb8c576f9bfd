"""``eos/pipeline.json``: which pipeline a checkpoint belongs to, written once and for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_eos.checkpoint.codec import Stored, decode, encode
from airflow_eos.checkpoint.paths import PIPELINE
from airflow_eos.errors import OwnershipError, StoreError

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore


class Pipeline(Stored, frozen=True, kw_only=True):
    """Owner of a checkpoint. ``sink`` is such as ``kafka:<topic>``; times in ms since the epoch."""

    transactional_id_prefix: str
    cluster_id: str
    sink: str
    created_at_ms: int
    created_by: str


def read_pipeline(store: CheckpointStore) -> Pipeline | None:
    """The owner, or None where no driver of ours has ever run on this checkpoint.

    Raises:
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    data = store.get(PIPELINE)
    return None if data is None else decode(data, Pipeline, f"{store.location}/{PIPELINE}")


def claim(store: CheckpointStore, pipeline: Pipeline) -> Pipeline:
    """Make ``pipeline`` the owner if there is none; returns the owner that stands there.

    A topic may change under the same prefix and cluster: then the first owner is returned as it
    is. Another prefix would strand the transactions of the former one; another cluster would have
    none of the promised rows.

    Raises:
        OwnershipError: the checkpoint belongs to another prefix or another Kafka cluster.
        CheckpointFormatError: the object cannot be read as a pipeline.
    """
    owner = read_pipeline(store)
    if owner is None:
        store.create(PIPELINE, encode(pipeline))
        owner = read_pipeline(store)
    if owner is None:
        raise StoreError(f"{store.location}/{PIPELINE} was written and is gone: who deletes it?")
    for what, theirs, ours in (
        (
            "transactional id prefix",
            owner.transactional_id_prefix,
            pipeline.transactional_id_prefix,
        ),
        ("Kafka cluster id", owner.cluster_id, pipeline.cluster_id),
    ):
        if theirs != ours:
            raise OwnershipError(
                f"Checkpoint {store.location} belongs to the {what} {theirs!r} (written by "
                f"{owner.created_by} for {owner.sink}), but this query uses {ours!r}. Use "
                f"{theirs!r}, or a new checkpoint location for a new pipeline."
            )
    return owner

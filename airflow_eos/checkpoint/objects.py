"""Our own objects of a checkpoint, read as what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_eos.protocol.codec import Stored, decode

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.codec import Upgrades

T = TypeVar("T", bound=Stored)


def read(
    store: CheckpointStore, path: str, kind: type[T], *, upgrades: Upgrades | None = None
) -> T | None:
    """The object at ``path``, or None where there is none.

    Raises:
        CheckpointFormatError: it cannot be read as a ``kind``.
        StoreError: the store did not answer.
    """
    data = store.get(path)
    if data is None:
        return None
    return decode(data, kind, f"{store.location}/{path}", upgrades=upgrades)

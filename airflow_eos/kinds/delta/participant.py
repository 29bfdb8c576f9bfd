"""A Delta table as a participant: data files first, one commit of its log later."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.delta.log import DeltaLog, opened, refuse
from airflow_eos.kinds.lake.participant import APPLICATION, LakeParticipant, checkpoint_of

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.participant import Member

KIND = "delta"
SPARED_MS = 7 * 24 * 3600 * 1000
"""VACUUM's default: how old a file that the log does not name must be to be removed."""


def made(folder: Path, *, name: str, application: str, store: CheckpointStore) -> LakeParticipant:
    """The participant of a sink that starts.

    Raises:
        ConfigurationError: deltalake is missing, or the table has what we cannot write.
        StoreError: there is no table, or it cannot be read.
    """
    require_library()
    table = opened(folder)
    refuse(folder, table)
    return _participant(folder, str(table.metadata().id), name, application, store)


def connect(
    member: Member, _how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> LakeParticipant:
    """Reach the table of ``member``; nothing but the checkpoint is needed for it.

    Raises:
        ConfigurationError: the address is none of a table, deltalake is missing, or no checkpoint.
        StoreError: the table is not there, or is another one.
    """
    del timeout_s
    require_library()
    folder, table_id = member.address.get("table"), member.address.get("id")
    application = member.address.get(APPLICATION)
    if folder is None or table_id is None or application is None:
        raise ConfigurationError(f"{member} has no table: eos/pipeline.json is not of Delta.")
    kept = checkpoint_of(member, store)
    participant = _participant(Path(folder), table_id, member.name, application, kept)
    DeltaLog(Path(folder), table_id).look()
    return participant


def require_library() -> None:
    """Refuse to go on without delta-rs (ConfigurationError)."""
    if find_spec("deltalake") is None:
        raise ConfigurationError(
            "The delta sink needs the package deltalake on the driver and wherever recovery runs: "
            "pip install 'airflow-provider-eos[delta]'."
        )


def _participant(
    folder: Path, table_id: str, name: str, application: str, store: CheckpointStore
) -> LakeParticipant:
    return LakeParticipant(
        DeltaLog(folder, table_id),
        kind=KIND,
        name=name,
        application=application,
        store=store,
        spared_ms=SPARED_MS,
    )

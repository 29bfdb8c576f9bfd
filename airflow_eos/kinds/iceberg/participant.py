"""An Iceberg table as a participant: data files first, one snapshot with its witness later.

The witness is a property of the table, since snapshots expire; the snapshot's summary has it too,
since a property can be unset. What was lost is an empty snapshot with the other number: a property
alone would not stop who looked before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.iceberg.log import IcebergLog, location, opened, refuse
from airflow_eos.kinds.lake.participant import APPLICATION, LakeParticipant, checkpoint_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.participant import Member

KIND = "iceberg"
SPARED_MS = 3 * 24 * 3600 * 1000
"""The default of ``remove_orphan_files``: how old a file that no snapshot names must be."""


class IcebergParticipant(LakeParticipant):
    """A table, and the catalog that was reached for it."""

    def __init__(self, catalog: Catalog, table: IcebergLog, **given: Any) -> None:
        super().__init__(table, kind=KIND, spared_ms=SPARED_MS, **given)
        self._catalog = catalog

    def close(self) -> None:
        """Let go of the catalog's connections."""
        self._catalog.close()


def made(
    catalog: Catalog, identifier: str, *, name: str, application: str, store: CheckpointStore
) -> IcebergParticipant:
    """The participant of a sink that starts.

    Raises:
        ConfigurationError: the table has what we cannot write, or is not on a disk.
        StoreError: there is no table, or it cannot be read.
    """
    table = opened(catalog, identifier)
    refuse(identifier, table)
    folder = location(identifier, table)
    log = IcebergLog(catalog, identifier, str(table.metadata.table_uuid), folder)
    return IcebergParticipant(catalog, log, name=name, application=application, store=store)


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> IcebergParticipant:
    """Reach the table of ``member`` through its catalog.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: the catalog's properties, as pyiceberg's ``load_catalog`` takes them.
        timeout_s: not used: a catalog has timeouts of its own.
        store: the pipeline's checkpoint.

    Raises:
        ConfigurationError: the address is none of a table, pyiceberg is missing, or no catalog.
        StoreError: the table is not there, or is another one.
    """
    del timeout_s
    at = member.address
    if not {"catalog", "table", "id", "location", APPLICATION} <= at.keys():
        raise ConfigurationError(f"{member} has no table: eos/pipeline.json is not of Iceberg.")
    if not isinstance(how, Mapping):
        raise ConfigurationError(
            f"{member} is reached through its catalog: give the catalog's properties as "
            "pyiceberg takes them, such as {'type': 'sql', 'uri': …, 'warehouse': …}."
        )
    kept = checkpoint_of(member, store)
    catalog = reached(at["catalog"], how)
    log = IcebergLog(catalog, at["table"], at["id"], Path(at["location"]))
    log.look()
    return IcebergParticipant(
        catalog, log, name=member.name, application=at[APPLICATION], store=kept
    )


def reached(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog ``name``.

    Raises:
        ConfigurationError: pyiceberg is missing, or does not know such a catalog.
        StoreError: it cannot be reached; what it said is not repeated, it may hold a password.
    """
    require_library()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    try:
        return load_catalog(name, **properties)
    except (NotInstalledError, ValueError) as error:
        raise ConfigurationError(
            f"The Iceberg catalog {name!r} cannot be used ({type(error).__name__}). Given were "
            f"the properties {', '.join(sorted(properties)) or 'none'}; expected those of "
            "pyiceberg, with the extra that its type needs."
        ) from None
    except Exception as error:  # noqa: BLE001 - its cause may hold a password
        raise StoreError(
            f"The Iceberg catalog {name!r} was not reached ({type(error).__name__}). Check its "
            "properties and that it runs. Nothing was guessed; try again."
        ) from None


def require_library() -> None:
    """Refuse to go on without pyiceberg (ConfigurationError)."""
    if find_spec("pyiceberg") is None:
        raise ConfigurationError(
            "The iceberg sink needs the package pyiceberg on the driver and wherever recovery "
            "runs: pip install 'airflow-provider-eos[iceberg]'."
        )

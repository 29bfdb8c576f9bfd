"""An Iceberg table as a participant: a decision adds data files and a witness as one snapshot.

The witness is a property of the table, since snapshots expire; the snapshot's summary has it too,
since a property can be unset. A lost decision is an empty snapshot with the other number: a
property alone would not stop a writer that looked before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.checkpoint.data_folder import at_once
from airflow_eos.core.checkpoint.locations import (
    HDFS,
    LOCAL,
    as_local_path,
    located,
    prefix_of,
    sync,
)
from airflow_eos.core.checkpoint.pipeline import checkpoint_of
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.iceberg.evolution import (
    LAST,
    changing,
    conflict,
    evolve,
    evolved,
    staged,
    without_snapshots,
)
from airflow_eos.kinds.iceberg.merge import (
    Overwriting,
    lacking,
    renamed,
    staged_snapshot,
    waiting_rows,
    why_not,
)
from airflow_eos.kinds.iceberg.partitions import (
    ORDER,
    of_any_year,
    record_of,
    require_transforms,
    spec_of,
)
from airflow_eos.kinds.lake import participant as lake
from airflow_eos.kinds.lake.files import table_files
from airflow_eos.kinds.lake.participant import (
    APPLICATION,
    UPSERT,
    DataFile,
    LakeParticipant,
    LostRaceError,
    TableSnapshot,
    name_of,
)
from airflow_eos.kinds.lake.upsert import LakeUpsert, Rewriting, changes_of, replace

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType, NestedField

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.participant import Member

# --- log ------------------------------------------------------------------------------------------
# An Iceberg table on a disk or in a bucket: read its snapshots, and add one on top of the newest.
#
# A commit asserts the snapshot that was looked at, or that there is none, and fails where another
# was added since. The library would then try again on the newer snapshot, without a look at the
# witness, and two processes would both add the same files: its retries are off.


_ID = b"PARQUET:field_id"
MAIN = "main"


def misfit(rows: pa.Schema, table: pa.Schema) -> str | None:
    """See :func:`airflow_eos.kinds.lake.participant.misfit`."""
    ours, theirs = (
        {field.name: (field.nullable, field.type) for field in each} for each in (rows, table)
    )
    return lake.misfit(ours, theirs, plain=plain, within=_within, rule="it is required")


def _within(kind: pa.DataType) -> list[tuple[bool, pa.DataType]]:
    """Return nullability and type of each child of a struct or a list.

    A map has none here: a sink refuses columns with maps before.
    """
    import pyarrow as pa

    fields: list[pa.Field] = []
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        fields = [kind.value_field]
    return [(field.nullable, field.type) for field in fields]


def plain(kind: pa.DataType) -> str:
    """Return a type as text, without inner nullability, zone names and the width of offsets."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = (kind.field(at) for at in range(kind.num_fields))
        return f"struct<{', '.join(f'{each.name}: {plain(each.type)}' for each in fields)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{plain(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return f"timestamp[{kind.unit}{', UTC' if kind.tz is not None else ''}]"
    return str(kind).removeprefix("large_")


def with_ids(rows: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Return columns that fit (see :func:`misfit`), with the table's ids at any depth."""
    import pyarrow as pa

    return pa.schema([_numbered(field, table.field(field.name)) for field in rows])


def numbered(columns: pa.Schema, upsert: LakeUpsert | None) -> pa.Schema:
    """Return the columns that have an id: of rows that wait, one may only tell of deletes."""
    import pyarrow as pa

    key = () if upsert is None else upsert.key
    return pa.schema(
        [
            field.with_nullable(field.nullable and field.name not in key)
            for field in columns
            if _ID in (field.metadata or {})
        ]
    )


def _numbered(ours: pa.Field, theirs: pa.Field) -> pa.Field:
    import pyarrow as pa

    kind, other = ours.type, theirs.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(field, other.field(field.name)) for field in kind.fields])
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, other.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_numbered(kind.value_field, other.value_field))
    elif pa.types.is_map(kind):
        key, item = _numbered(kind.key_field, other.key_field), kind.item_field
        kind = pa.map_(key, _numbered(item, other.item_field))
    return pa.field(ours.name, kind, ours.nullable, {_ID: theirs.metadata[_ID]})


def drifted(file: Schema, table: Schema) -> str | None:
    """Return why a file's columns, by their ids, no longer fit the table; None where they do.

    A column that was renamed, moved, widened or dropped since is no reason: readers treat this
    file as they treat all older ones.
    """
    return _drifted(file.fields, table.fields, "")


def _drifted(file: Sequence[NestedField], table: Sequence[NestedField], within: str) -> str | None:
    ours, theirs = ({field.field_id: field for field in each} for each in (file, table))
    made_again = {field.name for key, field in theirs.items() if key not in ours}
    for key, field in ours.items():
        if key not in theirs and field.name in made_again:
            return f"column {within}{field.name} was dropped and made again, as another column"
    for field in table:
        name, mine = f"{within}{field.name}", ours.get(field.field_id)
        if field.required and (mine is None or not mine.required):
            return f"column {name} may be null or missing, and the table says it is required"
        why = None if mine is None else _kind_drifted(mine.field_type, field.field_type, name)
        if why is not None:
            return why
    return None


def _kind_drifted(mine: IcebergType, theirs: IcebergType, name: str) -> str | None:
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import ListType, MapType, StructType

    if type(mine) is type(theirs) and isinstance(mine, StructType | ListType | MapType):
        return _drifted(_parts(mine), _parts(theirs), f"{name}.")
    try:
        if mine != theirs:
            promote(mine, theirs)
    except ResolveError:
        return f"column {name} is {mine}, and {theirs} in the table"
    return None


def _parts(kind: Any) -> Sequence[NestedField]:
    from pyiceberg.types import ListType, StructType

    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return kind.key_field, kind.value_field


# --- opening a table ------------------------------------------------------------------------------
# Open an Iceberg table, and refuse a table that we cannot write.


def loaded_table(catalog: Catalog, identifier: str) -> Table:
    """Load the table as it is now (StoreError: it is not there, or cannot be read)."""
    with asked(identifier):
        return catalog.load_table(identifier)


def location(table: Table) -> str:
    """Return the folder of the table: a path or URL."""
    return str(located(table.location()))


# pyiceberg's names (https://py.iceberg.apache.org/configuration/#fileio), and obstore's.
_STORE_OPTIONS = {
    "s3.endpoint": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "client.region": "aws_region",
    "client.access-key-id": "aws_access_key_id",
    "client.secret-access-key": "aws_secret_access_key",
    "client.session-token": "aws_session_token",
    "gcs.oauth2.token": "google_bearer_token",
    "gcs.service.host": "google_base_url",
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_key",
    "adls.tenant-id": "azure_storage_tenant_id",
    "adls.client-id": "azure_storage_client_id",
    "adls.client-secret": "azure_storage_client_secret",
}


_ENDPOINTS = ("aws_endpoint", "google_base_url", "azure_endpoint")


def store_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Return how a bucket is reached by properties of pyiceberg, credentials included.

    What they leave out the environment decides, as for a checkpoint.
    """
    found: dict[str, str] = {}
    for key, option in _STORE_OPTIONS.items():
        if given.get(key):
            found.setdefault(option, str(given[key]))
    if authority := given.get("adls.blob-storage-authority"):  # of an emulator
        scheme, account = given.get("adls.blob-storage-scheme", "https"), given["adls.account-name"]
        found["azure_endpoint"] = f"{scheme}://{authority}/{account}"
    if any(found.get(name, "").startswith("http://") for name in _ENDPOINTS):
        found["allow_http"] = "true"
    return found


def reach_of(table: Table) -> dict[str, str]:
    """Return how the store of the table is reached: a catalog may know the keys of several."""
    found, scheme = store_options(table.io.properties), located(table.location()).scheme
    of_store = () if scheme in {LOCAL, HDFS} else ("allow_http", prefix_of(scheme))
    return {key: value for key, value in found.items() if key.startswith(of_store)}


def vends(catalog: Catalog, table: Table) -> bool:
    """Tell whether the bucket is reached by keys that came with the table: they expire."""
    return store_options(table.io.properties) != store_options(catalog.properties)


def refuse(identifier: str, table: Table, branch: str = MAIN) -> None:
    """Refuse a table that this package or pyiceberg cannot write (ConfigurationError)."""
    from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION

    if table.format_version > SUPPORTED_TABLE_FORMAT_VERSION:
        # The library reads such a table: only the commit of a decision would fail, each time.
        raise ConfigurationError(
            f"The Iceberg table {identifier} has format version {table.format_version}, and this "
            f"pyiceberg writes {SUPPORTED_TABLE_FORMAT_VERSION} at most: take one that can, or "
            "deliver into another table. Nothing was dropped."
        )
    require_transforms(identifier, table.spec())
    ref = table.refs().get(branch)
    if ref is not None and ref.snapshot_ref_type != "branch":
        raise ConfigurationError(
            f"{branch!r} is a {ref.snapshot_ref_type} of the Iceberg table {identifier}, which "
            "never changes: deliver into a branch. Nothing was dropped."
        )


def require_fit(
    catalog: Catalog,
    identifier: str,
    rows: Any,
    bound: Any = None,
    *,
    adds: bool = False,
    upsert: LakeUpsert | None = None,
    branch: str = MAIN,
) -> None:
    """Refuse rows that do not fit the table's columns, before they are promised.

    Args:
        catalog: the open catalog.
        identifier: of the table.
        rows: the rows' Arrow schema.
        bound: the table's metadata at the start, with the ids by which tasks write.
        adds: whether columns that the table lacks are added, and types widened.
        upsert: of rows that replace others.
        branch: that is written.

    Raises:
        ConfigurationError: the rows have other columns or types, or cannot be written to the table.
        StoreError: columns of the table were made anew, and have other ids than in ``bound``.
    """
    found = loaded_table(catalog, identifier)
    refuse(identifier, found)
    if upsert is not None:
        why = why_not(head_of(found.metadata, branch))
        if why is not None:
            raise ConfigurationError(
                f"Rows of the Iceberg table {identifier} cannot be replaced: {why}."
            )
        rows = waiting_rows(rows, found.metadata.schema(), upsert)
    table = columns_for(identifier, found.metadata, rows, adds=adds)
    before = table if bound is None else columns_for(identifier, bound, rows, adds=adds)
    if not with_ids(rows, table).equals(with_ids(rows, before), check_metadata=True):
        raise StoreError(
            f"Columns of the Iceberg table {identifier} were made anew since this query started, "
            "and rows are written by the ids of before. Nothing is promised of this batch.",
            Remedy(start=True),
        )


def columns_for(
    identifier: str, metadata: TableMetadata, rows: pa.Schema, *, adds: bool
) -> pa.Schema:
    """Return the table's columns, with their ids, that these rows are written under.

    Raises:
        ConfigurationError: the rows do not fit; with both schemas.
    """
    table = metadata.schema()
    try:
        whole = (evolved(metadata, rows) if adds else table).as_arrow()
        why = misfit(rows, whole)
    except ValueError as error:
        why = brief(error)
    if why is None:
        return whole
    offered = "" if adds else " Or let columns be added: schema_evolution='add'."
    ours = ", ".join(f"{field.name} {plain(field.type)}" for field in rows)
    theirs = ", ".join(f"{field.name} {field.field_type}" for field in table.fields)
    raise ConfigurationError(
        f"Rows cannot be appended to the Iceberg table {identifier}: {why}. The rows have {ours}; "
        f"the table has {theirs}. Select and cast the columns that the table has.{offered}"
    )


def head_of(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """Return the newest snapshot of a branch; one that is not there begins with main's."""
    return metadata.snapshot_by_name(branch) or metadata.current_snapshot()


@contextlib.contextmanager
def asked(identifier: str) -> Iterator[None]:
    """Translate any error of catalog and disk into StoreError: it is never read as an answer."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        yield
    except NoSuchTableError as error:
        raise StoreError(
            f"The catalog has no Iceberg table {identifier}. Create it before the pipeline "
            "starts. Nothing was concluded from what is not there."
        ) from error
    except StoreError:
        raise
    except Exception as error:
        if "libhdfs" in str(error) or "libjvm" in str(error):
            raise ConfigurationError(
                f"The Iceberg table {identifier} is on HDFS, which pyiceberg reaches by Hadoop's "
                f"libhdfs and a JVM, and they were not loaded: {brief(error)}. Nothing was read.",
                Remedy(change="set JAVA_HOME, HADOOP_HOME and CLASSPATH (hadoop classpath --glob)"),
                Remedy(change="deliver into a Delta table on HDFS, which needs none of them"),
            ) from error
        raise StoreError(
            f"The Iceberg table {identifier} cannot be read: {type(error).__name__}: "
            f"{brief(error)}. Nothing was guessed; try again."
        ) from error


def brief(error: Exception) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().partition("\n")[0]


# --- snapshots ------------------------------------------------------------------------------------
# What snapshots of an Iceberg table still hold: a second witness, and the names of former files.


def summaries(table: Table, key: str) -> Iterator[str]:
    """Yield the value of ``key`` in the summary of each snapshot that has not expired."""
    for snapshot in table.metadata.snapshots:
        found = snapshot.summary[key] if snapshot.summary is not None else None
        if found is not None:
            yield str(found)


def named(table: Table, files: Collection[str]) -> set[str]:
    """Return those of the files that any snapshot names: readers, or the table, can go back to it.

    All snapshots are read, since the times of files and snapshots may be of two machines.
    """
    by_name = {name_of(path): path for path in files}
    found: set[str] = set()
    for manifest in _manifests(table) if by_name else ():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        names = {name_of(entry.data_file.file_path) for entry in entries}
        found |= {by_name[name] for name in names & by_name.keys()}
    return found


def _manifests(table: Table) -> Iterator[ManifestFile]:
    """Yield the manifests of all snapshots, each once: most are shared."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest


# --- log ------------------------------------------------------------------------------------------


_SLOT = "eos."
DATA = "data/"
_RETRIES = "commit.retry.num-retries"
_MERGES = "commit.manifest-merge.enabled"
_METRICS = "write.metadata.metrics."
_SYNCED_AT_MOST = 100
_FOOTERS_AT_MOST = 5000


@dataclasses.dataclass
class SeenByLooks:
    """What looks at a table share.

    Attributes:
        footers: of promised files.
        witnesses: the number last told of each slot, by a table with all its snapshots or by ours.
        doing: what an upsert has rewritten, of one decision into one form of the table.
        synced: the newest manifests, which this process has made durable.
    """

    footers: dict[str, pq.FileMetaData] = dataclasses.field(default_factory=dict)
    witnesses: dict[str, int] = dataclasses.field(default_factory=dict)
    doing: dict[str, Rewriting] = dataclasses.field(default_factory=dict)
    synced: set[str] = dataclasses.field(default_factory=set)


class IcebergLog:
    """See :class:`airflow_eos.kinds.lake.participant.LakeTable`.

    Args:
        catalog: the open catalog.
        identifier: ``namespace.table``.
        table_id: the table's uuid; a table with another uuid is refused.
        folder: the table's location, a path or URL.
        storage_options: how its bucket is reached.
        branch: that is written; readers of the table see ``main``.
        whole: opens the catalog so that tables come with all their snapshots; None: so they do.
    """

    data = DATA

    def __init__(
        self,
        catalog: Catalog,
        identifier: str,
        table_id: str,
        folder: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        branch: str = MAIN,
        whole: Callable[[], Catalog] | None = None,
    ) -> None:
        self._catalog = catalog
        self._whole = whole
        self._branch = branch
        self._identifier = identifier
        self._table_id = table_id
        self._folder = folder
        self._options = storage_options
        self._seen = SeenByLooks()
        self.files = table_files(folder, storage_options)

    @property
    def address(self) -> dict[str, str]:
        """The table's name in its catalog, its id, and its location."""
        return {
            "catalog": self._catalog.name,
            "table": self._identifier,
            "id": self._table_id,
            "location": self._folder,
            **({} if self._branch == MAIN else {"branch": self._branch}),
        }

    def look(self) -> IcebergSnapshot:
        """See :meth:`LakeTable.look`: load the table that the catalog has now."""
        table = loaded_table(self._catalog, self._identifier)
        self._require_ours(table)
        options = reach_of(table)
        if options != self._options:  # a catalog has vended new keys
            self.files, self._options = table_files(self._folder, options), options
        self.files.require("")
        refuse(self._identifier, table, self._branch)
        history = None if self._whole is None else self._with_history
        return IcebergSnapshot(self._identifier, table, self._seen, self._branch, history)

    def _with_history(self) -> tuple[Table, Table]:
        """Load the table with all its snapshots, and after it as it is looked at and written."""
        assert self._whole is not None  # noqa: S101 - who calls has looked
        with contextlib.closing(self._whole()) as catalog:
            history = loaded_table(catalog, self._identifier)
        table = loaded_table(self._catalog, self._identifier)
        for each in (history, table):
            self._require_ours(each)
        return history, table

    def _require_ours(self, table: Table) -> None:
        found = str(table.metadata.table_uuid)
        if found != self._table_id:
            raise StoreError(
                f"{self._identifier} is not the table of this pipeline: its id is {found}, "
                f"expected {self._table_id}. Was it made anew? Nothing was concluded from it."
            )


class IcebergSnapshot:
    """See :class:`airflow_eos.kinds.lake.participant.TableSnapshot`."""

    def __init__(
        self,
        identifier: str,
        table: Table,
        seen: SeenByLooks | None = None,
        branch: str = MAIN,
        history: Callable[[], tuple[Table, Table]] | None = None,
    ) -> None:
        self._identifier = identifier
        self._branch = branch
        self._table = self._history = table
        self._seen = SeenByLooks() if seen is None else seen
        self._load = history
        self._files = table_files(location(table), reach_of(table))

    def witness(self, slot: str) -> int | None:
        """Return the witness from the table's property, which outlives its snapshot.

        Where somebody has unset or lowered the property, the snapshot's summary still has it. All
        snapshots are read where the property is less than it was, and once in each process.
        """
        found = self._told(slot)
        known = self._seen.witnesses.get(slot)
        if found is None or known is None or found < known:
            self._load_history()
            found = self._told(slot)
        self._seen.witnesses[slot] = -1 if found is None else found
        return found

    def _load_history(self) -> None:
        """Look again, also at the former snapshots."""
        if self._load is not None:
            (self._history, self._table), self._load = self._load(), None

    def _told(self, slot: str) -> int | None:
        kept = self._table.metadata.properties.get(_SLOT + slot)
        told = [*summaries(self._history, _SLOT + slot), *([] if kept is None else [kept])]
        for found in told:
            if not found.isdecimal():
                raise StoreError(
                    f"{self._identifier}: the property {_SLOT + slot} is {found!r}, expected a "
                    "number. Who changed it? Put it back; nothing was concluded from it."
                )
        return max(map(int, told), default=None)

    def names(self, files: Collection[str]) -> frozenset[str]:
        """Return those of the files that the current snapshot of the branch reads."""
        head = self._head
        if head is None:
            return frozenset()
        with asked(self._identifier):
            scan = self._table.scan(snapshot_id=head.snapshot_id)
            planned = {name_of(task.file.file_path) for task in scan.plan_files()}
        return frozenset(path for path in files if name_of(path) in planned)

    def still_names(self, files: Collection[str]) -> frozenset[str]:
        """Return those of the files that a snapshot which has not expired names."""
        self._load_history()
        with asked(self._identifier):
            return self.names(files) | named(self._history, files)

    def check(self, files: Sequence[DataFile]) -> None:
        """Refuse files whose own columns do not fit the table's, compared by their ids."""
        change, upsert = staged(self._table.metadata), LakeUpsert.of(files)
        for columns in self._columns(files):
            why = _evolving(change, columns) or drifted(columns, change.table_metadata.schema())
            if upsert is not None:
                why = why or why_not(self._head) or _keyless(upsert, columns, change)
            if why is not None:
                raise ConfigurationError(
                    f"The table {self._identifier} was changed since rows were promised to it: "
                    f"{why}. Nothing was dropped, and nothing is visible yet.",
                    Remedy(change="put its columns back as they were", start=True),
                    Remedy(
                        change="where they cannot be put back, rename the column that was made "
                        "again, so that the table has none of that name",
                        start=True,
                        costs="the promised values of that column are not seen",
                    ),
                )

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> IcebergSnapshot:
        """Commit one snapshot, empty where there are no files, together with the property.

        Where the property is missing, as before the first commit, the table is asked whether it
        names these files: snapshots expire, and a property can be unset by hand.
        """
        if _SLOT + slot not in self._table.metadata.properties:
            self._require_new(files, _SLOT + slot, number)
        witness = {_SLOT + slot: str(number)}
        if LakeUpsert.of(files) is None:
            self._commit(files, witness, properties=witness)
        else:
            self._replace(files, f"{slot}/{number}", witness)
        return IcebergSnapshot(self._identifier, self._table, self._seen, self._branch, self._load)

    def _require_new(self, files: Sequence[DataFile], key: str, number: int) -> None:
        there = self.names([file.path for file in files])
        if there:
            raise StoreError(
                f"The Iceberg table {self._identifier} has {len(there)} of {len(files)} files that "
                f"are to be added ({name_of(min(there))}), and no property {key} that says so: it "
                f"was unset by hand. Nothing was added twice. Set it to {number}, then try again."
            )

    def append_at_once(self, files: Sequence[DataFile]) -> None:
        """Add files without a witness: at least once."""
        if LakeUpsert.of(files) is None:
            self._commit(files, {}, properties={})
        else:
            self._replace(files, "", {})

    def _replace(self, files: Sequence[DataFile], decision: str, witness: dict[str, str]) -> None:
        def commit(added: list[DataFile], removed: list[FileScanTask]) -> None:
            gone = [task.file for task in removed]
            self._commit(added, witness, properties=witness, removed=gone, of=files)

        replace(
            partial(self._rewritten, files, decision),
            commit,
            files=self._files,
            doing=self._seen.doing,
            table=self._identifier,
            back="Roll the table back to the snapshot before.",
        )

    def _rewritten(
        self, files: Sequence[DataFile], decision: str
    ) -> tuple[list[DataFile], list[FileScanTask]]:
        import pyarrow as pa

        upsert, columns = LakeUpsert.of(files), self._columns(files)
        assert upsert is not None  # noqa: S101 - who calls has looked
        change = staged(self._table.metadata)
        for each in columns:
            evolve(change, each)
        metadata, compression = change.table_metadata, files[0].table[UPSERT]["compression"]
        look = Overwriting(self._table, self._head, metadata, self._files, DATA, compression)
        # What was written stands only for a table of the same columns, partitions and order.
        schema = metadata.schema()
        decision = f"{decision} {schema!r} {metadata.spec()} {metadata.sort_order()}"
        doing = self._seen.doing.get(decision)
        try:
            if doing is None:
                names = renamed(columns, schema)
                rows = changes_of(
                    self._files, files, upsert.renamed(names), schema.as_arrow(), names
                )
                doing = Rewriting(rows)
                self._seen.doing.clear()
                self._seen.doing[decision] = doing
            return look.rewritten(doing)
        except pa.ArrowException as error:
            raise StoreError(
                f"A file of the Iceberg table {self._identifier} cannot be read: {error}. Nothing "
                "was changed; restore it, and try again."
            ) from error

    def make_durable(self) -> None:
        """Sync the metadata and the newest manifests, which the library does not."""
        if self._files.disk is None:
            return
        with asked(self._identifier):
            snapshot = self._head
            if snapshot is not None:
                manifests = snapshot.manifests(self._table.io)
                newest = sorted(manifests, key=lambda each: each.sequence_number, reverse=True)
                paths = {each.manifest_path for each in newest[:_SYNCED_AT_MOST]}
                for path in paths - self._seen.synced:  # a manifest never changes
                    _sync(path)
                self._seen.synced = paths
                _sync(snapshot.manifest_list)
            _sync(self._table.metadata_location)
            _sync(str(Path(self._table.metadata_location).parent))

    @property
    def snapshot_address(self) -> dict[str, Any]:
        """See :attr:`TableSnapshot.place`."""
        snapshot = self._head
        return {} if snapshot is None else {"snapshot": snapshot.snapshot_id}

    def _commit(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        *,
        properties: Mapping[str, str],
        removed: Sequence[IcebergFile] = (),
        of: Sequence[DataFile] = (),
    ) -> None:
        """Commit files, and what they are ``of`` where their rows waited in others."""
        from pyiceberg.table.update import AssertCurrentSchemaId

        try:
            added = at_once(self._described, files)
            self._prepare_copy()
            change = changing(self._table)
            schema: dict[str, Any] = {"current-schema-id": self._table.metadata.current_schema_id}
            checked = AssertCurrentSchemaId.model_validate(schema)
            change._requirements += (checked,)  # noqa: SLF001 - a schema is changed by no snapshot
            for columns in self._columns(of or files):
                evolve(change, columns)
            self._branch_off(change)
            for spec in sorted({file.spec_id for file in added}) or [self._spec]:
                theirs = [file for file in added if file.spec_id == spec]
                self._stage(change, theirs, spec, summary, removed)
            if properties:
                change.set_properties(dict(properties))
            # The library removes the manifests of a commit that was refused with 409. That may be
            # the answer to the second of two requests, of which the first was done: then they are
            # the table's. What a lost race leaves, remove_orphan_files takes away.
            change._snapshot_producers = []  # noqa: SLF001
            change.commit_transaction()
        except LostRaceError:
            raise
        except Exception as error:  # whatever a catalog raises, the next look tells the outcome
            raise LostRaceError(f"{type(error).__name__}: {brief(error)}") from error

    def _stage(
        self,
        change: Transaction,
        files: Sequence[IcebergFile],
        spec: int,
        summary: Mapping[str, str],
        removed: Sequence[IcebergFile],
    ) -> None:
        """Stage a snapshot with files that were written by one spec, which need not be the newest.

        The library writes manifests by the default spec.
        """
        self._change_copy(default_spec_id=spec)
        with staged_snapshot(change, self._branch, summary, replaces=bool(removed)) as snapshot:
            for file in files:
                snapshot.append_data_file(file)
            for file in removed:
                snapshot.delete_data_file(file)

    def _prepare_copy(self) -> None:
        """Change this copy of the metadata for the commit; the table gets only what is staged.

        The library's own retries are off. It copies the whole metadata at each step, so all but
        the snapshots that refs name go: else a commit costs more with each that was before.
        """
        metadata = self._table.metadata
        named = {each.snapshot_id for each in metadata.refs.values()}
        self._table.metadata = without_snapshots(metadata, but=named)
        merges = metadata.properties.get(_MERGES, "true")  # the library's own default is false
        self._change_copy(
            properties=metadata.properties | {_RETRIES: "0", _MERGES: merges},
            partition_specs=[of_any_year(each) for each in metadata.partition_specs],
        )

    def _change_copy(self, **changes: Any) -> None:
        self._table.metadata = self._table.metadata.model_copy(update=changes)

    @property
    def _head(self) -> Snapshot | None:
        return head_of(self._table.metadata, self._branch)

    def _branch_off(self, change: Transaction) -> None:
        """Stage the branch where it is not there, as after it was published and dropped.

        The library alone would begin it without the rows that main has.
        """
        from pyiceberg.table.update.snapshot import ManageSnapshots

        if self._branch in {MAIN, *self._table.metadata.refs}:
            return
        if self._head is None:  # the library writes to main first, if only nothing
            with staged_snapshot(change, MAIN, {}, replaces=False):
                pass
        head = self._head or change.table_metadata.current_snapshot()
        assert head is not None  # noqa: S101 - staged above
        with ManageSnapshots(change) as refs:
            refs.create_branch(head.snapshot_id, self._branch)

    @property
    def _spec(self) -> int:
        return self._table.metadata.default_spec_id

    def knows(self, files: Sequence[DataFile]) -> bool:
        """Whether the table still knows the spec of these files, and has room for their columns."""
        metadata = self._table.metadata
        evolving = [file for file in files if LAST in file.table]
        placed = [file for file in files if UPSERT not in file.table]
        return all(spec_of(metadata, file.table) is not None for file in placed) and not any(
            conflict(metadata, columns, file.table[LAST])
            for file in evolving
            for columns in self._columns([file])
        )

    def _columns(self, files: Sequence[DataFile]) -> list[Schema]:
        """Return the columns of files, with their ids; each once."""
        footers = at_once(self._footer, files)
        upsert = LakeUpsert.of(files)
        arrow = [numbered(footer.schema.to_arrow_schema(), upsert) for footer in footers]
        found: list[Schema] = []
        for each in map(_in_iceberg, arrow):
            if each not in found:
                found.append(each)
        return found

    def _footer(self, file: DataFile) -> pq.FileMetaData:
        """Return a file's own description, which this process reads once."""
        import pyarrow.parquet as pq

        footers = self._seen.footers
        if file.path not in footers:
            if len(footers) > _FOOTERS_AT_MOST:
                footers.clear()
            try:
                with self._files.open(file.path) as data:
                    footers[file.path] = pq.read_metadata(data)
            except FileNotFoundError as error:
                raise LostRaceError(f"{file.path} is gone") from error
        return footers[file.path]

    def _described(self, file: DataFile) -> IcebergFile:
        """Return a file's entry for a manifest, with bounds of columns by the file's own ids.

        The library computes bounds in Python, which holds no year beyond 9999, and cuts some texts
        into ones that no reader can decode. Such files are promised, so they go without bounds,
        which only help readers to skip a file.
        """
        footer = self._footer(file)
        try:
            return _described(footer, file, self._table, self._table.metadata.properties)
        except (ArithmeticError, ValueError):
            return _described(footer, file, self._table, {f"{_METRICS}default": "counts"})


def _in_iceberg(columns: pa.Schema) -> Schema:
    """Return the columns of a file; most files of a decision have the same, ids and all."""
    return _translated(columns.serialize().to_pybytes())


@lru_cache(maxsize=64)
def _translated(columns: bytes) -> Schema:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    return pyarrow_to_schema(pa.ipc.read_schema(pa.py_buffer(columns)))


def _described(
    written: pq.FileMetaData, file: DataFile, table: Table, properties: Mapping[str, str]
) -> IcebergFile:
    """Return a file's entry, by the spec and the order that its task knew."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile as Described
    from pyiceberg.manifest import DataFileContent, FileFormat

    spec = spec_of(table.metadata, file.table)
    if spec is None:
        raise LostRaceError(f"the table has forgotten the partitions of {file.name}")
    columns = _in_iceberg(written.schema.to_arrow_schema())
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=written,
        stats_columns=compute_statistics_plan(columns, dict(properties)),
        parquet_column_mapping=parquet_path_to_id_mapping(columns),
    )
    told = Described.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location().rstrip('/')}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=record_of(spec, table.schema(), file.partition.values),
        file_size_in_bytes=file.size,
        sort_order_id=file.table.get(ORDER),
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    told.spec_id = spec.spec_id
    return told


def _evolving(change: Transaction, columns: Schema) -> str | None:
    """Stage the new columns of a file; return why the table cannot have them."""
    from pyiceberg.exceptions import ValidationError

    try:
        evolve(change, columns)
    except (ValueError, ValidationError) as error:
        return brief(error)
    return None


def _keyless(upsert: LakeUpsert, columns: Schema, change: Transaction) -> str | None:
    """Return why rows have no key in the table as it is by now."""
    lost = lacking(upsert.key, columns, change.table_metadata.schema())
    return f"it has no column {', '.join(lost)}, of the key of an upsert" if lost else None


def _sync(uri: str) -> None:
    path = as_local_path(uri)
    if path is not None:
        with contextlib.suppress(FileNotFoundError):  # cleaned: a newer one stands for it
            sync(path)


# --- participant ----------------------------------------------------------------------------------


KIND = "iceberg"
SPARED_MS = 3 * 24 * 3600 * 1000
"""The least age, in ms, of a file that ``remove_orphan_files`` removes by default."""


class IcebergParticipant(LakeParticipant):
    """See :class:`LakeParticipant`; it also owns the connection to the table's catalog."""

    kind = KIND
    spared_ms = SPARED_MS

    def __init__(self, catalog: Catalog, table: IcebergLog, **given: Any) -> None:
        super().__init__(table, **given)
        self._catalog = catalog

    def _takes(self, view: TableSnapshot, files: Sequence[DataFile]) -> bool:
        """Whether the table still knows the spec of the files; else they are written again."""
        assert isinstance(view, IcebergSnapshot)  # noqa: S101 - of our own log
        return view.knows(files)

    def close(self) -> None:
        """Close the catalog's connections."""
        self._catalog.close()


def made(
    catalog_name: str,
    properties: Mapping[str, str],
    identifier: str,
    *,
    name: str,
    application: str,
    store: CheckpointStore,
    branch: str = MAIN,
) -> IcebergParticipant:
    """Make the participant of a sink that starts.

    Raises:
        ConfigurationError: the table has a feature that we cannot write, or is not on a disk.
        StoreError: there is no table, or it cannot be read.
    """
    catalog = reached(catalog_name, properties)
    table = loaded_table(catalog, identifier)
    refuse(identifier, table, branch)
    options = reach_of(table)
    uuid = str(table.metadata.table_uuid)
    whole = partial(reached, catalog_name, properties, whole=True)
    log = IcebergLog(
        catalog, identifier, uuid, location(table), options, branch=branch, whole=whole
    )
    return IcebergParticipant(catalog, log, name=name, application=application, store=store)


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> IcebergParticipant:
    """Connect to the table of ``member`` through its catalog.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: the catalog's properties, as pyiceberg's ``load_catalog`` takes them.
        timeout_s: not used: a catalog has timeouts of its own.
        store: the pipeline's checkpoint.

    Raises:
        ConfigurationError: the address is not a table's, pyiceberg is missing, or no catalog given.
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
    options = reach_of(loaded_table(catalog, at["table"]))
    branch = at.get("branch", MAIN)
    whole = partial(reached, at["catalog"], how, whole=True)
    log = IcebergLog(
        catalog, at["table"], at["id"], at["location"], options, branch=branch, whole=whole
    )
    log.look()
    return IcebergParticipant(
        catalog, log, name=member.name, application=at[APPLICATION], store=kept
    )


def kept(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return the open catalog of this process, which all its looks share; see :func:`reached`."""
    return _kept(name, tuple(sorted(properties.items())))


@lru_cache(maxsize=16)
def _kept(name: str, properties: tuple[tuple[str, str], ...]) -> Catalog:
    return reached(name, dict(properties))


def reached(name: str, properties: Mapping[str, str], *, whole: bool = False) -> Catalog:
    """Open the catalog ``name``.

    Args:
        name: of the catalog.
        properties: as pyiceberg takes them.
        whole: whether its tables come with all their snapshots, not only those that refs name.

    Raises:
        ConfigurationError: pyiceberg is missing, or does not know such a catalog.
        StoreError: it cannot be reached; its error is not quoted, since it may hold a password.
    """
    lake.require_package("iceberg", "pyiceberg")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    from airflow_eos.kinds.iceberg.history import leave_out

    try:
        catalog = load_catalog(name, **properties)
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
    if not whole:
        leave_out(catalog)
    return catalog

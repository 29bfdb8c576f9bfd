"""A Delta table as a participant: a decision adds data files and a witness by one commit."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from airflow_eos.core.checkpoint.data_folder import at_once
from airflow_eos.core.checkpoint.hdfs import hadoop_settings
from airflow_eos.core.checkpoint.locations import HDFS, located, printable
from airflow_eos.core.checkpoint.pipeline import checkpoint_of
from airflow_eos.core.failpoints import failpoint
from airflow_eos.errors import ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.delta.columns import NO_PARTITION, DeltaPartitions, indexed, statistics
from airflow_eos.kinds.delta.definition import EVOLVES, add, both, new_columns, without
from airflow_eos.kinds.delta.merge import (
    TableFile,
    removals,
    rewritten,
    waiting_fields,
    why_not,
)
from airflow_eos.kinds.lake import participant as lake
from airflow_eos.kinds.lake.files import table_files
from airflow_eos.kinds.lake.participant import (
    APPLICATION,
    UPSERT,
    DataFile,
    LakeParticipant,
    LostRaceError,
    name_of,
)
from airflow_eos.kinds.lake.upsert import LakeUpsert, Rewriting, changes_of, replace

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    from airflow_eos.core.checkpoint.backend import StoredObject
    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.participant import Member
    from airflow_eos.kinds.lake.files import TableFiles

# --- log ------------------------------------------------------------------------------------------
# A Delta table on a disk or in a bucket: read a snapshot, and commit on top of that snapshot.
#
# delta-rs refuses a commit whose application id is among those of the commits since its snapshot;
# it does not look into the snapshot itself. So witness and commit go by one and the same snapshot.
# delta-rs does not sync its log files (object_store writes and links them), which is done here.


Fields = Mapping[str, Any]
"""A struct as Spark's ``StructType.jsonValue()`` gives it, or Delta's ``Schema.to_json()``."""

_REFUSED_OF_FIELDS = (
    "delta.generationExpression",
    "delta.invariants",
    "delta.identity.",
    "__CHAR_VARCHAR_TYPE_STRING",  # Spark's char(n) and varchar(n): only writers check the length
)


def misfit(rows: Fields, table: Fields) -> str | None:
    """See :func:`airflow_eos.kinds.lake.participant.misfit`."""
    ours, theirs = (
        {field["name"]: (field["nullable"], field["type"]) for field in each["fields"]}
        for each in (rows, table)
    )
    return lake.misfit(ours, theirs, plain=_plain, within=_within, rule="NOT NULL")


def _within(kind: Any) -> list[tuple[bool, Any]]:
    """Return nullability and type of each child of a struct, an array or a map."""
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return [(field["nullable"], field["type"]) for field in kind["fields"]]
    if kind["type"] == "array":
        return [(kind["containsNull"], kind["elementType"])]
    return [(False, kind["keyType"]), (kind["valueContainsNull"], kind["valueType"])]


def computed(schema: Fields) -> list[str]:
    """List the columns, at any depth, that a writer of the table has to compute or check."""
    found = []
    for each in schema["fields"]:
        if any(key.startswith(_REFUSED_OF_FIELDS) for key in each["metadata"]):
            found.append(each["name"])
        found += [f"{each['name']}.{name}" for name in _computed_within(each["type"])]
    return found


def _computed_within(kind: Any) -> list[str]:
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return computed(kind)
    inner = [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    return [name for each in inner for name in _computed_within(each)]


def _plain(kind: Any) -> Any:
    """Return a type without inner nullability and metadata, which do not change its bytes."""
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    left_out = {"nullable", "containsNull", "valueContainsNull", "metadata"}
    return {key: _plain(value) for key, value in kind.items() if key not in left_out}


# --- features -------------------------------------------------------------------------------------
# The features that a Delta table asks of its writers, and whether the installed library has them.


PARTITIONED_BY = "partitioned_by"
"""What a decision says of the table of its files: the columns that it is partitioned by."""
_LOG = "_delta_log"
_LAST = "_last_checkpoint"
_COLUMN = {"name": "a", "type": "long", "nullable": True, "metadata": {}}


_FOR_GOOD = {
    "catalog-managed table": "is managed by its catalog (catalogManaged), through which alone it "
    "may be committed to, and deltalake cannot",
    "Unsupported: ": "has a feature that deltalake cannot read",
}
"""What the library says where it cannot open a table, and what that means."""


def unwritable(table: DeltaTable) -> str | None:
    """Return why the library cannot commit to a table of this protocol; None: it can.

    The library opens and reads tables that it cannot write, and only refuses the commit: too late,
    since the rows are promised by then.
    """
    found = table.protocol()
    features = (found.reader_features, found.writer_features)
    return _tried(
        found.min_reader_version,
        found.min_writer_version,
        *(None if names is None else tuple(sorted(names)) for names in features),
    )


@lru_cache(maxsize=64)
def _tried(
    reader: int,
    writer: int,
    reader_features: tuple[str, ...] | None,
    writer_features: tuple[str, ...] | None,
) -> str | None:
    """Try an empty commit to an empty table of that protocol: we keep no list of features."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    protocol: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    if reader_features is not None:
        protocol["readerFeatures"] = reader_features
    if writer_features is not None:
        protocol["writerFeatures"] = writer_features
    metadata = {
        "id": "0",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [_COLUMN]}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    with TemporaryDirectory(prefix="airflow-eos-") as folder:
        first = Path(folder) / _LOG / f"{0:020d}.json"
        first.parent.mkdir()
        first.write_text(
            "\n".join(map(json.dumps, [{"protocol": protocol}, {"metaData": metadata}]))
        )
        try:
            table = DeltaTable(folder)
            table.create_write_transaction([], "append", table.schema())
        except DeltaError as error:
            return str(error).strip().partition("\n")[0]
    return None


# --- opening a table ------------------------------------------------------------------------------
# Open a Delta table, and refuse one that this release cannot write exactly once.


_REFUSED = {
    "delta.constraints.": "constraints, which every writer has to check",
    "delta.setTransactionRetentionDuration": "a retention of application versions: it would "
    "forget what was committed",
}
_REFUSED_UNLESS = {
    "delta.columnMapping.mode": "none",
    "delta.enableRowTracking": "false",
    "delta.enableIcebergCompatV1": "false",
    "delta.enableIcebergCompatV2": "false",
}


@dataclass(frozen=True, repr=False)
class DeltaFolder:
    """Where a Delta table is: a path or URL, and how a bucket is reached, as pairs."""

    location: str
    storage_options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, location: str, storage_options: Mapping[str, str] | None) -> DeltaFolder:
        """Return the place of a table, alike for each way to write its location."""
        return cls(str(located(location)), tuple(sorted((storage_options or {}).items())))

    def __str__(self) -> str:
        """Return the location without secrets, as messages name it."""
        return printable(self.location)

    __repr__ = __str__

    @property
    def options(self) -> dict[str, str] | None:
        """How deltalake reaches the table; of HDFS, Hadoop's settings alone.

        Raises:
            ConfigurationError: an option of HDFS that deltalake takes from the environment.
        """
        given = dict(self.storage_options)
        if located(self.location).scheme == HDFS:
            given = hadoop_settings(self.location, given)
        return given or None

    @property
    def files(self) -> TableFiles:
        """The table's files."""
        return table_files(self.location, dict(self.storage_options))


def loaded_table(folder: DeltaFolder) -> DeltaTable:
    """Load the table as it is now (StoreError: it is not there, or cannot be read)."""
    with asked(folder):
        from deltalake import DeltaTable

        return DeltaTable(folder.location, storage_options=folder.options)


def partitions_of(table: DeltaTable) -> DeltaPartitions:
    """Return the columns that the table is partitioned by."""
    import pyarrow as pa

    columns = pa.schema(table.schema().to_arrow())
    by = table.metadata().partition_columns
    return DeltaPartitions(pa.schema([columns.field(name) for name in by]))


def require_fit(
    folder: DeltaFolder, rows: str, upsert: LakeUpsert | None = None, *, evolves: bool = False
) -> None:
    """Refuse rows that do not fit the table's columns as they are now, before they are promised.

    Args:
        folder: of the table.
        rows: the rows' schema, in Spark's JSON.
        upsert: of rows that replace others.
        evolves: whether the table gets columns that it has not.

    Raises:
        ConfigurationError: with the column, and why.
        StoreError: there is no table, or it cannot be read.
    """
    opened = _opened(folder).newest()
    opened.refuse()
    ours, theirs = json.loads(rows), opened.fields
    why = None
    if upsert is not None:
        ours["fields"], why = waiting_fields(ours["fields"], theirs, upsert), why_not(opened.table)
    _opened(folder).give_back(opened)
    new = new_columns(ours, theirs) if evolves else []
    why = why or misfit(without(ours, new), theirs)
    if why is not None:
        raise ConfigurationError(
            f"Rows cannot be delivered into the Delta table {folder}: {why}. Select and cast the "
            f"columns that the table has. {both(ours, theirs)}."
        )


@dataclass
class OpenTable:
    """A table that was opened, at a version.

    Attributes:
        folder: of the table.
        table: as it was read.
        commit: the file of the commit that it was read from; None: the log has it no more.
        witnesses: the witnesses that were read of this version, by slot.
    """

    folder: DeltaFolder
    table: DeltaTable
    commit: StoredObject | None
    witnesses: dict[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: DeltaFolder, table: DeltaTable) -> OpenTable:
        """Return a table that was just read."""
        return cls(folder, table, commit_file(folder, table.version()))

    @cached_property
    def fields(self) -> Fields:
        """The table's columns."""
        found: Fields = json.loads(self.table.schema().to_json())
        return found

    @cached_property
    def trouble(self) -> list[str]:
        """Why we cannot write the table, or why it forgets its witnesses; empty: neither."""
        metadata = self.table.metadata()
        trouble = [
            f"{key} ({why})"
            for key in metadata.configuration
            for prefix, why in _REFUSED.items()
            if key.startswith(prefix)
        ]
        for key, allowed in _REFUSED_UNLESS.items():
            found = metadata.configuration.get(key, allowed)
            if found.lower() != allowed:
                trouble.append(f"{key} = {found}")
        trouble += [
            f"partitions by the {field['type']} {field['name']}"
            for field in self.fields["fields"]
            if field["name"] in metadata.partition_columns and field["type"] in NO_PARTITION
        ]
        trouble += [
            f"the column {name}, which its writer has to compute or check"
            for name in computed(self.fields)
        ]
        with asked(self.folder):
            why = unwritable(self.table)
        return trouble if why is None else [*trouble, f"what deltalake cannot write ({why})"]

    def refuse(self) -> None:
        """Refuse a table that we cannot write, or that forgets its witnesses.

        Raises:
            ConfigurationError: with the property, column or feature.
            StoreError: the library cannot be tried.
        """
        if self.trouble:
            raise ConfigurationError(
                f"The Delta table {self.folder} has {'; '.join(self.trouble)}. This sink writes "
                "plain tables: take it away, or deliver into another table. Nothing was dropped."
            )


def commit_file(folder: DeltaFolder, version: int) -> StoredObject | None:
    """Return the file of a commit; None where the log has none of that version."""
    return folder.files.head(f"{_LOG}/{version:020d}.json")


class OpenTables:
    """Tables that were opened before, of which only the new part of the log is read.

    Each has one holder at a time: it is brought up to date for all that hold it.
    """

    def __init__(self, folder: DeltaFolder) -> None:
        self._folder = folder
        self._idle: list[OpenTable] = []

    def newest(self) -> OpenTable:
        """Return the table as it is now, unread where its next commit is not there.

        It is opened anew where a commit that was read is no longer the same file: the folder has
        another table by now, or its log was put back or cleaned.
        """
        with contextlib.suppress(Exception):  # opening tells what is wrong
            found = self._idle.pop()
            version = found.table.version()
            if found.commit is not None and found.commit == commit_file(self._folder, version):
                if commit_file(self._folder, version + 1) is None:
                    return found
                found.table.update_incremental()
                return OpenTable.of(self._folder, found.table)
        return OpenTable.of(self._folder, loaded_table(self._folder))

    def give_back(self, table: OpenTable) -> None:
        """Keep a table that nobody looks at any more."""
        self._idle.append(table)


@lru_cache(maxsize=64)
def _opened(folder: DeltaFolder) -> OpenTables:
    return OpenTables(folder)


@contextlib.contextmanager
def asked(folder: DeltaFolder) -> Iterator[None]:
    """Translate errors of delta-rs and the disk into StoreError.

    Raises:
        ConfigurationError: the table has a feature that the library does not know: also next time.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        raise StoreError(
            f"{folder} holds no Delta table. Is the disk mounted here? Create the table before "
            "the pipeline starts. Nothing was concluded from what is not there."
        ) from error
    except (DeltaError, OSError) as error:
        if why := next((why for told, why in _FOR_GOOD.items() if told in str(error)), None):
            raise ConfigurationError(
                f"The Delta table {folder} {why} ({error}). Let the engine that gave it the "
                "feature drop it, or deliver into another table. Nothing was dropped."
            ) from error
        raise StoreError(
            f"The Delta table {folder} cannot be read: {error}. Nothing was guessed; try again."
        ) from error


# --- history --------------------------------------------------------------------------------------
# The files that versions of a Delta table have added, as far back as its log goes.


def added_before(folder: TableFiles, files: Collection[str]) -> frozenset[str]:
    """Return the existing files that any commit names: readers can go back to its version.

    The whole log is read, since the times of files and commits may be of two machines. Our file
    names have no character that JSON escapes. A file that is gone is left out: nobody can remove it
    any more.
    """
    paths = list(files)
    there = zip(paths, folder.find(paths), strict=True)
    wanted = {quote(name_of(path)).encode(): path for path, found in there if found is not None}
    found: set[str] = set()
    for commit in folder.names(_LOG) if wanted else ():
        if commit.endswith(".json"):
            with contextlib.suppress(FileNotFoundError):  # cleaned since it was listed
                text = folder.read(f"{_LOG}/{commit}")
                found |= {path for name, path in wanted.items() if name in text}
    return frozenset(found)


# --- log ------------------------------------------------------------------------------------------


_TRIES_AT_ONCE = 20


@dataclass
class Seen:
    """What looks at a table share.

    Attributes:
        footers: of promised files.
        doing: what an upsert has rewritten.
        synced: the version up to which this process has made the log durable.
        checkpoint: the version of the log's checkpoint that it has made durable.
    """

    footers: dict[str, pq.FileMetaData] = field(default_factory=dict)
    doing: dict[str, Rewriting] = field(default_factory=dict)
    synced: int = -1
    checkpoint: int = 0


class DeltaLog:
    """See :class:`airflow_eos.kinds.lake.participant.LakeTable`.

    Args:
        folder: of the table.
        table_id: the id in the table's metadata; a table with another id is refused.
    """

    data = ""

    def __init__(self, folder: DeltaFolder, table_id: str) -> None:
        self.folder = folder
        self.files = folder.files
        self._table_id = table_id
        self._seen = Seen()

    @property
    def address(self) -> dict[str, str]:
        """The table's folder, and its id."""
        return {"table": self.folder.location, "id": self._table_id}

    def look(self) -> DeltaSnapshot:
        """See :meth:`LakeTable.look`: read what the log has since the last look."""
        tables = _opened(self.folder)
        opened = tables.newest()
        found = str(opened.table.metadata().id)
        if found != self._table_id:
            raise StoreError(
                f"{self.folder} is not the table of this pipeline: its id is {found}, expected "
                f"{self._table_id}. Was it made anew? Nothing was concluded from its log."
            )
        opened.refuse()
        view = DeltaSnapshot(opened, self._seen)
        weakref.finalize(view, tables.give_back, opened)
        return view


class DeltaSnapshot:
    """See :class:`airflow_eos.kinds.lake.participant.TableSnapshot`."""

    def __init__(self, opened: OpenTable, seen: Seen) -> None:
        self._opened = opened
        self._folder = opened.folder
        self._files = opened.folder.files
        self._table = opened.table
        self._seen = seen

    def witness(self, slot: str) -> int | None:
        """Return the witness: the version of the application id ``slot``; asked for once."""
        known = self._opened.witnesses
        if slot not in known:
            with asked(self._folder):
                known[slot] = self._table.transaction_version(slot)
        return known[slot]

    def names(self, files: Collection[str]) -> frozenset[str]:
        """Return those of the files that this snapshot reads."""
        with asked(self._folder):
            named = {name_of(unquote(uri)) for uri in self._table.file_uris()}
        return frozenset(path for path in files if name_of(path) in named)

    def still_names(self, files: Collection[str]) -> frozenset[str]:
        """Return those of the files that this or, by the remaining log, a former version names."""
        with asked(self._folder):
            return self.names(files) | added_before(self._files, files)

    def check(self, files: Sequence[DataFile]) -> None:
        """Refuse files whose own columns, and those of their partition, do not fit the table's."""
        at_once(self._footer, files)
        for file in files:
            why = self._misfit(file)
            if why is not None:
                raise ConfigurationError(
                    f"The table {self._folder} was changed since rows were promised to it: {why}. "
                    "Nothing was dropped, and nothing is visible yet.",
                    Remedy(change="put its columns back as they were", start=True),
                )

    def _misfit(self, file: DataFile) -> str | None:
        by = list(self._table.metadata().partition_columns)
        upsert = LakeUpsert.of([file])
        if upsert is not None:
            rows = without(json.loads(self._fields_of(file)), self._new(file))
            rows["fields"] = waiting_fields(rows["fields"], self._opened.fields, upsert)
            return why_not(self._table) or misfit(rows, self._opened.fields)
        if by != file.table.get(PARTITIONED_BY, []):
            return f"it is partitioned by {', '.join(by) or 'no column'}"
        rows = without(json.loads(self._fields_of(file)), self._new(file))
        of_table = {field["name"]: field for field in self._opened.fields["fields"]}
        rows["fields"] += [
            of_table[name] | {"nullable": value is None}
            for name, value in zip(by, file.partition.values, strict=True)
        ]
        return misfit(rows, self._opened.fields)

    def _new(self, file: DataFile) -> list[Mapping[str, Any]]:
        """Return the columns of a file that the table is to get."""
        if not file.table.get(EVOLVES):
            return []
        rows, upsert = json.loads(self._fields_of(file)), LakeUpsert.of([file])
        if upsert is not None:
            rows["fields"] = waiting_fields(rows["fields"], self._opened.fields, upsert)
        return new_columns(rows, self._opened.fields)

    def add_columns(self, files: Sequence[DataFile]) -> bool:
        """Add what the files have and the table has not, in a commit of its own.

        Return whether there was any: then the table is another one than this look has seen.
        """
        new = {field["name"]: field for file in files for field in self._new(file)}
        if new:
            from deltalake.exceptions import DeltaError

            try:
                add(self._table, list(new.values()))
            except (DeltaError, OSError) as error:
                raise LostRaceError(f"{type(error).__name__}: {error}") from error
            failpoint("columns-added")
        return bool(new)

    def _fields_of(self, file: DataFile) -> str:
        from deltalake import Schema

        return Schema.from_arrow(self._footer(file).schema.to_arrow_schema()).to_json()

    def _footer(self, file: DataFile) -> pq.FileMetaData:
        """Read what a file says of itself, once; LostRaceError: it is gone."""
        import pyarrow.parquet as pq

        found = self._seen.footers.get(file.path)
        if found is None:
            try:
                with self._files.open(file.path) as data:
                    found = pq.read_metadata(data)
            except FileNotFoundError as error:
                raise LostRaceError(f"{file.path} is gone") from error
            self._seen.footers[file.path] = found
        return found

    def append(self, files: Sequence[DataFile], slot: str, number: int) -> None:
        """Commit to the log once, with the application id ``slot`` at version ``number``."""
        from deltalake import Transaction

        if self.add_columns(files):
            raise LostRaceError("the table has new columns: it is looked at again")
        witness = [Transaction(slot, number)]
        if LakeUpsert.of(files) is None:
            self._commit(files, (), {"app_transactions": witness})
        else:
            self._replace(files, f"{slot}/{number}", {"app_transactions": witness})

    def append_at_once(self, files: Sequence[DataFile]) -> None:
        """Commit files without a witness: at least once."""
        if LakeUpsert.of(files) is None:
            self._commit(files, (), {})
        else:
            self._replace(files, "", {})

    def _replace(self, files: Sequence[DataFile], decision: str, how: dict[str, Any]) -> None:
        # Not a blind append, else other writers pass over the commit.
        once = {"max_commit_retries": 0, "custom_metadata": {"isBlindAppend": False}}
        replace(
            partial(self._rewritten, files, decision),
            partial(self._commit, how={**how, **once}),
            files=self._files,
            doing=self._seen.doing,
            table=str(self._folder),
            back="Restore the version before.",
        )

    def _rewritten(
        self, files: Sequence[DataFile], decision: str
    ) -> tuple[list[DataFile], list[TableFile]]:
        import pyarrow as pa

        upsert = LakeUpsert.of(files)
        assert upsert is not None  # noqa: S101 - who calls has looked
        cut, compression = partitions_of(self._table), files[0].table[UPSERT]["compression"]
        # What was written stands only for a table of the same columns and partitions.
        decision = f"{decision} by {cut.columns} of {self._table.schema().to_json()}"
        doing = self._seen.doing.get(decision)
        try:
            if doing is None:
                columns = pa.schema(self._table.schema().to_arrow())
                doing = Rewriting(changes_of(self._files, files, upsert, columns))
                self._seen.doing.clear()
                self._seen.doing[decision] = doing
            return rewritten(self._table, self._files, cut, doing, compression)
        except pa.ArrowException as error:
            raise StoreError(
                f"A file of the Delta table {self._folder} cannot be read: {error}. Nothing was "
                "changed; restore it, and try again."
            ) from error

    def make_durable(self) -> None:
        """Sync the log from its newest checkpoint to this version, which its writer may not do.

        A checkpoint was written of commits that were synced, or is newer than this look. A commit
        is synced once: its file never changes.
        """
        if self._files.disk is None:
            return
        seen = self._seen
        newest, checkpoint = self._table.version(), _newest_checkpoint(self._files)
        since = min(max(checkpoint, seen.synced + 1), newest)
        names = [f"{version:020d}.json" for version in range(since, newest + 1)]
        if checkpoint != seen.checkpoint:
            names += [f"{checkpoint:020d}.checkpoint.parquet", _LAST]
        self._files.sync([f"{_LOG}/{name}" for name in names])
        seen.synced, seen.checkpoint = newest, checkpoint

    @property
    def snapshot_address(self) -> dict[str, Any]:
        """See :attr:`TableSnapshot.place`."""
        return {"version": self._table.version()}

    def _commit(
        self,
        files: Sequence[DataFile],
        removed: Sequence[TableFile],
        how: Mapping[str, Any],
    ) -> None:
        from deltalake import CommitProperties
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction

        metadata = self._table.metadata()
        wanted = indexed(self._opened.fields, metadata.configuration)
        adds = [
            AddAction(
                path=file.path,  # which the library escapes
                size=file.size,
                partition_values=dict(
                    zip(metadata.partition_columns, file.partition.values, strict=True)
                ),
                modification_time=file.modified_at_ms,
                data_change=True,
                stats=statistics(self._footer(file), wanted),
            )
            for file in files
        ]
        try:
            self._table.create_write_transaction(
                [*adds, *removals(removed)],
                "append",
                self._table.schema(),
                partition_by=list(metadata.partition_columns),
                commit_properties=CommitProperties(**how),
            )
        except (DeltaError, OSError) as error:
            raise LostRaceError(f"{type(error).__name__}: {error}") from error
        self._seen.footers.clear()


def publish(folder: DeltaFolder, files: Sequence[DataFile]) -> None:
    """Make a task's rows visible at once, among concurrent writes, at least once.

    Raises:
        StoreError: the table does not take them.
    """
    seen, reason, waits = Seen(), LostRaceError(""), UPSERT in files[0].table
    with contextlib.ExitStack() as after:
        if waits:
            after.callback(folder.files.remove, [file.path for file in files])
        for _ in range(_TRIES_AT_ONCE):
            opened = OpenTable.of(folder, loaded_table(folder))
            opened.refuse()
            view = DeltaSnapshot(opened, seen)
            view.check(files)
            try:
                if view.add_columns(files):
                    continue
                return view.append_at_once(files)
            except LostRaceError as error:
                reason = error
                if not waits:  # perhaps it was done: appended again, the rows would be there twice
                    break
    raise StoreError(f"{folder} does not take {files[0].path}: {reason}") from reason


def _newest_checkpoint(files: TableFiles) -> int:
    try:
        found = json.loads(files.read(f"{_LOG}/{_LAST}"))
        return int(found["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


# --- participant ----------------------------------------------------------------------------------


KIND = "delta"
SPARED_MS = 7 * 24 * 3600 * 1000
"""The least age, in ms, of a file that VACUUM removes by default."""


class DeltaParticipant(LakeParticipant):
    """See :class:`LakeParticipant`: a Delta table."""

    kind = KIND
    spared_ms = SPARED_MS


def made(
    folder: DeltaFolder, *, name: str, application: str, store: CheckpointStore
) -> LakeParticipant:
    """Make the participant of a sink that starts.

    Raises:
        ConfigurationError: deltalake is missing, or the table has a feature that we cannot write.
        StoreError: there is no table, or it cannot be read.
    """
    require_library()
    opened = OpenTable.of(folder, loaded_table(folder))
    opened.refuse()
    log = DeltaLog(folder, str(opened.table.metadata().id))
    return DeltaParticipant(log, name=name, application=application, store=store)


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float = 30.0
) -> LakeParticipant:
    """Connect to the table of ``member``.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: the storage options of a bucket; not needed where the environment has them.
        store: the pipeline's checkpoint.
        timeout_s: not used: a store has timeouts of its own.

    Raises:
        ConfigurationError: the address is not a table's, deltalake is missing, or no checkpoint.
        StoreError: the table is not there, or is another one.
    """
    del timeout_s
    require_library()
    folder, table_id = member.address.get("table"), member.address.get("id")
    application = member.address.get(APPLICATION)
    if folder is None or table_id is None or application is None:
        raise ConfigurationError(f"{member} has no table: eos/pipeline.json is not of Delta.")
    kept = checkpoint_of(member, store)
    log = DeltaLog(DeltaFolder.of(folder, how if isinstance(how, Mapping) else None), table_id)
    log.look()
    return DeltaParticipant(log, name=member.name, application=application, store=kept)


def require_library() -> None:
    """Refuse a missing ``deltalake`` package (ConfigurationError)."""
    lake.require_package("delta", "deltalake")

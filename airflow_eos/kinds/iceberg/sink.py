"""The Iceberg sink: a task writes Parquet files, which the decision's commit adds as a snapshot.

The table must be there: in a catalog that pyiceberg knows, on a disk or in a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from airflow_eos.core.arguments import Instance, take_fields
from airflow_eos.core.checkpoint.hdfs import modules_for
from airflow_eos.core.checkpoint.locations import require_outside
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.port import bound_store
from airflow_eos.core.delivery.task import in_arrow, own_columns, quoted
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.iceberg.creation import create
from airflow_eos.kinds.iceberg.evolution import LAST, without_snapshots
from airflow_eos.kinds.iceberg.merge import waiting_rows
from airflow_eos.kinds.iceberg.participant import (
    DATA,
    KIND,
    MAIN,
    SPARED_MS,
    IcebergSnapshot,
    columns_for,
    kept,
    loaded_table,
    location,
    made,
    reach_of,
    reached,
    refuse,
    require_fit,
    vends,
    with_ids,
)
from airflow_eos.kinds.iceberg.partitions import ORDER, SPEC, IcebergOrder, IcebergPartitioning
from airflow_eos.kinds.lake.files import table_files
from airflow_eos.kinds.lake.new_table import NewTable
from airflow_eos.kinds.lake.participant import LostRaceError, files_of
from airflow_eos.kinds.lake.task import (
    ParquetOfTask,
    TaskFileSpec,
    application_of,
    check_application,
    check_compression,
    read_files,
)
from airflow_eos.kinds.lake.upsert import LakeUpsert, waiting
from airflow_eos.kinds.spill.task import read_back

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.delivery.port import TaskWriter
    from airflow_eos.kinds.iceberg.participant import IcebergParticipant
    from airflow_eos.kinds.lake.participant import DataFile

TASK_MODULES = (
    "pyarrow.parquet",
    "numpy",
    "msgspec",
    "pyiceberg",
    "airflow_eos.kinds.iceberg.sink",
)
_TRIES_AT_ONCE = 20


@dataclass(frozen=True)
class IcebergSink:
    """The Iceberg sink: table and settings.

    Attributes:
        identifier: ``namespace.table``.
        catalog: properties of the catalog, as pyiceberg's ``load_catalog`` takes them; never shown.
        application_id: the name of this output in the table's properties; for ever of one
            pipeline.
        catalog_name: the name of the catalog.
        compression: of the Parquet files: none, snappy, gzip, brotli, lz4 or zstd.
        schema_evolution: ``add``: columns that the rows have and the table has not are added by
            the commit, and types widened (int to long, float to double, decimals); ``none``: such
            rows are refused.
        create: what the table is made as, where the catalog has none; None: it must be there.
        branch: of the table, made from main where it is not there: for rows that are looked at
            before they are published.
        distribute: ``hash`` lets Spark put the rows of a partition into one task, so that it has
            one file in a batch; ``none``: each task writes a file for each partition of its rows.
            Of upserts it is the rows of a key.
        upsert: rows replace those of their key; without it they are appended.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
        folder: the table's folder, once the sink is bound: so tasks need no catalog.
        storage_options: how the table's bucket is reached, once the sink is bound.
        vended: whether the catalog gives keys that expire, so that each task asks for its own.
        metadata: the table's, without its snapshots, once the sink is bound.
    """

    identifier: str
    catalog: Mapping[str, Any] = field(repr=False, hash=False)
    application_id: str = field(kw_only=True)
    catalog_name: str = "default"
    compression: str | None = "zstd"
    schema_evolution: Literal["none", "add"] = "none"
    create: Annotated[NewTable, Instance(kind="NewTable")] | None = field(default=None, hash=False)
    branch: str = MAIN
    distribute: Literal["none", "hash"] = "none"
    upsert: Annotated[LakeUpsert, Instance(kind="LakeUpsert")] | None = None
    name: str = DEFAULT_PARTICIPANT
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)
    folder: str | None = field(default=None, repr=False, compare=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    vended: bool = field(default=False, repr=False, compare=False)
    metadata: TableMetadata | None = field(default=None, repr=False, compare=False)

    perishable: ClassVar[bool] = True  # see core/delivery/spill.py: remove_orphan_files

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        check_application(self.application_id)
        check_compression(self.compression)
        if not all(self.identifier.split(".")) or "." not in self.identifier:
            raise ConfigurationError(
                f"identifier {self.identifier!r}: expected namespace.table, as in the catalog."
            )

    def bound(self, store: CheckpointStore) -> IcebergSink:
        """See :meth:`Sink.bound`: the sink notes files in that checkpoint, and has its table."""
        with closing(reached(self.catalog_name, self.catalog)) as catalog:
            if self.create is not None:
                create(catalog, self.identifier, self.create)
            table = loaded_table(catalog, self.identifier)
            vended = vends(catalog, table)
        folder = location(table)
        require_outside(store.location, folder, hidden=True)  # remove_orphan_files
        return replace(
            self,
            store=store,
            folder=folder,
            storage_options=reach_of(table),
            vended=vended,
            metadata=without_snapshots(table.metadata),
        )

    @property
    def cut(self) -> IcebergPartitioning:
        """The partitions that rows go to: by the spec of the table as it was bound."""
        metadata = self._known
        return IcebergPartitioning(metadata.spec(), metadata.schema())

    @property
    def _known(self) -> TableMetadata:
        if self.metadata is None:
            raise ConfigurationError("The iceberg sink does not know its table: it is not bound.")
        return self.metadata

    @property
    def _order(self) -> IcebergOrder | None:
        order = self._known.sort_order()
        return None if order.is_unsorted else IcebergOrder(order, self._known.schema())

    @property
    def written_folder(self) -> str:
        """Where rows go, once the sink is bound; see ``core/delivery/own_output.py``."""
        return str(self.folder or "")

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        check_workers(spark, modules=(*TASK_MODULES, *modules_for(self.folder or "/")))

    def connect(self, interval: timedelta) -> IcebergParticipant:
        """See :meth:`Sink.connect`: refuse a table that cannot be written."""
        del interval
        store = bound_store(self.store, KIND)
        return made(
            self.catalog_name,
            self.catalog,
            self.identifier,
            name=self.name,
            application=self.application_id,
            store=store,
            branch=self.branch,
        )

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: the table's columns, by their names.

        Raises:
            ConfigurationError: the rows have other columns or types, or Spark cannot hash them.
            StoreError: there is no table.
        """
        if self.upsert is not None:
            self.upsert.refuse({each.name: each.dataType.simpleString() for each in schema.fields})
        require_fit(
            kept(self.catalog_name, self.catalog),
            self.identifier,
            in_arrow(schema),
            self.metadata,
            adds=self._adds,
            upsert=self.upsert,
            branch=self.branch,
        )
        return own_columns(schema, row)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        store = bound_store(self.store, KIND)
        of_table = TaskFileSpec(
            KIND,
            self.name,
            str(self.folder),
            DATA,
            "",
            self.compression,
            SPARED_MS,
            columns=partial(
                _numbered, self.identifier, self._known, adds=self._adds, upsert=self.upsert
            ),
            table=self._written_by(),
            storage_options=self._reach(),
        )
        if self.upsert is None:
            what = replace(of_table, partitions=self.cut, order=self._order)
        else:
            what = replace(of_table, partitions=waiting(self.application_id, self.upsert))
        return ParquetOfTask(
            what,
            task,
            task_attempt,
            store=store if transactional else None,
            publish=self._publish,
        )

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`: read the works' own files, also if the table is compacted."""
        if self.upsert is not None:
            what = f"{KIND} {self.name!r}"
            raise read_back(works, what, "later rows may have replaced theirs")
        paths = [file.path for work in works for file in files_of(work, DATA)]
        return read_files(spark, str(self.folder), paths, self._reach())

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Return why rows would change other rows than this work did; empty: they would not."""
        del columns
        return LakeUpsert.changed([files_of(work, "") for work in works], self.upsert)

    def distribution(self) -> list[Column]:
        """Return what Spark puts rows together by, see ``distributed``; none: no partitions."""
        from pyspark.sql import functions
        from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

        if self.upsert is not None:
            return [functions.col(_quoted(name)) for name in self.upsert.key]
        cut = self.cut
        columns = [functions.col(_quoted(name)) for name in cut.columns]
        if not columns or cut.is_identity:
            return columns
        return [arrow_udf(cut.codes, "long", ArrowUDFType.SCALAR)(*columns)]

    @property
    def _adds(self) -> bool:
        return self.schema_evolution == "add"

    def _written_by(self) -> dict[str, Any]:
        """Return what files are written by, for the commit: ids of spec, order and columns."""
        known, order = self._known, self._order
        ordered = {} if order is None else {ORDER: order.order.order_id}
        last = {LAST: known.last_column_id} if self._adds else {}
        if self.upsert is not None:
            return {**self.upsert.detail(self.compression), **last}
        return {SPEC: known.default_spec_id, **ordered, **last}

    def _reach(self) -> Mapping[str, str] | None:
        """Return how the bucket is reached now: a plan may be older than vended keys live."""
        if not self.vended:
            return self.storage_options
        catalog = kept(self.catalog_name, self.catalog)
        return reach_of(loaded_table(catalog, self.identifier))

    def _publish(self, files: Sequence[DataFile]) -> None:
        """Make a task's files visible at once, among other writes; not twice by this process."""
        waits = self.upsert is not None  # then a commit again changes nothing
        with ExitStack() as after:
            if waits:
                gone = table_files(str(self.folder), self._reach()).remove
                after.callback(gone, [file.path for file in files])
            catalog = after.enter_context(closing(reached(self.catalog_name, self.catalog)))
            whole = partial(reached, self.catalog_name, self.catalog, whole=True)
            for tried in range(1, _TRIES_AT_ONCE + 1):
                table = loaded_table(catalog, self.identifier)
                refuse(self.identifier, table, self.branch)
                view = IcebergSnapshot(self.identifier, table, branch=self.branch)
                view.check(files)
                # A commit that failed may have arrived: a catalog's error is no answer.
                if tried > 1 and not waits and self._arrived(files, whole):
                    return None
                try:
                    return view.append_at_once(files)
                except LostRaceError as error:
                    if tried == _TRIES_AT_ONCE:
                        raise StoreError(
                            f"{self.identifier} does not take {files[0].name}: {error}"
                        ) from error
        return None

    def _arrived(self, files: Sequence[DataFile], whole: Callable[[], Catalog]) -> bool:
        """Whether any snapshot names the files."""
        with closing(whole()) as catalog:
            view = IcebergSnapshot(self.identifier, loaded_table(catalog, self.identifier))
            return bool(view.still_names([file.path for file in files]))


def _numbered(
    identifier: str,
    metadata: TableMetadata,
    rows: pa.Schema,
    *,
    adds: bool,
    upsert: LakeUpsert | None,
) -> pa.Schema:
    """Return the rows' columns with the ids that the table has, or will have, for them."""
    import pyarrow as pa

    if upsert is None:
        return with_ids(rows, columns_for(identifier, metadata, rows, adds=adds))
    theirs = waiting_rows(rows, metadata.schema(), upsert)
    table = columns_for(identifier, metadata, theirs, adds=adds)
    found = with_ids(pa.schema([rows.field(name) for name in theirs.names]), table)
    if upsert.deleted is None or upsert.deleted in found.names:
        return found
    return found.append(rows.field(upsert.deleted))


def _quoted(name: str) -> str:
    """Return a column, at any depth, as Spark SQL."""
    return ".".join(quoted(part) for part in name.split("."))


class IcebergOptions(SinkOptions, frozen=True):
    """The options of an Iceberg sink; its catalog's properties come with ``how``."""

    identifier: str
    application_id: str | None = None
    catalog_name: str | None = None
    compression: str | None = None
    distribute: str | None = None
    schema_evolution: str | None = None
    create: NewTable | None = None
    branch: str | None = None
    upsert: LakeUpsert | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> IcebergSink:
        """See :meth:`SinkOptions.sink`."""
        if not isinstance(how, Mapping) or not how:
            raise unreached("the catalog's properties, as pyiceberg's load_catalog takes them")
        given = {**application_of(name, app), **self.given()}
        return IcebergSink(catalog=how, name=name, **given)


OPTIONS = IcebergOptions

"""The Delta sink: a task writes a file for each partition, and the decision's commit adds them.

The table must be there: on a disk or in a bucket, without constraints and computed columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from airflow_eos.core.arguments import Instance, PlaceName, take_fields
from airflow_eos.core.checkpoint.hdfs import modules_for
from airflow_eos.core.checkpoint.locations import printable, require_outside
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.delivery.options import AppFacts, SinkOptions, unreached
from airflow_eos.core.delivery.port import bound_store
from airflow_eos.core.delivery.task import own_columns, quoted
from airflow_eos.core.delivery.workers import check_workers
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name
from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.kinds.delta.columns import DeltaPartitions
from airflow_eos.kinds.delta.definition import EVOLVES
from airflow_eos.kinds.delta.participant import (
    KIND,
    PARTITIONED_BY,
    SPARED_MS,
    DeltaFolder,
    loaded_table,
    made,
    partitions_of,
    publish,
    require_fit,
    require_library,
)
from airflow_eos.kinds.lake.files import table_files
from airflow_eos.kinds.lake.new_table import NewTable
from airflow_eos.kinds.lake.participant import files_of
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
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.core.delivery.port import TaskWriter
    from airflow_eos.kinds.lake.participant import LakeParticipant

TASK_MODULES = ("pyarrow.parquet", "numpy", "msgspec", "deltalake", "airflow_eos.kinds.delta.sink")


@dataclass(frozen=True)
class DeltaSink:
    """The Delta sink: table and settings.

    Attributes:
        table_uri: an absolute path on a disk that driver and executors share, or a URL: ``s3://``,
            ``gs://``, ``az://``, ``abfss://``, ``hdfs://``.
        storage_options: how it is reached, by the keys of object_store (``aws_endpoint``, …), of
            HDFS by Hadoop's settings; never shown. Without them the environment decides.
        application_id: the name of this output in the table's log; for ever of one pipeline.
        compression: of the Parquet files: none, snappy, gzip, brotli, lz4 or zstd.
        name: the participant's name in the decisions of the pipeline.
        distribute: ``"hash"`` lets Spark put the rows of a partition into one task, so that a batch
            adds one file for each; of upserts the rows of a key.
        schema_evolution: ``add``: columns that the rows have and the table has not are added just
            before the commit of the rows; ``none``: such rows are refused.
        create: what the table is made as, where there is none; None: it must be there.
        upsert: rows replace those of their key; without it they are appended.
        store: the checkpoint; see :meth:`bound`.
        partitions: the columns that the table is partitioned by, once the sink is bound.
    """

    table_uri: PlaceName
    application_id: str = field(kw_only=True)
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    compression: str | None = "zstd"
    name: str = DEFAULT_PARTICIPANT
    schema_evolution: Literal["none", "add"] = "none"
    create: Annotated[NewTable, Instance(kind="NewTable")] | None = field(default=None, hash=False)
    distribute: Literal["none", "hash"] = "none"
    upsert: Annotated[LakeUpsert, Instance(kind="LakeUpsert")] | None = None
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)
    partitions: DeltaPartitions | None = field(default=None, repr=False, compare=False)

    perishable: ClassVar[bool] = True  # see core/delivery/spill.py: VACUUM

    def __post_init__(self) -> None:
        take_fields(self)
        check_name(self.name)
        check_application(self.application_id)
        check_compression(self.compression)
        if "://" not in self.table_uri and not self.table_uri.startswith(("/", "file:/")):
            raise ConfigurationError(
                f"table_uri {printable(self.table_uri)!r}: expected an absolute path on a disk, "
                "the same for the driver and all executors, or a URL of a bucket or of HDFS."
            )
        self.folder.options  # noqa: B018 - refuses an option, as the next line a scheme, too
        table_files(self.table_uri, self.storage_options)

    @property
    def folder(self) -> DeltaFolder:
        """The place of the table."""
        return DeltaFolder.of(self.table_uri, self.storage_options)

    def bound(self, store: CheckpointStore) -> DeltaSink:
        """See :meth:`Sink.bound`: the sink notes its files in that checkpoint, and has its table.

        Raises:
            ConfigurationError: the checkpoint is in a folder where VACUUM removes it.
            StoreError: there is no table.
        """
        require_outside(store.location, self.folder.location, hidden=True)
        require_library()
        if self.create is not None:
            _create(self.folder, self.create)
        return replace(self, store=store, partitions=partitions_of(loaded_table(self.folder)))

    def distribution(self) -> list[str]:
        """See ``core/delivery/task.py``: the columns whose rows go to one task."""
        return [quoted(n) for n in (self._cut.columns if self.upsert is None else self.upsert.key)]

    @property
    def _cut(self) -> DeltaPartitions:
        if self.partitions is None:
            raise ConfigurationError("The delta sink does not know its table: it is not bound.")
        return self.partitions

    @property
    def written_folder(self) -> str:
        """Where rows go; see ``core/delivery/own_output.py``."""
        return self.table_uri

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        require_library()
        check_workers(spark, modules=(*TASK_MODULES, *modules_for(self.table_uri)))

    def connect(self, interval: timedelta) -> LakeParticipant:
        """See :meth:`Sink.connect`: refuse a table that cannot be written."""
        del interval
        store = bound_store(self.store, KIND)
        return made(self.folder, name=self.name, application=self.application_id, store=store)

    def columns(self, schema: StructType, row: str = "") -> list[str]:
        """See :meth:`Sink.columns`: the table's columns, by their names.

        Raises:
            ConfigurationError: the rows have other columns or types, or Spark cannot hash them.
            StoreError: there is no table.
        """
        require_library()
        if self.upsert is not None:
            self.upsert.refuse({each.name: each.dataType.simpleString() for each in schema.fields})
        evolves = self.schema_evolution == "add"
        require_fit(self.folder, schema.json(), self.upsert, evolves=evolves)
        return own_columns(schema, row)

    def opened(self, task: int, task_attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        store = bound_store(self.store, KIND) if transactional else None
        return ParquetOfTask(
            self._spec(),
            task,
            task_attempt,
            store=store,
            publish=partial(publish, self.folder),
        )

    def _spec(self) -> TaskFileSpec:
        cut = self._cut
        of_table = TaskFileSpec(
            KIND,
            self.name,
            self.folder.location,
            "",
            "_delta_log",
            self.compression,
            SPARED_MS,
            storage_options=self.storage_options,
        )
        evolves = {EVOLVES: True} if self.schema_evolution == "add" else {}
        if self.upsert is None:
            table = {PARTITIONED_BY: list(cut.columns)} | evolves
            return replace(of_table, columns=cut.in_file, partitions=cut, table=table)
        aside = waiting(self.application_id, self.upsert, cut.texts)
        table = self.upsert.detail(self.compression) | evolves
        return replace(of_table, partitions=aside, table=table)

    def elsewhere(self, works: Sequence[PreparedWork], columns: Collection[str]) -> str:
        """Return why rows would change other rows than this work did; empty: they would not."""
        del columns
        return LakeUpsert.changed([files_of(work, "") for work in works], self.upsert)

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`: read the works' own files, also if the table is compacted."""
        if self.upsert is not None:
            what = f"{KIND} {self.name!r}"
            raise read_back(works, what, "later rows may have replaced theirs")
        values = {each.path: each.partition.values for work in works for each in files_of(work, "")}
        cut = self._cut
        return read_files(
            spark,
            self.folder.location,
            list(values),
            self.storage_options,
            lambda path, rows: cut.in_rows(rows, values[path]),
        )


def _create(folder: DeltaFolder, new: NewTable) -> None:
    """Make the table if it is not there; one that is there stays as it is.

    Raises:
        ConfigurationError: it cannot be made so.
        StoreError: it was not made.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError
    from pyspark.sql.types import StructType

    columns = cast("StructType", StructType.fromDDL(new.columns))
    unknown = [name for name in new.partition_by if name not in columns.fieldNames()]
    if unknown:
        raise ConfigurationError(
            f"partition_by {', '.join(unknown)}: expected columns of {new.columns}. A Delta table "
            "is partitioned by columns alone: add one to the rows, such as to_date(at) AS day."
        )
    try:
        DeltaTable.create(
            folder.location,
            Schema.from_json(columns.json()),
            mode="ignore",
            partition_by=list(new.partition_by),
            configuration=dict(new.properties),
            storage_options=folder.options,
        )
    except (DeltaError, OSError, ValueError) as error:
        if DeltaTable.is_deltatable(folder.location, folder.options):
            return  # another process was first
        raise StoreError(
            f"The Delta table was not made of columns {new.columns}, partitions "
            f"{', '.join(new.partition_by) or 'none'} and properties {new.properties}: {error}. "
            "Make it by hand, or change them; then start again."
        ) from error


class DeltaOptions(SinkOptions, frozen=True):
    """The options of a Delta sink."""

    table_uri: str
    application_id: str | None = None
    compression: str | None = None
    distribute: str | None = None
    schema_evolution: str | None = None
    create: NewTable | None = None
    upsert: LakeUpsert | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> DeltaSink:
        """See :meth:`SinkOptions.sink`."""
        if how is not None and not isinstance(how, Mapping):
            raise unreached("the storage options of its bucket")
        given = {**application_of(name, app), **self.given()}
        return DeltaSink(name=name, storage_options=how, **given)


OPTIONS = DeltaOptions

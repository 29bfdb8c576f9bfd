"""The Delta sink: a task writes one Parquet file, which the decision's commit adds to the table.

The table must be there: on a local disk, without partitions, constraints and computed columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_eos.checkpoint.locations import as_local_path, require_outside
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.delivery.options import AppFacts, SinkOptions
from airflow_eos.delivery.port import bound_store
from airflow_eos.delivery.task import own_columns
from airflow_eos.delivery.workers import check_workers
from airflow_eos.errors import ConfigurationError
from airflow_eos.kinds.delta.participant import (
    KIND,
    SPARED_MS,
    made,
    publish,
    require_fit,
    require_library,
)
from airflow_eos.kinds.lake.task import (
    ParquetOfTask,
    TaskFileSpec,
    application_of,
    check_application,
)
from airflow_eos.protocol.decision import DEFAULT_PARTICIPANT, PreparedWork, check_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_eos.delivery.port import TaskWriter
    from airflow_eos.kinds.lake.participant import LakeParticipant

TASK_MODULES = ("pyarrow.parquet", "numpy", "msgspec", "deltalake", "airflow_eos.kinds.delta.sink")


@dataclass(frozen=True)
class DeltaSink:
    """The Delta sink: table and settings.

    Attributes:
        table_uri: an absolute path (or ``file://``) on a disk that driver and executors have.
        application_id: the name of this output in the table's log; for ever of one pipeline.
        compression: of the Parquet files: none, snappy, gzip, brotli, lz4 or zstd.
        name: the participant's name in the decisions of the pipeline.
        store: the checkpoint; see :meth:`bound`.
    """

    table_uri: str
    application_id: str = field(kw_only=True)
    compression: str = "zstd"
    name: str = DEFAULT_PARTICIPANT
    store: CheckpointStore | None = field(default=None, repr=False, compare=False)

    perishable: ClassVar[bool] = True  # see delivery/spill.py: VACUUM

    def __post_init__(self) -> None:
        check_name(self.name)
        check_application(self.application_id)
        is_path = "://" not in self.table_uri and Path(self.table_uri).is_absolute()
        if not is_path and not self.table_uri.startswith("file:/"):
            raise ConfigurationError(
                f"table_uri {self.table_uri.partition('?')[0]!r}: expected an absolute path on a "
                "disk, the same for the driver and all executors. Object stores are not supported."
            )

    @property
    def folder(self) -> Path:
        """The folder of the table."""
        found = as_local_path(self.table_uri)
        if found is None:  # pragma: no cover - refused above
            raise ConfigurationError(f"{self.table_uri} is no path of this machine.")
        return found

    def bound(self, store: CheckpointStore) -> DeltaSink:
        """See :meth:`Sink.bound`: the sink notes its files in that checkpoint.

        Raises:
            ConfigurationError: the checkpoint is in a folder where VACUUM removes it.
        """
        require_outside(store.location, str(self.folder), hidden=True)
        return replace(self, store=store)

    @property
    def written_folder(self) -> str:
        """Where rows go; see ``delivery/own_output.py``."""
        return self.table_uri

    def check(self, spark: SparkSession) -> None:
        """See :meth:`Sink.check`."""
        require_library()
        check_workers(spark, modules=TASK_MODULES)

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
        require_fit(self.folder, schema.json())
        return own_columns(schema, row)

    def opened(self, task: int, attempt: int, *, transactional: bool = True) -> TaskWriter:
        """Return the writer of one task, in a Spark worker."""
        log = self.folder / "_delta_log"
        what = TaskFileSpec(KIND, self.name, self.folder, self.compression, SPARED_MS, log)
        store = bound_store(self.store, KIND) if transactional else None
        return ParquetOfTask(
            what, task, attempt, store=store, publish=partial(publish, self.folder)
        )

    def delivered(self, spark: SparkSession, works: Sequence[PreparedWork]) -> DataFrame:
        """See :meth:`Sink.delivered`: read the works' own files, also if the table is compacted."""
        return spark.read.parquet(*(f"{self.folder}/{work.key}.parquet" for work in works))


class DeltaOptions(SinkOptions, frozen=True):
    """The options of a Delta sink."""

    table_uri: str
    application_id: str | None = None
    compression: str | None = None

    def sink(self, name: str, app: AppFacts, how: Any) -> DeltaSink:
        """See :meth:`SinkOptions.sink`."""
        del how
        return DeltaSink(name=name, **{**application_of(name, app), **self.given()})


OPTIONS = DeltaOptions

"""Upserts into a table of files: what is asked for, the rows that wait, and which files they touch.

A task's rows wait in ``_eos/<application>/rows`` of the table, which no cleaner looks into. Once
they are decided, whoever settles writes the table's files without their keys, and the rows, anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_eos.core.arguments import Key, take_fields
from airflow_eos.core.failpoints import failpoint
from airflow_eos.errors import ConfigurationError, DeliveryError, StoreError
from airflow_eos.kinds.key_columns import require_key_columns
from airflow_eos.kinds.lake.parquet import ParquetRows, pieces
from airflow_eos.kinds.lake.participant import UPSERT, DataFile, LostRaceError, Partition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from airflow_eos.kinds.lake.files import TableFiles

_AT = "__eos_at"
File = TypeVar("File")


@dataclass(frozen=True)
class LakeUpsert:
    """Rows replace those of their key, in a table of a lake.

    Within a batch the last row of a task stays, and of two tasks that of the higher one. Of two
    pipelines the later commit stays.

    Attributes:
        key: the columns of the key; a null in one of them is refused.
        deleted: a boolean column: true deletes the key. The table need not have it.
    """

    key: Key
    deleted: str | None = None

    def __post_init__(self) -> None:
        take_fields(self)
        if self.deleted in self.key:
            raise ConfigurationError(f"deleted {self.deleted!r} is a column of the key.")

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> LakeUpsert | None:
        """Return what a decision says of its files; None where they are appended."""
        told = files[0].table.get(UPSERT) if files else None
        return None if told is None else cls(told["key"], told["deleted"])

    @classmethod
    def changed(cls, works: Iterable[Sequence[DataFile]], now: LakeUpsert | None) -> str:
        """Return why rows would change other rows than works did; empty: they would not."""
        found = [cls.of(files) for files in works]
        if all(each == now for each in found):
            return ""
        return f"rows were written by {found}, and now by {now}"

    def detail(self, compression: str | None) -> dict[str, Any]:
        """Return what :meth:`of` reads, for the decision."""
        return {
            UPSERT: {
                "key": list(self.key),
                "deleted": self.deleted,
                "compression": compression,
            }
        }

    def renamed(self, names: Mapping[str, str]) -> LakeUpsert:
        """Return the same, by the names that a table has for columns by now."""
        deleted = None if self.deleted is None else names.get(self.deleted, self.deleted)
        return LakeUpsert([names.get(name, name) for name in self.key], deleted)

    def refuse(self, columns: Mapping[str, str]) -> None:
        """Refuse rows without the columns of the upsert, or of other types (ConfigurationError).

        Args:
            columns: of the rows: names, and Spark's types.
        """
        require_key_columns(columns, self.key, self.deleted)
        for name in self.key:
            if columns[name].partition("<")[0] in _NO_KEY:
                raise ConfigurationError(
                    f"Column {name} is {columns[name]}: numbers with a floating point and nested "
                    "values are no key, since equal ones need not be the same."
                )


_NO_KEY = ("float", "double", "array", "map", "struct", "variant")


@dataclass(frozen=True)
class WaitingRows:
    """See :class:`~airflow_eos.kinds.lake.task.Partitioning`: one file, aside from the table's.

    ``not_empty`` are columns of the key in which the table keeps an empty text as null.
    """

    folder: str
    key: Sequence[str]
    not_empty: Sequence[str] = ()
    columns: tuple[str, ...] = ()

    def keys(self, rows: pa.RecordBatch) -> Sequence[pa.Array]:
        """Refuse rows without a key (DeliveryError); all others are of one file."""
        import pyarrow.compute as pc

        nulls = [name for name in self.key if rows.column(name).null_count]
        nulls += [
            f"{name} (an empty text, which is null to the table)"
            for name in self.not_empty
            if pc.any(pc.equal(rows.column(name).cast("string"), "")).as_py()
        ]
        if nulls:
            raise DeliveryError(
                f"A row has no {', '.join(nulls)}, of the key of an upsert. Nothing of its batch "
                "was written. Filter such rows out, or give them a key (coalesce)."
            )
        return ()

    def partition(self, values: Sequence[pa.Scalar]) -> Partition:
        """See :meth:`Partitioning.partition`."""
        del values
        return Partition(self.folder)


def waiting(application: str, upsert: LakeUpsert, cut: Sequence[str] = ()) -> WaitingRows:
    """Return where the rows of an output wait, below the table's data.

    Args:
        application: the name of the output in the table.
        upsert: of the output.
        cut: texts by which the table is partitioned.
    """
    not_empty = [name for name in upsert.key if name in cut]
    return WaitingRows(f"_eos/{application}/rows/", upsert.key, not_empty)


@dataclass(frozen=True)
class Changes:
    """The rows of one decision.

    Attributes:
        keys: the columns of the key, of rows and of deletes; each key once.
        rows: the rows that the table is to have, without the column that tells of deletes.
    """

    keys: pa.Table
    rows: pa.Table


@dataclass
class Rewriting:
    """What is to become of the files of a table by one decision.

    It outlives a lost race: what was written stands, as long as the table has the file.

    Attributes:
        changes: the rows of the decision.
        added: the files of these rows; None where they are not written yet.
        instead: of each file that was read, by its name, what is in its place: None where nothing
            changes in it, nothing where it only goes.
    """

    changes: Changes
    added: list[DataFile] | None = None
    instead: dict[str, list[DataFile] | None] = field(default_factory=dict)

    def of(
        self,
        there: Iterable[tuple[str, File]],
        new: Callable[[pa.Table], Iterable[DataFile]],
        without: Callable[[File, pa.Table], list[DataFile] | None],
    ) -> tuple[list[DataFile], list[File]]:
        """Write what is not written yet; return the files to add to the table, and to remove.

        Args:
            there: the files that may have rows of the keys, by names that tell their rows apart.
            new: writes the rows.
            without: writes the rows of a file that have none of the keys; None: all of them.
        """
        if self.added is None:
            self.added = list(new(self.changes.rows))
        added, removed = list(self.added), []
        for name, file in there:
            if name not in self.instead:
                self.instead[name] = without(file, self.changes.keys)
            by = self.instead[name]
            if by is not None:
                added += by
                removed.append(file)
        return added, removed


def replace(
    rewrite: Callable[[], tuple[list[DataFile], list[File]]],
    commit: Callable[[list[DataFile], list[File]], None],
    *,
    files: TableFiles,
    doing: dict[str, Rewriting],
    table: str,
    back: str,
) -> None:
    """Commit rows in the place of those of their keys, only on the version that was read.

    Args:
        rewrite: writes files anew; returns those to add, and those to remove.
        commit: adds and removes them, or raises LostRaceError.
        files: the table's.
        doing: what was written so far, which is forgotten where a cleaner took some of it.
        table: its name, for people.
        back: how a person goes back to the version before.

    Raises:
        LostRaceError: a file to be read, or one that was written, is gone.
        StoreError: the table names files that somebody removed meanwhile.
    """
    try:
        added, removed = rewrite()
    except FileNotFoundError as error:
        raise LostRaceError(f"a file that was to be read is gone: {error}") from error
    failpoint("rewritten")
    paths = [file.path for file in added]
    if None in files.find(paths):
        doing.clear()
        raise LostRaceError("files that an earlier try has written were cleaned up since")
    commit(added, removed)
    if None in files.find(paths):
        raise StoreError(
            f"{table} names files that are not there: they were removed while they were being "
            f"committed. Does somebody clean the table with a retention shorter than the default? "
            f"{back}"
        )


def changes_of(
    files: TableFiles,
    waiting: Sequence[DataFile],
    upsert: LakeUpsert,
    columns: pa.Schema,
    names: Mapping[str, str] | None = None,
) -> Changes:
    """Read the rows of a decision, and keep the last of each key.

    Args:
        files: of the table.
        waiting: the files of the decision.
        upsert: as the table's columns are called now.
        columns: the table's columns; one that the rows lack is not written.
        names: of columns of the rows that the table calls otherwise by now.

    Raises:
        FileNotFoundError: a file is gone.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    tables = []
    for file in sorted(waiting, key=lambda each: int(each.name.partition("-")[0])):
        with files.open(file.path) as data:
            read = pq.read_table(data)
        tables.append(read.rename_columns([(names or {}).get(n, n) for n in read.column_names]))
    rows = _last_of_each(pa.concat_tables(tables), upsert.key)
    stay = [field for field in columns if field.name in rows.column_names]
    whole = rows.select([field.name for field in stay]).cast(pa.schema(stay))
    if upsert.deleted is not None:
        gone = pc.fill_null(rows[upsert.deleted], fill_value=False)
        return Changes(whole.select(list(upsert.key)), whole.filter(pc.invert(gone)))
    return Changes(whole.select(list(upsert.key)), whole)


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    numbered = rows.select(list(key)).append_column(_AT, pa.array(np.arange(len(rows))))
    last = numbered.group_by(list(key), use_threads=False).aggregate([(_AT, "max")])
    if len(last) == len(rows):
        return rows
    return rows.take(pa.array(np.sort(last[f"{_AT}_max"].to_numpy())))


def written(
    files: TableFiles,
    data: str,
    partition: Partition,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    compression: str | None,
    table: Mapping[str, Any],
) -> DataFile:
    """Write a new file of a table, durably.

    Args:
        files: of the table.
        data: what the path of a data file begins with.
        partition: of all rows.
        schema: of the file; the rows may have more columns.
        batches: the rows.
        compression: of Parquet.
        table: see :class:`DataFile`.

    Raises:
        StoreError: the disk or the store refuses.
    """
    path = f"{data}{partition.folder}{uuid.uuid4().hex}.parquet"
    with ExitStack() as undo, files.refusing("writing files of an upsert"):
        out = files.begin(path)
        undo.callback(files.drop, path, out)
        into = ParquetRows(schema, compression, out=out)
        undo.callback(into.close)
        for part in pieces(batches):
            for batch in part.select(schema.names).cast(schema).to_batches():
                into.hold(batch)
            into.flush()
        into.end()
        found = files.keep(path, out)
        undo.pop_all()
    return DataFile(path, found.size, into.rows, found.modified_at_ms, found.tail, partition, table)


def left(batches: Iterable[pa.RecordBatch], stay: np.ndarray[Any, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that stay, of all in their order."""
    import pyarrow as pa

    at = 0
    for batch in batches:
        yield batch.filter(pa.array(stay[at : at + len(batch)]))
        at += len(batch)


def touched_of(parts: Iterable[pa.Table], keys: pa.Table) -> np.ndarray[Any, Any]:
    """Return whether each row has one of the keys, where not all are to be held at once."""
    import numpy as np

    return np.concatenate([np.zeros(0, dtype=bool), *(touched(part, keys) for part in parts)])


def touched(rows: pa.Table, keys: pa.Table) -> np.ndarray[Any, Any]:
    """Return whether each of ``rows`` has one of the keys; both have the columns of the key."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    names = keys.column_names
    if len(names) == 1:
        found = pc.is_in(rows.column(names[0]), value_set=keys.column(0).combine_chunks())
        return np.asarray(found)
    numbered = rows.append_column(_AT, pa.array(np.arange(len(rows))))
    there = numbered.join(keys, names, join_type="left semi")[_AT].to_numpy()
    mask = np.zeros(len(rows), dtype=bool)
    mask[there] = True
    return mask


def may_touch(
    keys: pa.Table, bounds: Mapping[str, tuple[pa.ChunkedArray, pa.ChunkedArray]], files: int
) -> np.ndarray[Any, Any]:
    """Return whether each file may have a row of the keys, by the bounds of its columns.

    Args:
        keys: see :class:`Changes`.
        bounds: least and greatest values of columns of the key, of each file; null where unknown.
        files: how many.
    """
    import numpy as np
    import pyarrow.compute as pc

    may = np.ones(files, dtype=bool)
    for name, (least, most) in bounds.items():
        column = keys.column(name)
        ordered = pc.unique(column).sort() if len(column) else column
        values = np.asarray(ordered.to_numpy(zero_copy_only=False))
        known = np.asarray(pc.and_(least.is_valid(), most.is_valid()))
        lower, upper = (each.filter(known).to_numpy() for each in (least, most))
        first, after = values.searchsorted(lower), values.searchsorted(upper, side="right")
        may[known] &= after > first
    return may

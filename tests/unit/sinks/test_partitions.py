"""Rows are put into the folders of their own values, however many columns name a folder."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from airflow_eos.kinds.files.folder import partition
from airflow_eos.kinds.files.sink import Split


def test_many_columns_of_many_values_each_go_to_their_own_folder():
    """The product of their counts is beyond 64 bits: it put rows into folders of other values."""
    names = [f"c{at}" for at in range(9)]
    folders = [(f"v{at}",) * 9 for at in range(256)]
    folders += [(f"v{at}", *("v0",) * 8) for at in range(1, 256)]  # apart in the first one alone
    columns = dict(zip(names, zip(*folders, strict=True), strict=True))
    rows = pa.RecordBatch.from_pydict({**columns, "of": range(len(folders))})
    parts = Split(names, partial(partition, names))(rows)
    assert {folder: part["of"].to_pylist() for folder, part in parts} == {
        partition(names, values): [at] for at, values in enumerate(folders)
    }


def test_rows_of_a_folder_keep_their_order_and_nulls_are_values():
    rows = pa.RecordBatch.from_pydict(
        {"a": ["x", None, "x", "y", None], "b": ["1", "1", "2", None, "1"], "of": [0, 1, 2, 3, 4]}
    )
    parts = Split(["a", "b"], lambda values: "/".join(map(str, values)))(rows)
    assert {folder: part["of"].to_pylist() for folder, part in parts} == {
        "x/1": [0],
        "None/1": [1, 4],
        "x/2": [2],
        "y/None": [3],
    }

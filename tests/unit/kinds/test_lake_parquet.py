"""How files of a lake's table are written: dictionaries, and the size of row groups."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_eos.kinds.lake.parquet import ParquetRows, pieces, repeating


class Pairs(pa.ExtensionType):  # type: ignore[misc]
    """A type that Arrow was taught, of two values."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("a", pa.int64()), ("b", pa.int64())]), "tests.pairs")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Pairs:
        del storage_type, serialized
        return cls()


NOW = datetime(2026, 1, 1, tzinfo=UTC)
ARRAYS: dict[str, Any] = {
    "null": pa.nulls(4),
    "bool": pa.array([True, False, None, True]),
    "int": pa.array([1, 2, 3, 4], pa.int8()),
    "float": pa.array([0.0, -0.0, float("nan"), None]),
    "half": pa.array(np.array([1.0, 2.0, 3.0, 4.0], np.float16)),  # 20 takes no float of Python
    "text": pa.array(["a", "b", "c", "d"]),
    "large text": pa.array(["a"] * 4, pa.large_string()),
    "text view": pa.array(["a", "b", "c", "d"], pa.string_view()),
    "bytes": pa.array([b"a", b"", None, b"d"]),
    "fixed bytes": pa.array([b"ab"] * 4, pa.binary(2)),
    "bytes view": pa.array([b"a", b"", None, b"d"], pa.binary_view()),
    "date": pa.array([NOW.date()] * 4),
    "time": pa.array([1, 2, 3, 4], pa.time64("us")),
    "instant": pa.array([NOW] * 4, pa.timestamp("us", "UTC")),
    "duration": pa.array([1, 2, 3, 4], pa.duration("us")),
    "decimal": pa.array([Decimal("1.5")] * 4, pa.decimal128(38, 10)),
    "small decimal": pa.array([Decimal("1.5")] * 4, pa.decimal32(5, 2)),
    "large decimal": pa.array([Decimal("1.5")] * 4, pa.decimal256(60, 10)),
    "dictionary": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
    "list": pa.array([[1], [], None, [2, 3]]),
    "list of three": pa.array([[1, 2, 3]] * 4, pa.list_(pa.int64(), 3)),
    "struct": pa.array([{"a": 1}, {"a": 2}, None, {"a": None}]),
    "map": pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
    "uuid": pa.array([b"0123456789abcdef"] * 4, pa.uuid()),
    "json": pa.array(["{}", "1", "2", "3"], pa.json_()),
    "pairs": pa.ExtensionArray.from_storage(
        Pairs(), pa.array([{"a": n, "b": n} for n in range(4)], Pairs().storage_type)
    ),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 4], pa.array([1, 2])),
}


@pytest.mark.parametrize("of", ARRAYS)
def test_a_dictionary_is_decided_for_a_column_of_every_type(of: str):
    """A type that Arrow was taught, or cannot compare, ended the task with a trace of Arrow's."""
    found = repeating(pa.table({"it": ARRAYS[of]}))
    assert found in (True, [], ["it"])


NOT_OF_PARQUET = ("duration", "runs")
# Arrow cannot size the first two, or write the third, before 24. Spark gives a task none of them.
NEWER = ("text view", "bytes view", "small decimal")


@pytest.mark.parametrize("of", [of for of in ARRAYS if of not in NOT_OF_PARQUET + NEWER])
def test_a_column_of_every_type_comes_back_from_a_file(of: str):
    given, out = pa.table({"it": ARRAYS[of], "n": [1, 2, 3, 4]}), io.BytesIO()
    rows = ParquetRows(given.schema, "zstd", out=out)
    for batch in given.to_batches():
        rows.hold(batch)
    rows.end()
    read = pq.read_table(out)
    assert read["n"].to_pylist() == [1, 2, 3, 4]
    assert str(read["it"].to_pylist()) == str(given["it"].to_pylist()) or of == "uuid"


def test_rows_come_in_pieces_of_a_row_group_whatever_the_size_of_a_batch():
    batches = [
        pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + rows))})
        for first, rows in ((0, 1000), (1000, 1), (1001, 0), (1001, 99))
    ]
    found = list(pieces(batches, 800))
    assert [len(each) for each in found] == [100] * 11
    assert pa.concat_tables(found)["n"].to_pylist() == list(range(1100))
    assert list(pieces([], 800)) == []

"""``benchmarks.state``: what must come out, what is new in a checkpoint, and the ratios."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from benchmarks import state_told
from benchmarks.rows import content_sum
from benchmarks.state import files
from benchmarks.state_keys import Counted, longs

SETTINGS = {"keys": 10, "keys_a_burst": 2}


def found(ms: float, written: int) -> state_told.Found:
    told = [{"triggerExecution": 5}]
    return state_told.Found(1.0, [ms] * 4, [written] * 4, size=written * 9, memory=1 << 30, told=told)


def test_keys_are_longs_as_java_writes_them():
    assert longs(np.array([1, 258], np.int64)).to_pylist() == [
        b"\0\0\0\0\0\0\0\1",
        b"\0\0\0\0\0\0\1\2",
    ]


def test_each_count_of_each_key_is_expected_once():
    counted = Counted(4)
    counted.every()
    keys = counted.some(2)
    counted.again(keys)
    rows = [(key, b"1") for key in longs(np.arange(4)).to_pylist()]
    rows += [(key, told) for key in longs(keys).to_pylist() for told in (b"2", b"3")]
    batch = pa.RecordBatch.from_pylist([{"key": key, "value": value} for key, value in rows])
    assert counted.expected() == (8, content_sum(iter([batch])))


def test_a_file_that_is_written_again_is_new_and_one_that_is_being_written_is_not_there(tmp_path):
    one = tmp_path / "state" / "1.delta"
    one.parent.mkdir()
    one.write_bytes(b"12345")
    before = files(tmp_path)
    one.write_bytes(b"123")
    os.utime(one, ns=(7, 7))
    (tmp_path / ".2.delta.tmp").write_bytes(b"1")
    after = files(tmp_path)
    assert sum(before.values()) == 5
    assert [after[each] for each in after.keys() - before.keys()] == [3]


def test_ratios_are_ours_over_theirs_and_one_that_was_not_run_is_missing():
    told = state_told.result({"rocksdb": found(10, 100), "flink": found(40, 50)}, {}, SETTINGS)
    assert told.ratios["state_p50_rocksdb_over_flink"] == 0.25
    assert told.ratios["state_written_rocksdb_over_flink"] == 2
    assert not [name for name in told.ratios if "default" in name]

"""What the benchmarks say of their figures, and what stops their clocks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import machines_told, report, state_told
from benchmarks.first_row import said_at
from benchmarks.rows import content_sum
from benchmarks.starting import await_ready
from benchmarks.state import files
from benchmarks.state_keys import Counted, longs
from benchmarks.throughput_told import Figures, Found, result

ROOT = Path(__file__).parents[3]
BESIDE = "arrow-beside-flink"


def figures(per_second: float, cpu: float) -> Figures:
    return Figures(per_second, {"broker": cpu / 4, "Java": cpu / 4, "Python": cpu / 2})


FOUND: Found = {
    "pass": {
        "noop": [figures(900, 1.0), figures(900, 1.2), figures(900, 0.8)],
        "arrow": [figures(1000, 0.5), figures(3000, 0.6), figures(2000, 1.6)],
        "flink": [figures(1000, 1.5), figures(1000, 1.2), figures(1000, 1.6)],
    },
    "etl": {"arrow": [figures(10, 3)] * 3, "flink": [figures(5, 6)] * 3},
}


def test_ratios_are_medians_of_those_within_the_rounds_and_above_one_is_for_the_first():
    ratios = result(FOUND, {"rows": 12}).ratios

    assert ratios["arrow_over_flink"] == pytest.approx(2.0)
    assert ratios["cpu_arrow_over_flink"] == pytest.approx(2.0)  # of 3, 2 and 1
    assert ratios["cpu_arrow_over_noop"] == pytest.approx(2.0)  # of 2, 2 and 0.5
    assert "arrow_over_spark_sink" not in ratios


def test_what_was_asked_of_the_arrow_source_stands_beside_what_was_found():
    told = result(FOUND, {"rows": 12}).tables[-1].markdown()

    assert "| Flink ÷ ArrowKafkaSource, pass-through | 1.8 | 2.00 | 3.00, 2.00, 1.00 |" in told
    assert "| Flink ÷ ArrowKafkaSource, ETL with Polars | 1.8 | 2.00 |" in told
    assert "Spark's own sink" not in told


def test_the_arrow_sources_page_gets_them_beside_the_cpu_of_each_variant(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the group bench is not there")
    page = tmp_path / "page.md"
    begun = "".join(f"<!-- begin {n} -->\n<!-- end {n} -->\n" for n in ("throughput", BESIDE))
    page.write_text(f"Before\n{begun}After\n")
    monkeypatch.setattr(report, "DOCUMENTS", (page,))
    monkeypatch.setattr(report, "RESULTS", tmp_path)

    report.record(result(FOUND, {"rows": 12}), "the command", defaultdict(lambda: "?"), tmp_path)

    told = page.read_text().partition(f"<!-- begin {BESIDE} -->")[2]
    assert told.startswith("\n`the command`")
    assert "| ours, exactly once, ArrowKafkaSource | 0.60 | 0.15 | 0.15 | 0.30 | 2,000 |" in told
    assert "| Flink ÷ ArrowKafkaSource, ETL with Polars | 1.8 | 2.00 |" in told
    assert told.endswith("<!-- end arrow-beside-flink -->\nAfter\n")
    places = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert f"<!-- begin {BESIDE} -->" in places
    assert f"<!-- end {BESIDE} -->" in places


def test_without_the_arrow_source_nothing_is_said_of_it():
    found = {"pass": {name: FOUND["pass"][name] for name in ("noop", "flink")}}

    told = result(found, {"rows": 12})

    assert len(told.tables) == 1
    assert not told.excerpts


# --- What a second machine brings is reckoned within each round, and so is ours beside theirs -----


def of_machines(*per_second: float) -> list[machines_told.Figures]:
    return [machines_told.Figures(each, 0.9) for each in per_second]


def test_a_gain_is_that_of_a_round_and_a_slow_round_falls_on_all_alike():
    found = {
        "spark_sink": {1: of_machines(100, 50, 100), 2: of_machines(200, 100, 150)},
        "exactly_once": {1: of_machines(200, 100, 200), 2: of_machines(380, 190, 300)},
    }
    ratios = machines_told.result(found, {"cores_of_a_machine": 0.4}).ratios
    assert ratios == {
        "gain_spark_sink": 2.0,
        "gain_exactly_once": 1.9,
        "gain_exactly_once_over_spark_sink": 0.95,
    }


# --- ``benchmarks.state``: what must come out, what is new in a checkpoint, and the ratios --------


SETTINGS = {"keys": 10, "keys_a_burst": 2}


def found(ms: float, written: int) -> state_told.Found:
    told = [{"triggerExecution": 5}]
    return state_told.Found(
        1.0, [ms] * 4, [written] * 4, size=written * 9, memory=1 << 30, told=told
    )


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


# --- The clock of ``benchmarks.starting`` begins with the operator, and its log stops nobody ------


PROCESS = """
import sys
print("almost ready"); print("x" * 200_000); print("ready", flush=True)
for word in sys.stdin:
    print("y" * 200_000); print("the end", flush=True)
"""


def started(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def test_lines_before_it_are_no_sign_and_a_log_that_is_long_blocks_nobody(tmp_path):
    with (tmp_path / "log").open("wb") as log, started(PROCESS) as process:
        drain = await_ready(process, log)
        assert process.poll() is None, "it waits for its word"
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(120) == 0
        drain.join()
    assert b"the end" in (tmp_path / "log").read_bytes()


def test_a_process_that_ends_before_it_is_ready_gives_no_figure(tmp_path):
    with (
        (tmp_path / "log").open("wb") as log,
        started("print('no')") as process,
        pytest.raises(SystemExit, match="ended without"),
    ):
        await_ready(process, log)


# --- What the clock of ``benchmarks.first_row`` is stopped by -------------------------------------


SAID = ["A broker is up", "Recovered, once", "Recovered, twice", "lost 0"]


def test_the_first_time_counts():
    seconds = itertools.count(10)
    assert said_at(SAID, ("Recovered", "lost 0"), lambda: next(seconds)) == {
        "Recovered": 10,
        "lost 0": 12,
    }


def test_what_was_not_said_gives_no_figure():
    with pytest.raises(SystemExit, match="No figure is given"):
        said_at(SAID[:2], ("Recovered", "lost 0"), lambda: 0.0)

"""CONTRIBUTING says how long a module may be: it is true here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 250
LINES = {
    path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
    for room in ("airflow_eos", "benchmarks", "dags", "spark_apps")
    for path in (ROOT / room).rglob("*.py")
}


def test_no_module_outgrows_what_a_reader_can_hold():
    grown = {path: n for path, n in LINES.items() if n > LIMIT}
    assert not grown, f"split them, or leave something out: {grown}"

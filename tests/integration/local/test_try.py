"""``airflow-eos try`` and ``new``: the main thing seen without Airflow, on real parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("airflow-eos"))


@pytest.mark.parametrize(
    "kind", ["windows", *(pytest.param(k, marks=pytest.mark.examples) for k in ("map", "upsert"))]
)
def test_a_new_pipeline_is_killed_recovered_and_every_row_is_there_once(tmp_path, kind):
    made = subprocess.run(
        [PROGRAM, "new", "orders", "--kind", kind, "--into", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    tried = subprocess.run(
        [PROGRAM, "try", str(tmp_path / "orders")], capture_output=True, text=True, timeout=600
    )
    said = " ".join(tried.stdout.split())
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "Readers have 0 rows" in said
    assert "lost 0, duplicated 0" in said

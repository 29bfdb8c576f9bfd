"""The alerts by Prometheus's own rule engine, whose promtool comes with ``make servers``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ALERTS = Path(__file__).parents[3] / "deploy/alerts"
RULES = ("airflow-eos.yaml", "airflow-eos-expected.yaml")


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    assert found is not None, "`make servers` installs promtool (Debian's prometheus)"
    return found


@pytest.mark.parametrize(
    "command",
    [("check", "rules", *RULES), ("test", "rules", "airflow-eos.test.yaml")],
    ids=["check", "test"],
)
def test_the_alerts_hold_when_the_driver_is_dead_by_the_rule_engine_itself(promtool, command):
    """Recorded series of a day and more: who died says so until somebody comes, and no longer."""
    done = subprocess.run([promtool, *command], cwd=ALERTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

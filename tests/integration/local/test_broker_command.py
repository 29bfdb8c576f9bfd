from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.local.client import live_brokers

PROGRAM = str(Path(sys.executable).with_name("airflow-eos"))


@pytest.fixture
def run(tmp_path):
    """Run ``airflow-eos broker ...`` with a state folder of its own, and stop what it started."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def call(*arguments):
        return subprocess.run(
            [PROGRAM, "broker", *arguments], env=environment, capture_output=True, text=True
        )

    yield call
    call("stop")


def test_a_broker_in_the_background_starts_once_and_stops(run):
    assert run("status", "--json").returncode == 1
    started = run("start", "--json")
    assert started.returncode == 0, started.stderr
    facts = json.loads(started.stdout)
    assert live_brokers(facts["bootstrap_servers"]) == {1}
    assert json.loads(run("start", "--json").stdout)["pid"] == facts["pid"]
    assert facts["bootstrap_servers"] in run("status").stdout
    assert json.loads(run("stop", "--json").stdout) == {"stopped": True}
    assert live_brokers(facts["bootstrap_servers"]) == set()
    assert json.loads(run("status", "--json").stdout) == {"running": False}
    assert "No broker was running" in run("stop").stdout

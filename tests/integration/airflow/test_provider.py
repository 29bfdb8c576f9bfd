"""A real Airflow, in a home of its own, knows the provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.get_provider_info import get_provider_info
from tests.integration.page.conftest import recorded_checkpoint

pytestmark = pytest.mark.long


@pytest.fixture
def airflow(tmp_path):
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }

    def run(*arguments: str, status: int = 0) -> str:
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert answer.returncode == status, answer.stdout + answer.stderr
        return answer.stdout if status == 0 else answer.stderr

    return run


def test_airflow_providers_list_shows_it(airflow):
    answer = airflow("providers", "list", "--output", "json")
    listed = json.loads(answer[answer.index("[{") :])
    [ours] = [each for each in listed if each["package_name"] == "airflow-provider-eos"]
    assert ours["description"].strip() == get_provider_info()["description"].rstrip(".")


def test_airflow_eos_is_the_command_line_of_the_package(airflow, tmp_path):
    """What it prints and how it ends is of ``airflow-eos``, whichever way it was started."""
    assert "Usage: airflow-eos status" in airflow("eos", "status", "--help")
    checkpoint = recorded_checkpoint(tmp_path / "recorded")
    printed = airflow("eos", "status", str(checkpoint), "--json")
    told = json.loads(printed[printed.index("{") :])
    assert told["progress"]["latest_batch"] == 2
    assert "no-such-command" in airflow("eos", "no-such-command", status=2)

"""A real Airflow, in a home of its own, knows the provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_eos.get_provider_info import get_provider_info


@pytest.fixture
def airflow(tmp_path):
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }

    def run(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("airflow")), *arguments]
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=240
        )
        return answer.stdout

    return run


def test_airflow_providers_list_shows_it(airflow):
    answer = airflow("providers", "list", "--output", "json")
    listed = json.loads(answer[answer.index("[{") :])
    [ours] = [each for each in listed if each["package_name"] == "airflow-provider-eos"]
    assert ours["description"].strip() == get_provider_info()["description"].rstrip(".")

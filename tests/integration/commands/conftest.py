"""What a user has at a command line: the installed program, a folder, and what a pipeline left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import write_heartbeat
from tests.integration.kafka.conftest import raw_kafka as _raw_kafka
from tests.integration.recovery.conftest import DeadPipeline
from tests.integration.recovery.conftest import dead as _dead
from tests.support.beats import heartbeat

PROGRAM = str(Path(sys.executable).with_name("airflow-eos"))
BARE = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
"""No HOME, no terminal, no PYSPARK_PYTHON: what a unit file or a cron job has."""

Command = Callable[..., subprocess.CompletedProcess[str]]
raw_kafka, just_dead = _raw_kafka, _dead


@pytest.fixture
def dead(just_dead: DeadPipeline) -> DeadPipeline:
    """Its driver has said that it ended, so that no command waits for its silence."""
    write_heartbeat(just_dead.store, heartbeat("failed"))
    return just_dead


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """``command("plan", …)``: the program in a process of its own, to its end, elsewhere."""
    here = tmp_path / "here"
    here.mkdir()
    java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}

    def run(*arguments: str, status: int = 0, given: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PROGRAM, *arguments],
            cwd=here,
            env={**BARE, **java, "XDG_STATE_HOME": str(tmp_path / "state")},
            input=given,
            capture_output=True,
            text=True,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        assert "Traceback" not in said
        return done

    return run

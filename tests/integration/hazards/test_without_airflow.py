"""Where Airflow is not installed: the command line, and a Spark app that gets us as an archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_eos.local import EmbeddedKafka
from tests.integration.hazards.direct import Direct
from tests.support.jvm import SHORT_LIVED
from tests.support.pipeline import APP, ROOT, Pipeline
from tests.support.topics import produce

pytestmark = [pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(600)]

SOMETHING_TO_DO = 3


class Environment:
    """A virtual environment of its own, with nothing of ours on its path."""

    def __init__(self, folder: Path, *requirements: str) -> None:
        self.bin = folder / "bin"
        uv = _uv()
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        install = [uv, "pip", "install", "--quiet", "--python", str(self.bin / "python")]
        if _run([*install, "--offline", *requirements], check=False).returncode:
            _run([*install, *requirements])

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "AIRFLOW", "SPARK", "PYSPARK", "EOS", "VIRTUAL_ENV"))
        }
        clean |= {
            "PATH": f"{self.bin}{os.pathsep}{clean['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
        }
        return _run([str(self.bin / command[0]), *command[1:]], env=clean, check=check)

    def has(self, module: str) -> bool:
        return self.run("python", "-c", f"import {module}", check=False).returncode == 0


def _uv() -> str:
    own = ROOT / ".tool-venv" / "bin" / "uv"
    found = str(own) if own.exists() else shutil.which("uv")
    if found is None or _run([found, "--version"], check=False).returncode:
        pytest.skip("there is no uv to make an environment with")
    return found


def _run(
    command: list[str], *, env: dict[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        command,
        env=env,
        cwd=Path(sys.executable).anchor,  # not the project, where Python would find the package
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not check or ended.returncode == 0, (
        f"{command}\n{ended.stderr[-3000:]}\n{ended.stdout[-3000:]}"
    )
    return ended


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("base") / "venv", f"{ROOT}[cli]")


def test_the_command_line_works_without_airflow_and_spark(
    base: Environment, direct: Direct, kafka_broker: EmbeddedKafka, die_at: Callable[[str], None]
) -> None:
    assert not base.has("airflow")
    assert not base.has("pyspark")
    assert base.has("airflow_eos")
    source = direct.source = kafka_broker.create_topic(f"{direct.topic}-in")
    direct.feed_numbers(30)
    die_at("settled-some")
    with pytest.raises(RuntimeError):
        direct.run()
    die_at("")
    kafka = ("--bootstrap-servers", direct.bootstrap, "--json")

    def answer(command: str, *arguments: str, status: int = 0) -> Any:
        ended = base.run("airflow-eos", command, *arguments, *kafka, check=False)
        assert ended.returncode == status, ended.stderr
        return json.loads(ended.stdout)

    checkpoint = str(direct.checkpoint)
    assert len(answer("status", checkpoint)["open_work"]) == 2
    planned = answer("plan", checkpoint, status=SOMETHING_TO_DO)
    assert [step["action"] for step in planned["steps"]] == ["commit"] * 2
    recovered = answer("recover", checkpoint, "--force")
    assert [each["result"] for each in recovered["results"]] == ["done"] * 2
    assert answer("plan", checkpoint)["steps"] == []
    produce(direct.bootstrap, source, [row for task in direct.batches[0].tasks for row in task])
    audited = answer("audit", source, direct.topic, "--id", "value", "--checkpoint", checkpoint)
    assert (audited["rows_in"], audited["lost"], audited["duplicated"]) == (30, 0, 0)


def test_an_error_without_airflow_is_one_line(base: Environment, tmp_path: Path) -> None:
    nowhere = base.run("airflow-eos", "status", str(tmp_path / "no"), check=False)
    assert nowhere.returncode == 2
    assert "holds no Spark checkpoint" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr


def test_a_spark_app_gets_the_package_as_an_archive(
    base: Environment, kafka_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """``spark-submit --py-files``, in an environment that has the dependencies and not us."""
    archive = tmp_path / "airflow_eos.zip"
    base.run("airflow-eos", "package", "--output", str(archive))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    spark = [each for each in project["optional-dependencies"]["spark"] if "pyspark" not in each]
    environment = Environment(tmp_path / "venv", *project["dependencies"], *spark, "pyspark==4.2.0")
    assert not environment.has("airflow_eos")
    assert not environment.has("airflow")
    pipeline = Pipeline(kafka_broker, tmp_path)
    pipeline.feed(3000)
    app = pipeline.app(kind="shuffle")
    submit = ("spark-submit", "--master", "local[2]", "--jars", app.jars)
    settings = msgspec.json.encode(app).decode()
    environment.run(*submit, "--py-files", str(archive), str(APP), settings)
    pipeline.assert_exactly_once()
    assert pipeline.open_transactions() == ()

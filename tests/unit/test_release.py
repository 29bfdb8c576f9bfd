"""What is released: the wheel and the sdist, built, checked, installed and tried by themselves."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from datetime import date
from pathlib import Path

import pytest

import airflow_eos
from airflow_eos.core.delivery.port import SPARK
from tests.support.wheel import build_sdist, build_wheel, install, python, run

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PROJECT["project"]["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

MODULES = {
    name.strip()
    for layer in PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    for name in layer.split("|")
}
"""The rooms, all of which that contract names."""
LOCAL = {
    *("__init__", "__main__", "broker", "daemon", "guard", "jars", "process", "pytest_plugin"),
    *("rows", "s3"),
}
"""What users try things out with: the broker, and how an S3 is started. Others are the tests'."""
ALLOWED = (
    r"airflow_eos/(__init__\.py|py\.typed)",
    rf"airflow_eos/({'|'.join(sorted(MODULES - {'local'}))})(\.py|(/\w+)*/\w+\.py)",
    rf"airflow_eos/local/(({'|'.join(sorted(LOCAL))})\.py|log4j2\.xml)",
    r"airflow_eos/local/locks/(avro|hadoop-aws|kafka|spark)-[\d.]+\.lock",
    r"airflow_eos/ops/page/static/\w+\.(js|css|svg|html)",
    r"airflow_eos/sinks/java/(\w+\.java|eos-sink\.jar)",
    r"airflow_eos/cli/templates/(\w+/)?[\w-]+\.(md|json|toml)",
    r"airflow_eos/examples/(dags|spark_apps)/\w+\.py",
    r"airflow_provider_eos-[\d.]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)",
)
AT_THE_ROOT = {
    *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"),
    *("airflow_eos", "dags", "demo", "spark_apps"),
}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_version_package_and_changelog_name_the_same_release_and_its_day():
    assert airflow_eos.__version__ == VERSION
    newest = re.search(r"^## \[(.+)\] - (.+)$", CHANGELOG, re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION
    assert date.fromisoformat(newest[2]) >= date(2026, 11, 26)
    assert f"\n[{VERSION}]: " in CHANGELOG


def test_errors_and_the_page_name_the_same_releases_of_spark():
    assert SPARK in (ROOT / "docs/install.md").read_text(encoding="utf-8")


def test_the_changelog_begins_with_the_first_release():
    sections = re.findall(r"^## \[(.+?)\]", CHANGELOG, re.MULTILINE)
    assert sections[-1] == "0.1.0"


def test_an_index_would_take_both_files(sdist, wheel):
    python("twine", "check", "--strict", sdist, wheel, cwd=ROOT)


def test_no_file_of_the_tests_is_in_the_wheel(wheel):
    """No test server, no list of jars that only they use."""
    with zipfile.ZipFile(wheel) as whole:
        names = whole.namelist()
    may_be = re.compile("|".join(ALLOWED))
    assert [name for name in names if may_be.fullmatch(name) is None] == []
    assert not [name for name in names if re.search("embedded|emulator", name)]


def test_what_a_user_copies_or_sees_is_in_the_wheel(wheel):
    """A file that is not Python is easily left out."""
    with zipfile.ZipFile(wheel) as whole:
        names = set(whole.namelist())
    not_python = ("ops/page/static/*", "cli/templates/**/*", "local/locks/*", "sinks/java/*")
    for pattern in (*not_python, "**/*.py"):
        files = [file for file in (ROOT / "airflow_eos").glob(pattern) if file.is_file()]
        files = [file for file in files if file.parent.name != "__pycache__"]
        assert files
        assert {file.relative_to(ROOT).as_posix() for file in files} <= names
    for folder in ("dags", "spark_apps"):
        for file in (ROOT / folder).glob("*.py"):
            assert f"airflow_eos/examples/{folder}/{file.name}" in names


def test_the_sdist_has_what_the_wheel_is_built_of_and_the_demo(sdist):
    with tarfile.open(sdist) as whole:
        paths = [Path(name).parts for name in whole.getnames()]
    assert {parts[1] for parts in paths if len(parts) > 1} == AT_THE_ROOT


def test_the_wheel_alone_writes_a_pipeline_that_python_reads(installed, tmp_path):
    program = installed / "airflow-eos"
    where = run(
        installed / "python", "-c", "import airflow_eos; print(airflow_eos.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(installed.parent)
    for kind in ("map", "windows", "upsert"):
        said = run(program, "new", f"orders_{kind}", "--kind", kind, cwd=tmp_path)
        assert f"airflow-eos try orders_{kind}" in said
    run(installed / "python", "-m", "compileall", "-q", ".", cwd=tmp_path)
    commands = run(program, "--help", cwd=tmp_path)
    assert all(name in commands for name in ("try", "new", "plan", "recover", "doctor"))
    assert "Kill a streaming app" in run(program, "try", "--help", cwd=tmp_path)

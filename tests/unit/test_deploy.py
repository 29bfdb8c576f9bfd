"""What ``deploy/`` names is there: options of the app, extras, settings of Spark, files."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from airflow_eos.local import jars
from airflow_eos.sinks.app import argument_parser
from airflow_eos.supervision.packaging import spark_side

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SUBMIT = DEPLOY / "kubernetes" / "spark-submit.sh"
APPLICATION: dict[str, Any] = yaml.safe_load(
    (DEPLOY / "kubernetes" / "spark-application.yaml").read_text()
)["spec"]
RBAC = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "rbac.yaml").read_text()))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORDS = shlex.split(SUBMIT.read_text().replace("\\\n", " "), comments=True)


def app_of(words: list[str]) -> tuple[str, list[str]]:
    at = next(i for i, word in enumerate(words) if word.startswith("local://"))
    return words[at], words[at + 1 :]


def conf() -> dict[str, str]:
    settings = (WORDS[i + 1] for i, word in enumerate(WORDS) if word == "--conf")
    return dict(setting.split("=", 1) for setting in settings)


def test_what_is_copied_into_the_image_is_no_environment_and_no_history():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".git", ".venv", ".tool-venv", ".build"} <= set(ignored)
    needed = {"airflow_eos", "dags", "spark_apps", "pyproject.toml", "README.md", "LICENSE"}
    assert not needed & set(ignored)


def test_both_ways_start_the_same_app_with_the_same_arguments():
    there = (APPLICATION["mainApplicationFile"], APPLICATION["arguments"])
    assert app_of(WORDS) == there


def test_the_app_is_in_the_wheel_and_takes_these_arguments():
    file, arguments = app_of(WORDS)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sources = folders["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    inside = file.partition("site-packages/")[2]
    folder = next(here for here, there in sources.items() if inside.startswith(f"{there}/"))
    source = (ROOT / folder / Path(inside).name).read_text()
    parser = argument_parser("", prefix="p")
    for name in re.findall(r'add_argument\("(--[\w-]+)"', source):
        parser.add_argument(name)
    assert parser.parse_args(arguments).checkpoint == "s3a://checkpoints/orders-etl"


def test_the_extras_of_the_image_are_extras_of_the_package():
    named = {e for group in re.findall(r"/src\[([\w,]+)\]", DOCKERFILE) for e in group.split(",")}
    named |= {e for group in re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE) for e in group.split(",")}
    assert named == {"spark", "cli", "hdfs", "postgres"}
    assert named <= PROJECT["optional-dependencies"].keys()


def test_the_image_and_the_manifest_are_of_the_spark_that_the_package_pins():
    (pinned,) = (r for r in PROJECT["optional-dependencies"]["spark"] if r.startswith("pyspark=="))
    version = pinned.partition("==")[2]
    assert f"ARG SPARK=apache/spark:{version}-" in DOCKERFILE
    assert APPLICATION["sparkVersion"] == version


def test_the_image_has_the_pandas_that_spark_asks_for_on_the_driver():
    (wanted,) = (r for r in PROJECT["optional-dependencies"]["spark"] if r.startswith("pandas"))
    assert f'pip install --no-cache-dir "/src[${{EXTRAS}}]" "{wanted}"' in DOCKERFILE


def test_the_image_has_the_jars_of_the_file_system_that_the_checkpoint_is_on():
    (named,) = re.findall(r'^ARG JARS="([\w ]+)"$', DOCKERFILE, re.MULTILINE)
    named += "".join(f" {other}" for other in re.findall(r"--build-arg JARS=(\w+)", DOCKERFILE))
    assert all(callable(getattr(jars, name)) for name in named.split())
    assert "--checkpoint=s3a://checkpoints/orders-etl" in APPLICATION["arguments"]
    assert "s3a_jars" in named.split()


def test_the_variables_are_read_by_the_package():
    read = "\n".join(path.read_text() for path in spark_side().values())
    named = {each["name"] for each in APPLICATION["driver"]["env"]}
    named |= {name.rpartition(".")[2] for name in conf() if ".driverEnv." in name}
    assert named == {"EOS_KAFKA_CONFIG_FILE"}
    assert all(f'"{name}"' in read for name in named)


def test_every_setting_is_one_of_spark():
    """Found in its classes: a setting with another spelling would be ignored without a word."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "jars"
    known = b""
    for jar, classes in (
        ("spark-kubernetes_*.jar", ("k8s/Config$.class", "k8s/Config.class")),
        ("spark-core_*.jar", ("internal/config/package$.class",)),
    ):
        (path,) = folder.glob(jar)
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(classes):
                    known += archive.read(name)
    prefixed = ("spark.kubernetes.driver.secrets.", "spark.kubernetes.driverEnv.")
    assert conf()
    for name in conf():
        wanted = next((prefix for prefix in prefixed if name.startswith(prefix)), name)
        # A constant is kept whole; one that begins with another may be put together from it.
        tail = wanted.removeprefix("spark.kubernetes.authenticate.driver.")
        assert wanted.encode() in known or (tail != wanted and tail.encode() in known), name


def test_the_driver_runs_as_the_account_that_has_the_rights_and_nobody_restarts_it():
    named: dict[str, list[str]] = {}
    for each in RBAC:
        named.setdefault(each["kind"], []).append(each["metadata"]["name"])
        if each["kind"] == "RoleBinding":
            assert (
                each["subjects"][0]["name"] == each["roleRef"]["name"] == each["metadata"]["name"]
            )
    accounts = ["eos-spark", "eos-submit"]
    assert named == dict.fromkeys(("ServiceAccount", "Role", "RoleBinding"), accounts)
    assert APPLICATION["driver"]["serviceAccount"] == "eos-spark"
    assert conf()["spark.kubernetes.authenticate.driver.serviceAccountName"] == "eos-spark"
    assert APPLICATION["restartPolicy"] == {"type": "Never"}


def test_the_script_is_one_that_a_shell_can_read():
    subprocess.run(["sh", "-n", str(SUBMIT)], check=True)
    assert SUBMIT.stat().st_mode & 0o111

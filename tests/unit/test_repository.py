"""The project's own pages and files: workflows, hooks, forms, ``deploy/`` and ``make matrix``."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from airflow_eos.local import jars
from airflow_eos.ops.packaging import spark_side
from airflow_eos.sinks.app import argument_parser

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [f for f in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if f.name != "config.yml"]
LINT = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def steps() -> list[dict[str, Any]]:
    jobs = [job for file in WORKFLOWS for job in read(file)["jobs"].values()]
    return [step for job in jobs for step in job.get("steps", ())]


MAY_MORE = {
    "release": {"publish": {"id-token": "write"}},
    "night": {"tables": {"contents": "write"}},
}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_no_workflow_may_do_more_than_read_but_for_a_job_that_publishes_or_commits_tables(file):
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    more = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    assert more == MAY_MORE.get(file.stem, {})


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_job_ends_some_time(file):
    most = 350 if file.stem == "night" else 90  # nobody waits for it, and the service allows 360
    for job in read(file)["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= most


def test_no_workflow_has_a_secret_or_runs_what_a_stranger_has_written_into_a_name():
    for file in WORKFLOWS:
        assert "secrets." not in file.read_text()
    for step in steps():
        assert "${{" not in step.get("run", "")


def test_every_action_is_the_commit_of_a_version_and_none_that_moves():
    """Who may move a tag or a branch of an action would run, and publish, what he likes."""
    lines = [line.strip() for file in WORKFLOWS for line in file.read_text().splitlines()]
    used = [line.removeprefix("- ") for line in lines if line.removeprefix("- ").startswith("uses")]
    assert len(used) > 10
    for each in used:
        if each != "uses: ./.github/workflows/ci.yml":
            assert re.fullmatch(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_the_service_runs_what_everybody_runs():
    job = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]
    ran = [step.get("run") for step in job["steps"]]
    assert ran[-2:] == ["sudo scripts/servers", ".ci/run"], "nobody is root there"


def test_what_a_change_does_not_wait_for_runs_each_night():
    workflow: dict[Any, Any] = {**read(ROOT / ".github/workflows/night.yml")}
    assert "schedule" in workflow[True], "YAML takes the key `on` for a truth"
    ran = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert {"make long", "make proof"} <= set(ran)


def test_who_may_write_the_nights_tables_runs_nothing_of_the_project():
    """A dependency that was taken over would write into the repository."""
    job = read(ROOT / ".github/workflows/night.yml")["jobs"]["tables"]
    [script] = [step["run"] for step in job["steps"] if "run" in step]
    begins = {line.split()[0] for line in script.splitlines()}
    assert begins == {"for", "git"}
    assert set(job["needs"]) == {"long", "proof"}


def test_the_versions_that_are_declared_are_tried_each_week():
    workflow: dict[Any, Any] = {**read(ROOT / ".github/workflows/matrix.yml")}
    assert "schedule" in workflow[True], "YAML takes the key `on` for a truth"
    assert workflow["jobs"]["matrix"]["steps"][-1]["run"] == "make matrix"


def test_a_release_waits_for_the_tests_and_for_the_wheel():
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "build"}
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"


def test_the_hooks_of_a_commit_are_the_checks_of_make_lint_and_the_size():
    [repo] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in repo["hooks"]]
    assert LINT is not None
    for line in LINT[1].splitlines():
        tool, *arguments = line.removeprefix("\t$(BIN)/").split()
        what = arguments[0] if tool == "ruff" else ""
        assert [each for each in entries if each.startswith(f"{tool} {what}".strip())], line
    assert [each for each in entries if each.endswith("tests/unit/test_size.py")]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_has_what_github_wants_of_it(form):
    found = read(form)
    assert {"name", "description", "body"} <= found.keys()
    fields = [field for field in found["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_a_report_of_a_bug_asks_for_the_hazard_and_for_what_the_checkpoint_says():
    fields = {f.get("id"): f for f in read(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"]}
    broken = " ".join(fields["broken"]["attributes"]["options"])
    for word in ("lost", "twice", "reordered", "too early", "stuck"):
        assert word in broken
    assert "status CHECKPOINT --json" in fields["status"]["attributes"]["label"]
    assert "plan CHECKPOINT" in fields["plan"]["attributes"]["label"]
    assert fields["hazard"]["validations"]["required"]


# --- What ``deploy/`` names is there: options of the app, extras, settings of Spark, files --------


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


# --- The logic of ``make matrix``, with programs that stand for uv and for the Pythons ------------


SCRIPT = Path(__file__).parents[2] / "scripts" / "matrix"
PYTHON = """#!/bin/sh
case "$2" in
    *executable*) echo "$0" ;;
    *python_version*) echo "{version}.1" ;;
    *) echo "what: $*" >&2; exit 9 ;;
esac
"""
UV = """#!/bin/sh
# A venv's python stands for pytest: it fails where the test says so.
case "$1 $2" in
    "--version "*) echo uv ;;
    "venv --quiet")
        mkdir -p "$5/bin"
        printf '#!/bin/sh\\necho "3 passed in 0.1s"\\nexit %s\\n' "$FAILS" >"$5/bin/python"
        chmod +x "$5/bin/python" ;;
    "pip compile")
        for each; do [ "$each" = - ] && read -r asked && echo "$asked==9.8.7" && exit; done
        for each; do case "$each" in *.in) cat "$each" >>"$HOME/$(basename "$each")" ;; esac; done
        while [ $# -gt 1 ]; do
            [ "$1" = --output-file ] && printf \
                'apache-airflow==3.1.0 ; x  # (pyproject.toml)\\napache-airflow-core==9\\n%s\\n' \\
                'pyspark==4.0.0  # via -r lowest.in' >"$2"
            shift
        done ;;
    "pip install") exit "$INSTALL" ;;
esac
"""


PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture
def matrix(tmp_path):
    """Run it where these Pythons are there; its exit status, what it said, the table."""
    here = tmp_path / "bin"
    here.mkdir()
    result = tmp_path / "RESULT.md"

    def program(name: str, text: str) -> None:
        (here / name).write_text(text)
        (here / name).chmod(0o755)

    def run(
        *pythons: str, fails: int = 0, install: int = 0, may_lack: str = ""
    ) -> tuple[int, str, str]:
        program("uv", UV)
        for version in pythons:
            program(f"python{version}", PYTHON.format(version=version))
        for version in set(PYTHONS) - set(pythons):
            program(f"python{version}", "#!/bin/sh\nexit 127\n")  # hides one of this machine
        done = subprocess.run(
            [str(SCRIPT)],
            env={
                "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "EOS_MATRIX_RESULT": str(result),
                "EOS_MATRIX_MAY_LACK": may_lack,
                "FAILS": str(fails),
                "INSTALL": str(install),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, result.read_text()

    return run


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_all_that_there_is_passes_and_is_written_down_with_its_versions(matrix):
    status, said, table = matrix(*PYTHONS)
    assert status == 0, said
    assert rows(table) == [
        ["lowest", "3.11.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-spark", "3.11.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.11", "3.11.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.12", "3.12.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.13", "3.13.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
        ["newest-3.14", "3.14.1", "3.1.0", "4.0.0", "3 passed in 0.1s"],
    ]
    assert "`make matrix` wrote this on 2" in table


def test_what_is_newest_the_registry_says_and_no_pin_of_ours(matrix, tmp_path):
    matrix(*PYTHONS)
    assert (tmp_path / "newest.in").read_text().split() == [
        *("apache-airflow==9.8.7", "pandas>=2.2,<3"),
        *("pyspark-client==9.8.7", "pyspark==9.8.7"),
    ] * 4
    assert (tmp_path / "spark.in").read_text().split() == ["pyspark==9.8.7", "pandas>=2.2,<3"]


def test_a_python_that_is_missing_is_not_run_and_no_success(matrix):
    status, said, table = matrix("3.11", "3.12", "3.13")
    assert status == 2
    assert "not run: newest-3.14" in said
    assert rows(table)[-1][0::4] == ["newest-3.14", "not run: no python3.14 on PATH"]


def test_one_that_may_lack_is_not_run_and_said_so_all_the_same(matrix):
    status, _, table = matrix("3.11", "3.12", "3.13", may_lack="3.14")
    assert status == 0
    assert "not run" in rows(table)[-1][-1]
    status, *_ = matrix("3.11", "3.12", may_lack="3.14")
    assert status == 2, "3.13 may not"


def test_what_fails_is_said_after_all_have_been_tried(matrix):
    status, said, table = matrix(*PYTHONS, fails=1)
    assert status == 1
    assert "failed on lowest newest-spark newest-3.11 newest-3.12 newest-3.13 newest-3.14" in said
    assert all(row[-1].startswith("failed: ") for row in rows(table))


def test_an_environment_that_cannot_be_made_is_a_failure_and_stops_no_other(matrix):
    status, _, table = matrix(*PYTHONS, install=1)
    assert status == 1
    assert [row[-1] for row in rows(table)] == ["failed: its environment could not be made"] * 6

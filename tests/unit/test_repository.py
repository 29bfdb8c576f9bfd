"""What runs on the project's own pages: workflows, hooks and forms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

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


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_no_workflow_may_do_more_than_read_but_for_the_one_that_publishes(file):
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    more = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job
    }
    assert more == ({"publish": {"id-token": "write"}} if file.stem == "release" else {})


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_job_ends_some_time(file):
    for job in read(file)["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 90


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

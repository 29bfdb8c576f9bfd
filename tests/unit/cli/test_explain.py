"""``airflow-eos explain`` has a page of every error; the docs' table is made of the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.cli.explain import ERRORS, explain, reference
from airflow_eos.errors import NO_RETRY_HEALS, ConfigurationError, EosError, advice

ROOT = Path(__file__).parents[3]


def told(*line: str) -> list[dict[str, str]]:
    ran = CliRunner().invoke(app, ["explain", *line, "--json"])
    assert ran.exit_code == 0, ran.output
    return list(json.loads(ran.stdout))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_each_error_says_where_to_look_and_what_to_do(kind: type[EosError]) -> None:
    (page,) = told(f"app.py: {kind.__name__}: something was found")
    assert page["error"] == kind.__name__
    assert page["do"] == advice(kind.remedies)
    assert len(page["means"]) > 20
    assert len(kind.__dict__.get("look", "")) > 20, "it says what its base class says"
    assert ("78" in page["restart"]) == issubclass(kind, NO_RETRY_HEALS)


def test_the_docs_say_the_same() -> None:
    said = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert said == reference(), "run python -m airflow_eos.cli.explain > docs/reference/errors.md"


def test_what_is_misspelt_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean OwnershipError"):
        explain(["OwnershpError"])
    assert [page["error"] for page in told("ownershiperror")] == ["OwnershipError"]


def test_the_exit_status_of_an_app_is_explained_by_the_errors_that_have_it() -> None:
    named = {page["error"] for page in told("78")}
    assert {kind.__name__ for kind in NO_RETRY_HEALS} <= named
    assert "StoreError" not in named


def test_as_a_process_it_prints_a_page() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "airflow_eos", "explain", "OwnershipError"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith("OwnershipError\n  means ")
    assert said.stderr == ""


@pytest.mark.parametrize("command", ["status", "explain", "broker stop", "foreign recover"])
def test_a_flag_is_shown_without_a_value_and_an_argument_as_the_docs_call_it(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"]).output
    assert "--json" in shown
    assert "bool" not in shown
    assert "checkpoint}" not in shown

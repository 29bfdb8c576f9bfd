"""docs/reference/commands.md is what Typer prints of the command line."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = "docs/reference/commands.md"
PRINTS = "typer airflow_eos.cli.app utils docs --name airflow-eos --output"


def named(page: str) -> list[str]:
    """Commands, options and arguments, without how a Typer writes their types."""
    return re.findall(r"^(?:#+ `.*?`|\* `.*?(?=[] `]))", page.replace("`[", "`"), re.MULTILINE)


def test_the_page_has_each_command_and_option_as_the_parser_has_it(tmp_path: Path) -> None:
    """Word by word with the Typer of uv.lock, which printed it; by name with any other."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (locked,) = (each["version"] for each in lock["package"] if each["name"] == "typer")
    new = tmp_path / "commands.md"
    command = [sys.executable, "-m", *shlex.split(PRINTS), str(new)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    printed, kept = (each.read_text(encoding="utf-8") for each in (new, ROOT / PAGE))
    assert len(named(printed)) > 100
    assert named(kept) == named(printed), f"run python -m {PRINTS} {PAGE}"
    assert version("typer") != locked or kept == printed, f"run python -m {PRINTS} {PAGE}"

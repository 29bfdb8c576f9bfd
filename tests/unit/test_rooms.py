"""The contract on who knows a kind of sink leaves nobody out; what a kind costs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from airflow_eos.participants import KINDS as PARTICIPANTS

grimp = pytest.importorskip("grimp", reason="it comes with import-linter")

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
[NO_KIND] = [each for each in CONTRACTS if each["name"] == "The core knows the port, and no kind"]
pytestmark = pytest.mark.unit
SINKS = "airflow_eos.sinks"
ROOMS = ("airflow_eos.kafka", "airflow_eos.participants.")


def test_a_part_of_the_sinks_that_knows_no_kind_is_kept_from_knowing_one():
    graph = grimp.build_graph("airflow_eos", exclude_type_checking_imports=True, cache_dir=None)
    kinds = [each for each in graph.modules if each.startswith(ROOMS)]
    parts = graph.find_children(SINKS)
    free = {
        part
        for part in parts
        if not any(graph.chain_exists(part, kind, as_packages=True) for kind in kinds)
    }
    named = {each for each in NO_KIND["source_modules"] if each.startswith(SINKS)}
    assert len(free) > len(parts) / 2
    assert free == named


@pytest.mark.parametrize(
    "kind", [kind for kind, home in PARTICIPANTS.items() if f".participants.{kind}." in home]
)
def test_a_kind_costs_its_rooms_and_a_line_in_each_registry(kind):
    """``docs/write-a-sink.md`` lists the lines. Other kinds may build on it, and nobody else."""
    named = re.compile(rf"\b(participants|sinks)\.(kinds\.)?{kind}\b")
    found = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "airflow_eos").rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
    registries = {"airflow_eos.participants.__init__", f"{SINKS}.__init__"}
    assert found >= registries
    of_kinds = {
        each
        for each in found
        if each.startswith(("airflow_eos.participants.", f"{SINKS}."))
        and each not in NO_KIND["source_modules"]
    }
    assert found == of_kinds

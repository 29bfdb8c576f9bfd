"""The contract on who knows a kind of sink leaves nobody out, also a module of tomorrow."""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
[NO_KIND] = [each for each in CONTRACTS if each["name"] == "The core knows the port, and no kind"]
SINKS = "airflow_eos.sinks"
KINDS = ("airflow_eos.kafka", "airflow_eos.participants.")


def test_a_part_of_the_sinks_that_knows_no_kind_is_kept_from_knowing_one():
    graph = grimp.build_graph("airflow_eos", exclude_type_checking_imports=True, cache_dir=None)
    kinds = [each for each in graph.modules if each.startswith(KINDS)]
    parts = graph.find_children(SINKS)
    free = {
        part
        for part in parts
        if not any(graph.chain_exists(part, kind, as_packages=True) for kind in kinds)
    }
    named = {each for each in NO_KIND["source_modules"] if each.startswith(SINKS)}
    assert len(free) > len(parts) / 2
    assert free == named

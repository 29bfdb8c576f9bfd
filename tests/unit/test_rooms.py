"""Who knows a kind of sink, what a kind costs, which files stand alone, what a class is called."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from airflow_eos.participants import KINDS

grimp = pytest.importorskip("grimp", reason="it comes with import-linter")

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.unit
REGISTRIES = {
    "airflow_eos.participants",  # name to participant
    "airflow_eos.delivery.options",  # name to options
    "airflow_eos.sinks.__init__",  # names that users import
}
KAFKA_IS_ASKED_ITSELF = {
    "airflow_eos.commands.doctor",
    "airflow_eos.sinks.app",
    "airflow_eos.supervision.doctor",
    "airflow_eos.supervision.preflight",
}
"""The app reads from Kafka, and the doctor and the preflight ask about its cluster."""


def _modules() -> dict[str, Path]:
    return {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path
        for path in (ROOT / "airflow_eos").rglob("*.py")
        if "templates" not in path.parts
    }


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_kind_is_one_folder_and_its_lines_in_the_registries(kind):
    """``docs/write-a-sink.md`` lists the lines. Other kinds may build on it, and nobody else."""
    named = re.compile(rf"\bairflow_eos\.kinds\.{kind}\b")
    outside = {
        name
        for name, path in _modules().items()
        if named.search(path.read_text(encoding="utf-8")) and ".kinds." not in name
    }
    allowed = REGISTRIES | (KAFKA_IS_ASKED_ITSELF if kind in {"kafka", "consumer_group"} else set())
    assert outside <= allowed


ALONE = {
    "airflow_eos.commands": "a command each",
    "airflow_eos.factory": "a DAG each",
    "airflow_eos.figures": "what is not imported where nothing is measured",
    "airflow_eos.kafka.records": "Numba is loaded by one of them alone, beside",
    "airflow_eos.kinds": "walls between driver, worker and recovery",
    "airflow_eos.page": "the browser's and the API's side",
    "airflow_eos.plugins": "loaded by Airflow's API server",
    "airflow_eos.sources": "driver, plan and worker: each process loads its own",
}
"""Folders in which a module may have one importer, and why it stands alone all the same."""
AT_MOST_ELSEWHERE = 15


def test_a_module_with_one_importer_in_its_own_folder_has_a_reason():
    graph = grimp.build_graph("airflow_eos", exclude_type_checking_imports=False, cache_dir=None)
    alone: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        folder = module.rpartition(".")[0]
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1 and next(iter(importers)).rpartition(".")[0] == folder:
            alone[folder].add(module)
    without = {
        module
        for folder, modules in alone.items()
        if not any(folder == known or folder.startswith(f"{known}.") for known in ALONE)
        for module in modules
    }
    assert len(without) <= AT_MOST_ELSEWHERE, sorted(without)


def test_a_class_name_has_one_meaning():
    """Private ones too: who searches for a name, or reads it in an error, finds one class."""
    defined: dict[str, list[str]] = defaultdict(list)
    for module, path in _modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(module)
    assert {name: homes for name, homes in defined.items() if len(homes) > 1} == {}

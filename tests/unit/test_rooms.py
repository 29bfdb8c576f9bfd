"""Who knows a kind of sink, what a kind costs, which files stand alone, what a class is called."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from airflow_eos.core.participants import KINDS, home_of

grimp = pytest.importorskip("grimp", reason="it comes with import-linter")

ROOT = Path(__file__).parents[2]
REGISTRIES = {
    "airflow_eos.core.participants",  # name to participant
    "airflow_eos.core.delivery.options",  # name to options
    "airflow_eos.sinks.__init__",  # names that users import
}
KAFKA_IS_ASKED_ITSELF = {
    "airflow_eos.cli.doctor",
    "airflow_eos.sinks.app",
    "airflow_eos.ops.doctor",
    "airflow_eos.ops.supervision.preflight",
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
    home = re.escape(home_of(kind)) + (r"\.(sink|participant|preflight)" if kind == "kafka" else "")
    named = re.compile(rf"\b{home}\b")
    outside = {
        name
        for name, path in _modules().items()
        if not name.startswith((home_of(kind), "airflow_eos.kinds."))
        and named.search(path.read_text(encoding="utf-8"))
    }
    allowed = REGISTRIES | (KAFKA_IS_ASKED_ITSELF if kind in {"kafka", "consumer_group"} else set())
    assert outside <= allowed


ALONE = {
    "__main__": "says what is not installed, before what needs it is imported",
    "arrow.producer.partitioner": "which partition a row goes to; the writer is long",
    "arrow.producer.sender": "requests on their way, in order; the writer is long",
    "arrow.records.numba_kernels": "it alone loads Numba, where that is there",
    "arrow.source.columns": "what Spark would make of a sink's columns; loaded where no Spark does",
    "arrow.source.stream": "Spark's planner of ranges, by the base classes of its data sources",
    "core.delivery.exactly_once": "one of three guarantees; the other two share their marks",
    "core.delivery.progress_lines": "what a driver says; what it beats is long",
    "core.delivery.rehearsal": "a mode of its own beside the start, which is long",
    "core.delivery.standby": "a mode of its own beside the start, which is long",
    "factory.recovery": "the DAG that recovers; the watchdog is long",
    "kinds.delta.merge": "what becomes of a table's files; the participant decides and commits",
    "kinds.iceberg.history": "it alone loads pyiceberg at its top, where that is there",
    "kinds.iceberg.creation": "what a first start alone does, and where Spark reads columns",
    "operators.submission": "what Airflow must not import to parse a DAG",
    "ops.audit.compare": "rows held against rows; reading them is another file",
    "ops.page.pipeline_state": "one checkpoint; the board is many of them, on threads",
    "plugins.actions": "what a button does; the application asks whether one may",
    "plugins.application": "loaded by Airflow's API server alone",
}
"""Modules with one importer, which lies in their own folder, and why each stands alone."""
LOADED_BY_NAME = re.compile(r"kinds\.\w+\.participant|cli\.\w+")
"""What finds them is ``core.participants``, and the list of commands in ``cli.app``."""


def test_a_module_with_one_importer_in_its_own_folder_has_a_reason():
    graph = grimp.build_graph("airflow_eos", exclude_type_checking_imports=False, cache_dir=None)
    alone = set()
    for module in graph.modules:
        importers = graph.find_modules_that_directly_import(module)
        if {each.rpartition(".")[0] for each in importers} == {module.rpartition(".")[0]}:
            name = module.removeprefix("airflow_eos.")
            if len(importers) == 1 and not LOADED_BY_NAME.fullmatch(name):
                alone.add(name)
    assert alone == set(ALONE)


PUBLIC = re.compile(
    r"airflow(\.(sdk|providers|triggers|configuration|exceptions|plugins_manager|cli\.cli_config)"
    r"(\..*)?)?"
)
"""What Airflow documents for providers and plugins; of its command line, what providers extend."""


def _private() -> dict[str, set[str]]:
    """Modules, and what they use of Airflow that is not public."""
    private = {}
    for module, path in _modules().items():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        named = {each.module or "" for each in nodes if isinstance(each, ast.ImportFrom)}
        named |= {a.name for each in nodes if isinstance(each, ast.Import) for a in each.names}
        of_airflow = {each for each in named if each.partition(".")[0] == "airflow"}
        private[module] = {each for each in of_airflow if not PUBLIC.fullmatch(each)}
    return {module: found for module, found in private.items() if found}


def test_one_module_alone_uses_what_airflow_may_change_at_any_time():
    assert set(_private()) == {"airflow_eos.plugins.internals"}


def test_what_is_used_though_airflow_may_change_it_has_a_reason():
    reasons = (ROOT / "notes" / "versions.md").read_text(encoding="utf-8")
    (used,) = _private().values()
    assert [each for each in sorted(used) if f"`{each}`" not in reasons] == []


def test_a_class_name_has_one_meaning():
    """Private ones too: who searches for a name, or reads it in an error, finds one class."""
    defined: dict[str, list[str]] = defaultdict(list)
    for module, path in _modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(module)
    assert {name: homes for name, homes in defined.items() if len(homes) > 1} == {}


def test_no_circle_of_files_annotations_included():
    """The linter's contract asks the same of imports at run time, among all levels."""
    graph = grimp.build_graph("airflow_eos", exclude_type_checking_imports=False, cache_dir=None)
    packages = {module for module in graph.modules if graph.find_children(module)}
    circles = {each: graph.nominate_cycle_breakers(each) for each in packages}
    assert {package: found for package, found in circles.items() if found} == {}

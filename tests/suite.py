"""What ``make test`` runs: the tests of its expression, or of them those that a room can break.

``python -m tests.suite`` says the expression of pytest's ``-m``; ``python -m tests.suite
kinds/postgres`` the files of tests that import that room, by whatever way.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT = ("browser", "cluster", "demo", "examples", "long", "proof")
"""Markers of what ``make test`` leaves to the command of that name."""
EXPRESSION = " and ".join(f"not {marker}" for marker in LEFT)
_FOLDERS = ("airflow_eos", "dags", "demo", "spark_apps", "tests")


def files_of(room: str) -> list[str]:
    """The files of tests that import the room, or what imports it, and so on; conftests count.

    Args:
        room: as a folder or module of the package: ``kinds/postgres``, ``lineage``.

    Raises:
        SystemExit: the package has no such room.
    """
    name = ".".join(("airflow_eos", *Path(room.removesuffix(".py")).parts))
    paths, importers = _importers()
    reached = {each for each in paths if each == name or each.startswith(f"{name}.")}
    if not reached:
        raise SystemExit(f"airflow_eos has no room {room}: name a folder or module of it.")
    new = set(reached)
    while new:
        new = {each for module in new for each in importers[module]} - reached
        reached |= new
    tests = (paths[each] for each in reached if paths[each].name.startswith("test_"))
    return sorted(path.relative_to(ROOT).as_posix() for path in tests)


@cache
def _importers() -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Every module's file, and who imports it; a test, the conftest of its folder."""
    paths = {_module(path): path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")}
    graph, importers = _Graph(paths), defaultdict[str, set[str]](set)
    for module, path in paths.items():
        for imported in graph.imports(module):
            importers[imported].add(module)
        if path.name.startswith("test_"):
            importers[_module(path.with_name("conftest.py"))].add(module)
    return paths, importers


class _Graph:
    """Who imports whom, once each name is followed through the packages that only pass it on."""

    def __init__(self, paths: dict[str, Path]) -> None:
        self._trees = {
            name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()
        }
        self._homes = {
            name: {
                alias.asname or alias.name: (node.module, alias.name)
                for node in ast.walk(self._trees[name])
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
            }
            for name, path in paths.items()
            if path.name == "__init__.py"
        }

    def imports(self, module: str) -> Iterator[str]:
        helps = module.startswith("tests.") and ".test_" not in module
        for node in _running(self._trees[module], into_functions=not helps):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._places(node.module, alias.name)
            elif isinstance(node, ast.Constant) and node.value in self._trees:
                yield node.value

    def _places(self, package: str, name: str) -> Iterator[str]:
        yield package
        if f"{package}.{name}" in self._trees:
            yield f"{package}.{name}"
        elif name in self._homes.get(package, {}):
            yield from self._places(*self._homes[package][name])


def _running(tree: ast.AST, *, into_functions: bool) -> Iterator[ast.AST]:
    """All nodes but those of ``if TYPE_CHECKING``, which no run has.

    What a fixture or a helper of tests imports in a function is for the tests that ask it to:
    these import it as well.
    """
    for node in ast.iter_child_nodes(tree):
        test = node.test if isinstance(node, ast.If) else None
        if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
            continue
        if into_functions or not isinstance(node, ast.FunctionDef):
            yield node
            yield from _running(node, into_functions=into_functions)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


if __name__ == "__main__":
    sys.stdout.write(" ".join(files_of(sys.argv[1])) if sys.argv[1:] else EXPRESSION)

"""What a reader copies out of a page works: it compiles, its imports are there, and it runs.

A block is *complete* where it gives every name that it uses, and no ``...`` stands for the
reader's own. Complete blocks are run; of all, the imports and the calls are held against the
package. A command line is read as its program reads it, which is not run.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import airflow.sdk
import pytest
import typer

from airflow_eos.cli.app import app
from airflow_eos.factory import Pipeline, eos_drill, eos_pipeline, eos_upgrade

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = ("sinks", "recovery", "operators", "sensors", "events", "sources", "local", "factory")
# Tables, sessions, transformations and addresses that are the reader's; else a name is misspelt.
READERS = {
    "...", "SlackNotifier", "SlackWebhookNotifier", "TapeSink", "__file__", "app", "as_rows",
    "checkpoint", "cleaned", "df", "dsn", "kafka", "orders", "parsed_orders", "parsed_payments",
    "sink", "spark", "totals", "transform",
}  # fmt: skip
FACTORY = (eos_drill, eos_pipeline, eos_upgrade)
"""They take the fields of a pipeline."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            line = text[: found.start(1)].count("\n") + 1
            name = f"{page.relative_to(ROOT).as_posix()}:{line}"
            yield pytest.param(found[1], id=name)


BLOCKS = list(blocks())


def our_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_eos"):
            yield from ((str(node.module), name.name) for name in node.names)


def public() -> dict[str, Any]:
    rooms = [importlib.import_module(f"airflow_eos.{room}") for room in PUBLIC]
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


def accepted(called: Any) -> set[str]:
    """The names of all arguments; those of the classes above too, where there are ``**kwargs``."""
    own = inspect.signature(called).parameters
    names = set(own)
    if any(each.kind is each.VAR_KEYWORD for each in own.values()) and inspect.isclass(called):
        above = (vars(each).get("__init__") for each in called.__mro__[1:-1])
        names.update(*(inspect.signature(init).parameters for init in above if init))
    return names | (accepted(Pipeline) if called in FACTORY else set())


def unknown_arguments(tree: ast.AST, known: dict[str, Any]) -> list[str]:
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            given = {each.arg for each in node.keywords if each.arg is not None}
            wrong += [
                f"{node.func.id}({name}=…)"
                for name in sorted(given - accepted(known[node.func.id]))
            ]
    return wrong


def strange_names(code: str) -> set[str]:
    """What is used and nowhere given; ``...`` is one, too: the reader's own goes there."""
    nodes = list(ast.walk(ast.parse(code)))
    used = {each.id for each in nodes if isinstance(each, ast.Name)}
    given = {each.id for each in nodes if isinstance(each, ast.Name) and is_stored(each)}
    given |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    given |= {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    given |= {
        (each.asname or each.name).split(".")[0] for each in nodes if isinstance(each, ast.alias)
    }
    dots = {"..." for each in nodes if isinstance(each, ast.Constant) and each.value is ...}
    return used - given - set(dir(builtins)) | dots


def is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def test_there_are_snippets_in_the_readme_and_in_the_guides():
    assert {param.id.split(":")[0] for param in BLOCKS} >= {"README.md", "docs/sinks.md"}


@pytest.mark.parametrize("code", BLOCKS)
def test_a_snippet_compiles_and_what_it_imports_and_passes_is_there(code):
    tree = ast.parse(code)
    gone = [
        f"from {module} import {name}"
        for module, name in our_imports(tree)
        if not hasattr(importlib.import_module(module), name)
    ]
    assert not gone
    assert strange_names(code) <= READERS, "import it, or define it"
    assert not unknown_arguments(tree, public())


@pytest.mark.parametrize("code", [each for each in BLOCKS if not strange_names(each.values[0])])
def test_a_complete_snippet_runs(code, tmp_path, monkeypatch):
    if "ExceptionRetryPolicy" in code and not hasattr(airflow.sdk, "ExceptionRetryPolicy"):
        pytest.skip("Airflow < 3.3 has no ExceptionRetryPolicy")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


def test_a_misspelt_argument_is_noticed():
    tree = ast.parse("SparkStreamingOperator(task_id='run', retries=3, checkpoint='/x')")
    assert unknown_arguments(tree, public()) == ["SparkStreamingOperator(checkpoint=…)"]


def test_a_block_with_a_name_of_the_readers_own_is_not_complete():
    assert not strange_names("import os.path as p\nfor x in (1, 2):\n    print(p.sep, x)")
    assert strange_names("def f(a):\n    return a\nf(df)") == {"df"}
    assert strange_names("run = [...]") == {"..."}


def test_the_page_on_testing_shows_an_app_and_a_test_that_are_files_here():
    shown = [each.values[0] for each in BLOCKS if str(each.id).startswith("docs/testing.md")]
    of_a_user = ROOT / "tests" / "integration" / "of_a_user"
    run = [
        (of_a_user / name).read_text(encoding="utf-8") for name in ("clicks.py", "test_clicks.py")
    ]
    assert shown[1:] == run


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    described = set(re.findall(r"^\.\. auto\w+:: (\S+)$", pages, re.MULTILINE))
    missing = {
        f"airflow_eos.{room}.{name}"
        for room in PUBLIC
        for name in importlib.import_module(f"airflow_eos.{room}").__all__
    } - described
    assert not missing


def test_no_public_name_is_hidden_by_a_module_of_the_same_name():
    """Whoever imports the module first would get that, and not the function."""
    rooms = [importlib.import_module(f"airflow_eos.{room}") for room in PUBLIC]
    hidden = [
        f"{room.__name__}.{name}"
        for room in rooms
        for name in room.__all__
        if hasattr(room, "__path__")  # a module by itself has none inside
        and importlib.util.find_spec(f"{room.__name__}.{name}") is not None
    ]
    assert not hidden


SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
TARGETS = dict(re.findall(r"^([a-z]+):(?!=)(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
SETTABLE = set(re.findall(r"\$\((?:or \$\()?([A-Z]+)\)", (ROOT / "Makefile").read_text()))
NUMBER = {"N": "41"}
"""What stands in a page for a number."""


def first_command(line: str) -> list[str]:
    """The words until a comment, a pipe or another command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda each: not set(each) & set("|&;<>"), lexer))


def told(tool: str) -> Iterator[Any]:
    """The command lines of a tool in the shell blocks of all pages, as the tool gets them."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in SHELL.finditer(text):
            for line in found[1].replace("\\\n", " ").splitlines():
                words = first_command(line)
                words = words[1:] if words[:1] == ["uvx"] else words
                if words[:1] == [tool]:
                    name = f"{page.relative_to(ROOT).as_posix()}: {line[:60]}"
                    yield pytest.param([NUMBER.get(each, each) for each in words[1:]], id=name)


def understood(command: Any, arguments: list[str], parent: Any = None) -> None:
    """Read the arguments as the command would, and go no further."""
    context = command.make_context(command.name, list(arguments), parent=parent)
    if hasattr(command, "resolve_command"):  # a group, of click or of the click that typer has
        rest = [*context._protected_args, *context.args]
        _, chosen, rest = command.resolve_command(context, rest)
        understood(chosen, rest, context)


COMMANDS, MAKES = list(told("airflow-eos")), list(told("make"))


def test_there_are_command_lines_in_the_readme_and_in_the_guides():
    assert {each.id.split(":")[0] for each in COMMANDS} >= {"README.md", "docs/recovery.md"}
    assert len(COMMANDS) > 20
    assert MAKES


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_command_line_of_a_page_is_understood(arguments):
    understood(typer.main.get_command(app), arguments)


def below(group: Any) -> Iterator[Any]:
    for each in group.commands.values():
        yield from below(each) if hasattr(each, "commands") else [each]


EACH = list(below(typer.main.get_command(app)))
EXAMPLES = [each.epilog.removeprefix("Example: airflow-eos ") for each in EACH if each.epilog]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_a_command_s_help_is_understood(example):
    understood(typer.main.get_command(app), first_command(example))


def test_each_command_s_help_has_an_example():
    assert {each.name for each in EACH if not each.epilog} == set()


@pytest.mark.parametrize(
    "wrong", ["recovr CHECKPOINT", "status", "status CHECKPOINT --wach", "accept C --batch x"]
)
def test_a_misspelt_command_line_is_noticed(wrong):
    with pytest.raises(Exception, match=r"No such|Missing|valid integer") as refused:
        understood(typer.main.get_command(app), wrong.split())
    assert "UsageError" in {each.__name__ for each in type(refused.value).__mro__}


@pytest.mark.parametrize("arguments", MAKES)
def test_a_page_makes_what_the_makefile_makes(arguments):
    targets = [each for each in arguments if "=" not in each]
    assert targets
    assert set(targets) <= TARGETS.keys()
    assert {each.split("=")[0] for each in arguments if "=" in each} <= SETTABLE


def test_what_a_sentence_calls_a_command_or_a_target_is_one():
    group: Any = typer.main.get_command(app)
    commands = set(group.commands)
    said = "\n".join(SHELL.sub("", page.read_text(encoding="utf-8")) for page in PAGES)
    assert set(re.findall(r"`airflow-eos ([a-z-]+)", said)) <= commands
    assert set(re.findall(r"`make ([a-z-]+)", said)) <= TARGETS.keys()


def test_the_page_of_commands_has_a_row_for_each_command():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    group: Any = typer.main.get_command(app)
    assert set(re.findall(r"^\| \[`([a-z-]+)`\]", page, re.MULTILINE)) == set(group.commands)

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from airflow_eos import __version__
from airflow_eos.cli import app as cli
from airflow_eos.errors import EosError


def test_an_error_of_ours_is_one_line_and_exit_status_2(monkeypatch, capsys):
    def fail():
        raise EosError("found a, expected b: do c")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "airflow-eos: found a, expected b: do c\n"


def test_without_arguments_the_help_names_the_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["airflow-eos"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "broker" in "".join(capsys.readouterr())


WITHOUT_JSON = {
    "ui",  # the page's own address
    "new",  # files, one a line
    "demo",  # a story for people
    "broker topic",
    "broker write",
    "broker read",  # rows, one a line
}


def test_each_command_that_answers_a_program_has_json():
    import typer

    def of(group, before=""):
        for name, each in group.commands.items():
            called = f"{before} {name}".strip()
            yield from of(each, called) if hasattr(each, "commands") else [(called, each)]

    found = dict(of(typer.main.get_command(cli.app)))
    without = {
        name for name, each in found.items() if not any("--json" in p.opts for p in each.params)
    }
    assert without == WITHOUT_JSON


ANSWERS = 1
"""What ``audit`` says of rows that are lost, ``doctor`` of a check that fails."""


FAULT = """
from airflow_eos.local import daemon
def status(): raise RuntimeError("a fault of ours")
daemon.status = status
"""


NO_TEXT = os.fsdecode(b"/nowhere/\xff")
"""The name of a file, as a disk and a shell take it; nothing that JSON can say."""


def run_by(python: str, *arguments: str, **how) -> subprocess.Popen[str]:
    """The command line, begun by lines that break something of it."""
    begin = f"{python}\nfrom airflow_eos.__main__ import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", begin, *arguments],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how},
    )


def test_an_exception_is_no_answer_of_a_command():
    process = run_by(FAULT, "broker", "status")
    _, said = process.communicate()
    assert "a fault of ours" in said, "with its trace"
    assert process.returncode == cli.ERROR != ANSWERS


@pytest.mark.parametrize(
    "arguments", [("--help",), ("doctor", "--rounds", "1"), ("doctor", "--rounds", "1", "--json")]
)
def test_what_nobody_has_read_is_no_answer(tmp_path, arguments):
    """As in ``airflow-eos audit … | head -1``, where the shell looks at both."""
    reads, writes = os.pipe()
    os.close(reads)
    located = [str(tmp_path)] if "doctor" in arguments else []
    with os.fdopen(writes, "w") as closed:
        process = run_by("", *arguments, *located, stdout=closed)
        _, said = process.communicate()
    assert said == ""
    assert process.returncode == cli.UNREAD != ANSWERS


@pytest.mark.parametrize(
    ("arguments", "broken", "said"),
    [
        (("plan", "--json"), "", "Missing argument"),  # whose capitals are the parser's
        (("plan", "c", "--jsn", "--json"), "", "--jsn"),
        (("plan", "/nowhere/c", "--json"), "", "names no pipeline"),
        (("broker", "status", "--json"), FAULT, "a fault of ours"),
        (("plan", "/x", "--kafka-config", NO_TEXT, "--json"), "", "cannot be read"),
        (("plan", "/x", f"--{NO_TEXT}", "--json"), "", "No such option"),
    ],
)
def test_a_program_that_asks_for_json_gets_it_of_each_error(arguments, broken, said):
    process = run_by(broken, *arguments)
    told, _ = process.communicate()
    assert said in json.loads(told)["message"]
    assert process.returncode == cli.ERROR


def test_a_command_line_without_its_libraries_is_an_error_and_no_answer():
    broken = "import sys; sys.modules['rich'] = None; import importlib.util as u; f = u.find_spec\n"
    broken += "u.find_spec = lambda name: None if name == 'rich' else f(name)"
    process = run_by(broken, "broker", "status")
    _, said = process.communicate()
    assert said == (
        "airflow-eos: rich not installed. The command line is an extra: "
        "pip install 'airflow-provider-eos[cli]'\n"
    )
    assert process.returncode == cli.ERROR != ANSWERS


def test_ctrl_c_while_the_commands_are_imported_shows_no_trace():
    strike = """
import os, signal, sys
class Strikes:
    def find_spec(self, name, *more):
        if name == "airflow_eos.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strikes())
"""
    process = run_by(strike, "--version")
    assert process.communicate() == ("", "")
    assert process.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("line", [("try",), ("try", "."), ("try", "--json")])
def test_try_in_the_folder_of_a_project_tries_that_one_and_not_one_of_ours(tmp_path, line):
    folder = tmp_path / "orders"
    (folder / "spark_apps").mkdir(parents=True)
    (folder / "spark_apps" / "orders.py").write_text("")  # and no rows: it ends there
    process = run_by("", *line, cwd=folder)
    _, said = process.communicate()
    assert "has no rows.tsv" in said
    assert process.returncode == cli.ERROR


@pytest.mark.parametrize(
    ("where", "line"),
    [("XDG_STATE_HOME", ("broker", "status")), ("AIRFLOW_EOS_CACHE", ("try", "--json"))],
)
def test_a_folder_that_cannot_be_used_is_a_sentence_and_no_trace(tmp_path, where, line):
    """A file stands in its place: that stops root, too."""
    file = tmp_path / "file"
    file.write_text("")
    process = run_by("", *line, env={**os.environ, where: str(file)}, cwd=tmp_path)
    told, said = process.communicate()
    assert said.startswith(f"airflow-eos: {file}")
    assert "Not a directory. Make room there, give yourself the right" in said
    assert "--json" not in line or json.loads(told)["error"] == "LocalEnvironmentError"
    assert process.returncode == cli.ERROR


def test_the_version_is_told():
    process = run_by("", "--version")
    told, _ = process.communicate()
    assert told == f"airflow-provider-eos {__version__}\n"
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", ["try", "new x", "status c", "plan c -b h:1 --json", "ui c"])
def test_in_a_folder_that_was_removed_a_command_says_so(tmp_path, arguments):
    """Typer and Python's own modules ask for it in many places, with a trace each."""
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f'cd "$1" && rmdir "$1" && exec "$2" -m airflow_eos {arguments}'
    ended = subprocess.run(
        ["/bin/sh", "-c", line, "sh", str(gone), sys.executable],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("airflow-eos: The folder that this command was started in")
    assert str(gone) in ended.stderr
    assert "cd" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ("LocalEnvironmentError" in ended.stdout) is ("--json" in arguments)


def ended(*arguments: str, cwd, stdout=subprocess.PIPE, **environment: str):
    """A command that has ended, in an environment of its own; its output is bytes."""
    return subprocess.run(
        [sys.executable, "-m", "airflow_eos", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "40", **environment},
        timeout=120,
        check=False,
    )


def test_a_terminal_of_few_letters_ends_no_command(tmp_path):
    """Bullets of a help, and names of topics and folders; JSON is UTF-8 all the same."""
    told = ended("plan", "--help", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"Exit status" in told.stdout
    told = ended("status", "ünï", "--json", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert told.returncode == 2
    assert "ünï" in json.loads(told.stdout)["message"]


@pytest.mark.parametrize("arguments", ["--help", "explain", "explain --json", "status nope --json"])
def test_a_full_disk_under_what_a_command_prints_is_a_sentence(tmp_path, arguments):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        told = ended(*arguments.split(), cwd=tmp_path, stdout=full)
    assert told.returncode == 2
    assert told.stderr.startswith(b"airflow-eos: ")
    assert b"Traceback" not in told.stderr

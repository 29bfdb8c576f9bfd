from __future__ import annotations

import sys

import pytest

from airflow_eos import cli
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

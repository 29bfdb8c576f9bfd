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

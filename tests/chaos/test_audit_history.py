"""``python -m tests.support.history FILE``: the checker on its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.test_checker import Events, duplicate, whole
from tests.support.history.__main__ import main


def audit(tmp_path: Path, events: Events, *options: str) -> int:
    """The exit status of the command on a file of these events."""
    file = tmp_path / "history.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["history", str(file), *options])
        return main()


def test_a_whole_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path, whole()) == 0
    assert "2 duplicated: 0" in capsys.readouterr().out


def test_a_violated_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = whole()
    duplicate(events)
    assert audit(tmp_path, events) == 1
    assert "2 duplicated: 1, first 'd' of key 'k' again at output 0:5" in capsys.readouterr().out
    assert audit(tmp_path, events, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert 2 in [violation["number"] for violation in told]

"""How the compiled loops come into a process that is at work."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from airflow_eos.arrow.records import kernels as loops

pytest.importorskip("numba")


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_loaded", [])


@pytest.mark.usefixtures("not_loaded")
def test_what_is_not_cached_is_compiled_in_a_process_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(loops, "is_cached", lambda _loop: False)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: asked.append(command[1:]))
    loops._load()
    assert asked == [["-m", "airflow_eos.arrow.records.compiling"]]
    assert loops._loaded


@pytest.mark.usefixtures("not_loaded")
def test_where_that_fails_numpy_goes_on_and_nothing_is_compiled_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(command: Any, **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    compiled_here: list[Any] = []
    monkeypatch.setattr(loops, "is_cached", lambda _loop: False)
    monkeypatch.setattr(subprocess, "run", fails)
    monkeypatch.setattr(loops, "try_each", compiled_here.append)
    loops._load()
    assert (loops._loaded, compiled_here) == ([], [])


@pytest.mark.usefixtures("not_loaded")
def test_without_the_extra_numpy_does_it_and_nobody_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent() -> None:
        raise ImportError("numba")

    monkeypatch.setattr(loops, "compiled_loops", absent)
    monkeypatch.setattr("structlog.get_logger", lambda *_: pytest.fail("told"))
    loops._load()
    assert loops._loaded == []

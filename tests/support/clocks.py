"""One module's clock, and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def clock_of(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Give a module another ``time``; a thread that an earlier test left goes on by the real one.

    ``monkeypatch.setattr("module.time.sleep", …)`` sets it for the whole process: whoever sleeps in
    the background takes a step of the test.
    """
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**vars(time) | functions))

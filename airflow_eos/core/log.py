"""Log lines of what a task may import: structlog is loaded with the first line, not before.

It takes 0.2 s with what it imports, and each of Spark's Python workers would pay that; nearly none
of them ever logs.
"""

from __future__ import annotations

from typing import Any


class Log:
    """structlog's logger of this name, looked up with each line: ``Log(name).warning(…)``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        """Return the logger's method of that level."""
        import structlog

        return getattr(structlog.get_logger(self._name), level)

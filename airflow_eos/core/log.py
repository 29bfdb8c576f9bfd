"""Log lines of the package: structlog is loaded with the first line, not before.

It takes 0.2 s with what it imports, and each of Spark's Python workers would pay that; nearly none
of them ever logs.
"""

from __future__ import annotations

import traceback
from typing import Any


class Log:
    """structlog's logger of this name, looked up with each line: ``Log(name).warning(…)``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, level: str) -> Any:
        """Return the logger's method of that level."""
        import structlog

        return getattr(structlog.get_logger(self._name), level)

    def exception(self, event: str, **said: Any) -> None:
        """Log the error that is being handled, with its traceback as a text.

        Where rich is installed structlog itself would print the local variables of each frame, too,
        and among those of a client are passwords.
        """
        self.error(event, stack=traceback.format_exc().rstrip(), **said)

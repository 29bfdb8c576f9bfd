"""What a deadline calls in the triggerer of a real Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any


async def write_down(file: str, **context: Any) -> None:
    """Say whose deadline it was."""
    Path(file).write_text(str(context.get("context")), encoding="utf-8")  # noqa: ASYNC240 - a line

"""Who took part appends what happened: one JSON line an event, from any process."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Lines are appended whole (O_APPEND), so that processes need no lock and a kill tears none."""

    def __init__(self, file: Path, who: str) -> None:
        self.file = file
        self._who = who

    def note(self, event: str, **what: Any) -> None:
        entry = {"event": event, "at_ms": now_ms(), "who": self._who, **what}
        line = json.dumps(entry).encode() + b"\n"
        target = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(target, line)
        finally:
            os.close(target)


def now_ms() -> int:
    return time.time_ns() // 1_000_000

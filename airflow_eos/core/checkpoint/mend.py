"""The repair of one file of Spark's, as a value: who reads the log reads it as it will be."""

from __future__ import annotations

import msgspec


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """The repair of one file: written again, or put aside.

    Attributes:
        content: what is written again; None: the file is put aside.
        because: how the repair is known to be right.
        readable: whole, and another driver's plan: only the next start puts the file right.
    """

    path: str
    found: str
    content: str | None = None
    because: str
    readable: bool = False

    def __str__(self) -> str:
        """Say what is wrong with the file and what becomes of it, for people."""
        done = "put aside" if self.content is None else "written again"
        return f"{self.path} {self.found}: {done}, {self.because}"

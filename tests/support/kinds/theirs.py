"""The kind of a user's own, in the table of the tests like any other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.kinds.place import Place, Rows, Rowwise
from tests.support.kinds.shelf import ShelfSink, opened, staged

INSTALLED = Path(__file__).with_name("installed")
"""A folder with the package's metadata: on the path, its entry point is found."""


class Shelf(Rowwise):
    def sink(self, at: Place) -> ShelfSink:
        return ShelfSink(f"{at.folder}/shelf.sqlite")

    def read(self, at: Place) -> dict[str, Rows]:
        with opened(f"{at.folder}/shelf.sqlite") as base:
            found = base.execute("SELECT key, value FROM rows").fetchall()
        return {"sink": Counter((key.decode(), value.decode()) for key, value in found)}

    def left(self, at: Place) -> int:
        return staged(f"{at.folder}/shelf.sqlite")

"""Which files a version of a Delta table has added, as long as its log goes back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote


def added_before(folder: Path, files: Collection[Path]) -> frozenset[Path]:
    """Those that a commit names: readers can go back to its version.

    The whole log is read: when a file was written and when a commit was, two machines may have
    said. Names of ours have no character that is quoted in JSON. A file that is not there any more
    is not among them: nobody can take it away.
    """
    wanted = {quote(file.name).encode(): file for file in files if file.exists()}
    found = set()
    for commit in (folder / "_delta_log").glob("*.json") if wanted else ():
        text = commit.read_bytes()
        found |= {file for name, file in wanted.items() if name in text}
    return frozenset(found)

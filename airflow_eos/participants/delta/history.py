"""Which files a version of a Delta table has added, as long as its log goes back."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

_MARGIN_NS = 3_600 * 10**9  # by which the clock of a file may be ahead of a commit's


def added_before(folder: Path, files: Collection[Path]) -> frozenset[Path]:
    """Those that a commit since they were written names: readers can go back to its version.

    Names of ours have no character that is quoted in JSON. A file that is not there any more is
    not among them: nobody can take it away.
    """
    wanted = {quote(file.name).encode(): file for file in files if file.exists()}
    since_ns = min((file.stat().st_mtime_ns for file in wanted.values()), default=0) - _MARGIN_NS
    found = set()
    for commit in (folder / "_delta_log").glob("*.json") if wanted else ():
        if commit.stat().st_mtime_ns >= since_ns:
            text = commit.read_bytes()
            found |= {file for name, file in wanted.items() if name in text}
    return frozenset(found)

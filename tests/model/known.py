"""For each broken rule the history that shows it: a search of minutes, found once."""

from __future__ import annotations

import json
from pathlib import Path

KNOWN = Path(__file__).with_name("known.json")
"""``{rule: seed}``; ``python -m tests.model --learn`` writes it again."""

AT_MOST = 3_000
"""Histories that are tried for a rule before it counts as one that nothing shows."""


def known() -> dict[str, int]:
    """The seeds; a rule that is not in it is searched for."""
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}

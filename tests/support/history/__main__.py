"""``python -m tests.support.history FILE [--json]``: judge the record of a run under faults."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from airflow_eos.errors import printable
from tests.support.history.read import PROPERTIES, read_history
from tests.support.history.rules import check

VIOLATED = 1


def main() -> int:
    """Print each property with what violates it; the exit status says whether anything does."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.history", description=__doc__)
    parser.add_argument("file", type=Path, help="as `make chaos` records them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    violations = check(read_history(arguments.file))
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(violations).decode() + "\n")
    else:
        found = {violation.number: violation for violation in violations}
        for number, name in PROPERTIES.items():
            text = str(found[number]) if number in found else f"{number} {name}: 0"
            sys.stdout.write("\n".join(map(printable, text.splitlines())) + "\n")
    return VIOLATED if violations else 0


if __name__ == "__main__":
    sys.exit(main())

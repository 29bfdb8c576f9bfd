"""``python -m tests.brokers``: the core against each minor release of Apache Kafka, as it ships.

Exit status 1 where anything failed; the table then says what.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.brokers.releases import RELEASES
from tests.support.written import RESULT, held, run_and_write

HERE = Path(__file__).parent
SUITES = ("core", "hanging", "acls", "two_phase", "upgrade", "another")
ANOTHER = "kfake"
"""franz-go's; the name of its row."""
COLUMNS = {
    "first start": r"test_a_first_start",
    "died at prepared, decided, settled-some, settled": r"test_a_driver_that_died",
    "timeout, replay": r"test_rows_whose_promise_timed_out",
    "recovery": r"test_recovery_alone",
    "offsets of a group": r"test_the_offsets_of_a_consumer_group",
    "hanging": r"test_one_that",
    "no timer (KIP-939)": r"test_a_promise_outlives",
    "SASL and the least ACLs": r"test_(the_app|recovery)_needs_no_more",
}

RUN, UPGRADED = "commit, date", "goes on"
ABOUT = (
    "Written by `make brokers`, or in parts by `python -m tests.brokers -k 3.9.1`. One broker of "
    "each release and of its `transaction.version` (`tv`), from the repository that publishes "
    "them, in KRaft mode, with Kafka's own defaults but for the number of copies; and one that is "
    "not Apache Kafka, franz-go's `kfake`. No row was lost or came twice where a sign is ✓; a "
    "blank was not run. Without ZooKeeper, Kafka has an authorizer since 3.2 and can be upgraded "
    "since 3.3."
)
Rows = dict[str, dict[str, str]]


def page(report: Path, commit: str) -> str:
    """Releases down, what was done across; ✓ held, ✗ did not, a blank was not run.

    A run may be of some releases only: the other rows stay as they are, with their own commit.
    """
    cases = list(ET.parse(report).iter("testcase"))
    of: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        name = case.get("name", "")
        found = re.search(rf"\[(\d+\.\d+\.\d+-tv\d|{ANOTHER})\b", name)
        if found is None:
            of[_words(name)][UPGRADED].append(held(case))
            continue
        for column, pattern in COLUMNS.items():
            if re.match(pattern, name):
                of[found[1]][column].append(held(case))
    rows = _rows(HERE / RESULT)
    for name, columns in of.items():
        row = rows.setdefault(name, {})
        now = f"{commit}, {datetime.now(UTC):%Y-%m-%d}"
        others = {column for column, sign in row.items() if sign} - columns.keys() - {RUN}
        before = row.get(RUN, "") if others else ""  # what stays has its own commit
        row |= {column: _sign(ended) for column, ended in columns.items()}
        row[RUN] = before if now in before else "; ".join(filter(None, (before, now)))
    lines = ["# The core against Apache Kafka's releases", "", ABOUT, ""]
    lines += _table(("broker", *COLUMNS, RUN), rows, [*map(str, RELEASES), ANOTHER])
    upgrades = sorted(name for name, row in rows.items() if UPGRADED in row)
    lines += ["", *_table(("the broker beneath a pipeline changes", UPGRADED, RUN), rows, upgrades)]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Rows, names: Sequence[str]) -> list[str]:
    told = [(n, *(rows[n].get(each, "") for each in columns[1:])) for n in names if n in rows]
    return [f"| {' | '.join(each)} |" for each in (columns, ["---"] * len(columns), *told)]


def _rows(file: Path) -> Rows:
    """What former runs have said, by the first column of each table."""
    found: Rows = {}
    columns: list[str] = []
    for line in file.read_text().splitlines() if file.exists() else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif set(cells) != {"---"}:
            found[cells[0]] = dict(zip(columns[1:], cells[1:], strict=True))
    return found


def _sign(ended: Iterable[bool]) -> str:
    found = list(ended)
    return ("✓" if all(found) else "✗") if found else ""


def _words(name: str) -> str:
    test, _, parameters = name.partition("[")
    said = test.removeprefix("test_").replace("_", " ")
    return f"{parameters.rstrip(']').replace('-', ' ')}: {said}" if parameters else said


if __name__ == "__main__":
    suites = [str(HERE / f"{each}.py") for each in SUITES]
    sys.exit(run_and_write(HERE, __doc__, suites, page, jobs=1, in_parts=True))

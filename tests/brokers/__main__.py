"""``python -m tests.brokers``: the core against each minor release of Apache Kafka, as it ships.

Exit status 1 where anything failed; the table then says what.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.brokers.releases import RELEASES
from tests.support.written import held, of_the_run, run_and_write

HERE = Path(__file__).parent
SUITES = ("core", "hanging", "acls", "upgrade", "another")
ANOTHER = "kfake"
"""franz-go's; the name of its row."""
COLUMNS = {
    "first start": r"test_a_first_start",
    "died at prepared, decided, settled-some, settled": r"test_a_driver_that_died",
    "timeout, replay": r"test_rows_whose_promise_timed_out",
    "recovery": r"test_recovery_alone",
    "offsets of a group": r"test_the_offsets_of_a_consumer_group",
    "hanging": r"test_one_that",
    "SASL and the least ACLs": r"test_(the_app|recovery)_needs_no_more",
}


def page(report: Path, commit: str) -> str:
    """Releases down, what was done across; ✓ held, ✗ did not, a blank was not run."""
    cases = list(ET.parse(report).iter("testcase"))
    of: dict[tuple[str, str], list[bool]] = defaultdict(list)
    upgrades: dict[str, bool] = {}
    for case in cases:
        name = case.get("name", "")
        found = re.search(rf"(\d+\.\d+\.\d+-tv\d|{ANOTHER})", name)
        if found is None:
            upgrades[_words(name)] = held(case)
            continue
        for column, pattern in COLUMNS.items():
            if re.match(pattern, name):
                of[found[1], column].append(held(case))
    about = (
        "Written by `make brokers`. One broker of each release, from the repository that publishes "
        "them, in KRaft mode, with Kafka's own defaults but for the number of copies; and one that "
        "is not Apache Kafka, franz-go's `kfake`. No row was lost or came twice where a sign is ✓; "
        "a blank was not run."
    )
    lines = [
        "# The core against Apache Kafka's releases",
        "",
        about,
        "",
        f"{sum(map(held, cases))} of {len(cases)} held. {of_the_run(commit)}.",
        "",
        f"| broker | transaction.version | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    for release in RELEASES:
        cells = [_sign(of[str(release), column]) for column in COLUMNS]
        if any(cells):
            lines.append(f"| {release.version} | {release.transactions} | {' | '.join(cells)} |")
    cells = [_sign(of[ANOTHER, column]) for column in COLUMNS]
    lines.append(f"| {ANOTHER} | 2 | {' | '.join(cells)} |")
    lines += ["", "| the broker beneath a pipeline changes | |", "|---|---|"]
    lines += [f"| {what} | {_sign([ended])} |" for what, ended in upgrades.items()]
    return "\n".join(lines) + "\n"


def _sign(ended: Iterable[bool]) -> str:
    found = list(ended)
    return ("✓" if all(found) else "✗") if found else ""


def _words(name: str) -> str:
    test, _, parameters = name.partition("[")
    said = test.removeprefix("test_").replace("_", " ")
    return f"{parameters.rstrip(']').replace('-', ' ')}: {said}" if parameters else said


if __name__ == "__main__":
    suites = [str(HERE / f"{each}.py") for each in SUITES]
    sys.exit(run_and_write(HERE, __doc__, suites, page, jobs=1))

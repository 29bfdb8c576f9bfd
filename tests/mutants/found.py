"""``python -m tests.mutants.found``: which tests of ``make test`` each mutant names, as JSON.

Of mutants that name none of the unit tests, which ``make test`` runs all.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

import pytest
from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression

from tests.mutants.catalogue import Mutant, read_catalogue
from tests.suite import EXPRESSION


class Found:
    """What pytest has collected, asked for each mutant as its trial would ask."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self._mutants = mutants
        self.of_mutants: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What is left of the tests once those of other commands are not."""
        by_file = defaultdict(list)
        for item in session.items:
            by_file[item.nodeid.partition("::")[0]].append(item)
        self.of_mutants = {
            mutant.name: [
                item.nodeid
                for path in mutant.paths
                for item in by_file[path.partition("::")[0]]
                if _is_named(item, path, mutant.keyword)
            ]
            for mutant in self._mutants
        }


def _is_named(item: pytest.Item, path: str, keyword: str) -> bool:
    if not f"{item.nodeid}::".startswith((f"{path}::", f"{path}[")):
        return False
    return not keyword or Expression.compile(keyword).evaluate(KeywordMatcher.from_item(item))


if __name__ == "__main__":
    elsewhere = [mutant for mutant in read_catalogue() if not mutant.names_a_unit_test]
    found = Found(elsewhere)
    files = {path.partition("::")[0] for mutant in elsewhere for path in mutant.paths}
    asked = ["--collect-only", "-qq", "--no-summary", "-p", "no:cacheprovider", "-m", EXPRESSION]
    status = pytest.main([*asked, *sorted(files)], plugins=[found])
    sys.stdout.write("\n" + json.dumps(found.of_mutants))
    sys.exit(status)

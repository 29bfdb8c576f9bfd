"""The list of mutations, read from ``catalogue.toml``, and what makes an entry a sound one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.toml")


class UnsoundMutantError(Exception):
    """An entry says nothing about the product as it is: its text is gone, or not alone."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of the product that breaks a rule, and the tests that must fail for it.

    ``old`` occurs exactly once in ``file``; ``new`` takes its place. ``tests`` are what pytest is
    given: paths, node ids, or options such as ``-k``.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and node ids among ``tests``."""
        return tuple(each for each in self.tests if each.startswith("tests/"))

    @property
    def names_a_unit_test(self) -> bool:
        """Whether one of ``tests`` is among those that ``make test`` runs whatever their marks."""
        return any(path.startswith("tests/unit/") for path in self.paths)

    @property
    def keyword(self) -> str:
        """What ``-k`` asks for; empty: every test."""
        return self.tests[self.tests.index("-k") + 1] if "-k" in self.tests else ""

    def applied(self, text: str) -> str:
        """The text of ``file`` with the mutation in it.

        Raises:
            UnsoundMutantError: ``old`` does not occur exactly once, or nothing changes.
        """
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise UnsoundMutantError(
                f"{self.name}: its text occurs {found} times in {self.file}, expected once, and "
                f"another in its place. Amend the entry in {CATALOGUE.name}."
            )
        return text.replace(self.old, self.new)


def read_catalogue(path: Path = CATALOGUE) -> list[Mutant]:
    """The mutants in the order of the file; each table's name is the mutant's."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return [msgspec.convert({"name": name, **table}, Mutant) for name, table in tables.items()]

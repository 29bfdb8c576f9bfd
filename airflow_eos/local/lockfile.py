"""The checksum lists of the jars, as data.

One list a bundle, in ``locks/``: a line holds the SHA-256, the size in bytes and the Maven
coordinates of one jar, with a classifier where it has one, and with an extension where it is no
jar. The list is the whole bundle: nothing is resolved transitively, so what runs is what was
tested. To add a version, fetch its jars once, look at them, and write their list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

_MAVEN = "http://ant.apache.org/ivy/maven"
LOCKS = Path(__file__).parent / "locks"


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar and what it must look like.

    Attributes:
        organisation: Maven group.
        module: Maven artifact.
        revision: Maven version.
        size: bytes.
        sha256: checksum in hexadecimal.
        classifier: of Maven, for a jar that is not the module's main one.
        extension: of Maven, for an archive that is no jar.
    """

    organisation: str
    module: str
    revision: str
    size: int
    sha256: str
    classifier: str | None = None
    extension: str = "jar"

    @property
    def file_name(self) -> str:
        """Name of the file in the cache folder."""
        return f"{self.module}-{self.revision}.{self.extension}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Jars that belong together, and the name of their folder in the cache."""

    name: str
    jars: tuple[Jar, ...]

    @property
    def folder_name(self) -> str:
        """Changes with every checksum, so a changed list never meets an old folder."""
        digest = hashlib.sha256("".join(jar.sha256 for jar in self.jars).encode()).hexdigest()
        return f"{self.name}-{digest[:12]}"

    def ivy_module(self) -> str:
        """An Ivy file that asks for exactly these jars."""
        # The explicit artifact keeps source jars out and takes those packaged as OSGi bundles in.
        wanted = "".join(
            f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)}"
            f' rev={quoteattr(jar.revision)} transitive="false" conf="default->master">'
            f"<artifact name={quoteattr(jar.module)} type={quoteattr(jar.extension)}"
            f" ext={quoteattr(jar.extension)}{_classified(jar)}/>"
            "</dependency>"
            for jar in self.jars
        )
        return (
            f'<ivy-module version="2.0" xmlns:m="{_MAVEN}">'
            f'<info organisation="airflow-eos" module="{self.name}"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{wanted}</dependencies></ivy-module>"
        )


def read_bundle(name: str) -> Bundle:
    """Read the list ``locks/<name>.lock``.

    Raises:
        FileNotFoundError: there is no such list.
    """
    lines = (LOCKS / f"{name}.lock").read_text(encoding="utf-8").splitlines()
    return Bundle(name, tuple(_parse(line) for line in lines if not line.startswith("#")))


def locked_versions(prefix: str) -> list[str]:
    """Versions for which a list ``locks/<prefix>-<version>.lock`` exists, oldest first."""
    names = [path.stem.removeprefix(f"{prefix}-") for path in LOCKS.glob(f"{prefix}-*.lock")]
    return sorted(names, key=_numbers)


def nearest_patch(version: str, known: Sequence[str]) -> str | None:
    """Of the same minor version: the version itself, or the newest before it, or the first after.

    None where no version of that minor is known.
    """
    wanted = _numbers(version)
    same_minor = [each for each in known if _numbers(each)[:2] == wanted[:2]]
    before = [each for each in same_minor if _numbers(each) <= wanted]
    if before:
        return max(before, key=_numbers)
    return min(same_minor, key=_numbers, default=None)


def _numbers(version: str) -> tuple[int, ...]:
    """Major, minor and patch; what follows them (``.dev1``) is left out."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _parse(line: str) -> Jar:
    sha256, size, coordinates = line.split()
    organisation, module, revision, *special = coordinates.split(":")
    return Jar(organisation, module, revision, int(size), sha256, *special)


def _classified(jar: Jar) -> str:
    return "" if jar.classifier is None else f" m:classifier={quoteattr(jar.classifier)}"

"""Which installed distributions the Spark side needs, and which files they are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from airflow_eos.errors import ConfigurationError

OURS = "airflow-provider-eos"
_NEVER = ("..", "/", "pyarrow/tests/", "pyarrow/include/")
_FOR_COMPILERS = (".pyc", ".pyi", ".pyx", ".pxd", ".a", ".h", ".hpp")
_SPARKS_OWN = frozenset({"pyspark", "pyspark-client", "py4j"})
"""Each executor has these from the Spark that runs it; a second copy could be another version."""


def needed(
    extras: Sequence[str] = (), also: Sequence[str] = ()
) -> dict[str, metadata.Distribution]:
    """The distributions that our package requires, and those they require, without our own.

    What is installed here is taken, so executors get the versions that this environment has.

    Args:
        extras: of our package, such as ``postgres``.
        also: further installed distributions, such as what the functions of an app import.

    Returns:
        By normalised name, in alphabetical order.

    Raises:
        ConfigurationError: an extra that we do not have, or a distribution that is not installed.
    """
    ours = _installed(OURS, wanted_by="this command")
    unknown = sorted(set(extras) - set(ours.metadata.get_all("Provides-Extra") or ()))
    if unknown:
        raise ConfigurationError(
            f"{OURS} has no extra {', '.join(unknown)}; it has "
            f"{', '.join(sorted(ours.metadata.get_all('Provides-Extra') or ()))}. Name another "
            "distribution with --also."
        )
    found: dict[str, metadata.Distribution] = {}
    asked = [(name, wished, OURS) for name, wished in _required(ours, extras)]
    asked += [(name, (), "--also") for name in also]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while asked:
        name, wished, by = asked.pop()
        if (name := _normal(name)) in _SPARKS_OWN or (name, wished) in seen:
            continue
        seen.add((name, wished))
        if name == OURS:
            asked += [(*each, OURS) for each in _required(ours, wished)]
            continue
        found[name] = _installed(name, wanted_by=by)
        asked += [(*each, name) for each in _required(found[name], wished)]
    return dict(sorted(found.items()))


def files_of(distribution: metadata.Distribution) -> dict[str, Path]:
    """The files that it put into ``site-packages``, by their path there.

    Raises:
        ConfigurationError: it does not list them, or was installed from a folder of sources.
    """
    name = distribution.metadata["Name"]
    listed = distribution.files
    if not listed or _is_editable(distribution):
        raise ConfigurationError(
            f"{name} does not list its files, or is installed in editable mode; what travels "
            f"to executors comes from a wheel. Try: pip install --force-reinstall {name}"
        )
    kept = {f.as_posix(): Path(str(f.locate())) for f in listed if _travels(f.as_posix())}
    lost = [path for path in kept.values() if not path.is_file()]
    if lost:
        raise ConfigurationError(
            f"{name} lists {lost[0]}, which is not there ({len(lost)} such files): "
            "install it again."
        )
    return kept


def _travels(path: str) -> bool:
    """Not programs, which name an interpreter of here, nor what only compilers and tests read."""
    return not path.startswith(_NEVER) and not path.endswith(_FOR_COMPILERS)


def _is_editable(distribution: metadata.Distribution) -> bool:
    """PEP 660 and PEP 610: its files are then where its sources are."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _required(
    distribution: metadata.Distribution, extras: Iterable[str]
) -> list[tuple[str, tuple[str, ...]]]:
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The package 'packaging' is needed to read what distributions require, and is not "
            "installed: pip install packaging"
        ) from error
    found = []
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append((requirement.name, tuple(sorted(requirement.extras))))
    return found


def _installed(name: str, *, wanted_by: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"{name}, which {wanted_by} requires, is not installed in this environment, from which "
            f"executors get what they need: pip install {name}"
        ) from None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

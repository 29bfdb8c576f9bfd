"""This package as one zip for Spark's ``--py-files``.

The Spark side needs neither Airflow nor an installation of this package on every node: the zip
travels with the app. Its dependencies (see ``pyproject.toml``) must be on the executors.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from airflow_eos.errors import ConfigurationError

_DRIVER_AND_EXECUTORS = (
    "protocol",
    "checkpoint",
    "kafka",
    "participants",
    "audit",
    "figures",
    "recovery",
    "sinks",
    "sources",
)
_NOT_THERE = (
    "__main__.py",
    "airflow_cli.py",
    "airflow_floor.py",
    "cli.py",
    "get_provider_info.py",
)
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: the same sources give the same bytes."""


def build_archive(path: Path) -> Path:
    """Write what runs inside Spark to ``path`` (.zip) and return it; the same bytes every time.

    Raises:
        ConfigurationError: The path is no .zip, or cannot be written.
    """
    if path.suffix != ".zip":
        raise ConfigurationError(f"{path}: Spark takes Python packages as .zip; name it so.")
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in spark_side().items():
                entry = zipfile.ZipInfo(name, _LONG_AGO)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    return path


def spark_side() -> dict[str, Path]:
    """The files of this package that run inside Spark, by their name in an archive."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(set(root.glob("*.py")) - {root / name for name in _NOT_THERE})
    for room in _DRIVER_AND_EXECUTORS:
        files += sorted((root / room).rglob("*.py"))
    return {file.relative_to(root.parent).as_posix(): file for file in files}

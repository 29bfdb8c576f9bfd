"""Checkpoints to look at: recorded ones, and one that a test puts together."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pytest

from airflow_eos.ops.page.views import PipelineEntry, Reach

RECORDED = Path(__file__).parents[3] / "recorded" / "format_1" / "recording.tar.xz"


def listed(location, **changes) -> PipelineEntry:
    told: dict[str, Any] = {
        "name": "orders",
        "location": str(location),
        "storage": lambda: None,
        "reach": Reach,
    }
    return PipelineEntry(**(told | changes))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> dict[str, Path]:
    """The checkpoints of two pipelines that were killed with a batch in flight."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    names = ("killed-settling", "killed-undecided")
    return {name: folder / name / "checkpoint" for name in names}


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file with its time and what is in it."""
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in folder.rglob("*")
        if file.is_file()
    }

"""The same tests for each kind of table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Stage


@pytest.fixture(params=sorted(KINDS))
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(KINDS[request.param], tmp_path).made()

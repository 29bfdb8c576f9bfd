"""Places to die at."""

from __future__ import annotations

from tests.integration.hazards.conftest import die_at

__all__ = ["die_at"]

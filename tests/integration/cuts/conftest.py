"""A pipeline of bookings on real servers."""

from tests.integration.kinds.conftest import delivery

__all__ = ["delivery"]

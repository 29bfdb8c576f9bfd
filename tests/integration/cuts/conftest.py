"""A pipeline of bookings on real servers, and one that died, on a broker alone."""

from tests.integration.kafka.conftest import raw_kafka
from tests.integration.kinds.conftest import delivery
from tests.integration.recovery.conftest import dead

__all__ = ["dead", "delivery", "raw_kafka"]

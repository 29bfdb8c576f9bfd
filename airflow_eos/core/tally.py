"""Approximate retry counters of this process, for metrics.

It imports nothing of the package, since code that retries knows nothing of metrics.
"""

from __future__ import annotations

from collections import Counter

RETRY_COUNTS: Counter[str] = Counter()
"""Retries by ``kafka`` and ``store``. Two threads at once may count two retries as one."""

"""Approximate retry counters of this process, for metrics.

At the very bottom, since whoever asks again knows nothing of figures.
"""

from __future__ import annotations

from collections import Counter

RETRY_COUNTS: Counter[str] = Counter()
"""By ``kafka`` and ``store``. Two threads at once may count one wait for two."""

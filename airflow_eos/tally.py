"""How often this process has waited to ask again, by whom: for the figures, and never exact.

At the very bottom, since whoever asks again knows nothing of figures.
"""

from __future__ import annotations

from collections import Counter

RETRY_COUNTS: Counter[str] = Counter()
"""By ``kafka`` and ``store``. Two threads at once may count one wait for two."""

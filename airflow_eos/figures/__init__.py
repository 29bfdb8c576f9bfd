"""Figures and traces of a driver, by OpenTelemetry; off unless its environment variables ask.

- :mod:`.events`: what an observer is told, and that its errors harm nobody
- :mod:`.observer`: the decision log, the participants and the store, as they tell it
- :mod:`.recorder`: one batch from plan to commit, as steps
- :mod:`.recorder`: every metric, once
- :mod:`.recorder`: events in, figures and traces out
- :mod:`.exporting`: where they are sent, as the environment says

``docs/figures.md`` has the table. A figure is evidence for people: nothing is decided by one.
"""

from __future__ import annotations

from airflow_eos.figures.observer import (
    observed_decisions,
    observed_participant,
    observed_store,
    observer_of,
)

__all__ = ["observed_decisions", "observed_participant", "observed_store", "observer_of"]

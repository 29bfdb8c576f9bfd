"""A second driver on the same checkpoint, beside the first or while that one stands still."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from tests.chaos.settings import PATIENT_S
from tests.chaos.spark_loop import latest_commit

if TYPE_CHECKING:
    from tests.chaos.processes import Process
    from tests.chaos.scenario import Incident
    from tests.chaos.stage import Stage


def start_rival(stage: Stage, number: int, incident: Incident) -> Process:
    settings = stage.settings(f"rival-{number}", incident)
    most = settings.batch_rows * incident.rival_rows
    return stage.start(msgspec.structs.replace(settings, batch_rows=most))


def take_over(stage: Stage, driver: Process, number: int, incident: Incident) -> Process:
    """Another driver goes on beside one that stands still; then that one wakes."""
    if incident.timeout_s < PATIENT_S:
        time.sleep(incident.timeout_s + 0.4)
    before = latest_commit(stage.checkpoint)
    rival = start_rival(stage, number, incident)
    if incident.past:
        stage.await_batches(rival, before + incident.past)
    time.sleep(incident.left_s)
    stage.journal.note("woken", name=driver.settings.name)
    driver.signal("CONT", group=True)
    time.sleep(stage.chance.uniform(0.2, 1.2))
    return rival

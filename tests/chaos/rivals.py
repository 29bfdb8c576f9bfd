"""A second driver on the same checkpoint: beside the first, or while that one stands still."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.checkpoint import newest_term
from airflow_eos.checkpoint.standby import hand_over, standbys
from airflow_eos.errors import EosError
from tests.chaos.aftermath import recover_at_once
from tests.chaos.processes import wait_until
from tests.chaos.settings import PATIENT_S
from tests.chaos.spark_loop import latest_commit

if TYPE_CHECKING:
    from tests.chaos.processes import Process
    from tests.chaos.scenario import Incident
    from tests.chaos.stage import Stage


def start_rival(stage: Stage, number: int, incident: Incident, *, failpoints: str = "") -> Process:
    settings = stage.settings(f"rival-{number}", incident, failpoints=failpoints)
    most = settings.batch_rows * incident.rival_rows
    return stage.start(msgspec.structs.replace(settings, batch_rows=most))


def take_over(stage: Stage, driver: Process, number: int, incident: Incident) -> Process:
    """Another driver goes on beside one that stands still; then that one wakes."""
    if incident.timeout_s < PATIENT_S * stage.pace:
        time.sleep(incident.timeout_s + 0.4)
    before = latest_commit(stage.store)
    rival = start_rival(stage, number, incident)
    if incident.past:
        stage.await_batches(rival, before + incident.past)
    time.sleep(incident.left_s)
    stage.journal.note("woken", name=driver.settings.name)
    driver.signal("CONT", group=True)
    time.sleep(stage.chance.uniform(0.2, 1.2))
    return rival


def race(stage: Stage, number: int, incident: Incident) -> None:
    """Two drivers from the start, and what strikes the first that comes to it, or one by chance.

    Whoever is left goes on for as many batches as the incident says; then nobody is left.
    """
    of_both = "" if incident.behind else incident.failpoints
    driver = stage.start(stage.settings(f"driver-{number}", incident, failpoints=of_both))
    if incident.behind:
        stage.await_work(driver)
    time.sleep(incident.apart_s)
    rival = start_rival(stage, number, incident, failpoints=incident.failpoints)
    both = (driver, rival)
    stage.await_work(driver)
    reached = True
    if incident.behind:
        reached = _end_before(stage, driver, rival, incident)
    if incident.failpoints:
        place = incident.failpoints.partition("=")[0]
        marks = [Path(each.settings.failpoints_dir) / f"{place}.hit" for each in both]
        wait_until(
            lambda: any(mark.exists() for mark in marks) or not _alive(both) or stage.idle(),
            stage.reached_s,
            every_s=stage.look_s,
        )
        reached = reached and any(mark.exists() for mark in marks)
    elif incident.signal:
        time.sleep(incident.at_s)
        stage.chance.choice(both).signal(incident.signal, group=incident.group)
    stage.journal.note("fault", fault=incident.fault, reached=reached)
    stage.feed(stage.chance.choice((0, 20, 40)))
    if incident.beside:
        recover_at_once(stage, number, incident)
    if incident.past and (left := _alive((rival, driver) if incident.behind else both)):
        stage.await_batches(left[0], latest_commit(stage.store) + incident.past)
    if incident.behind == "STOP":
        stage.journal.note("woken", name=driver.settings.name)
        driver.signal("CONT", group=True)
        time.sleep(stage.chance.uniform(0.2, 1.2))
    for each in stage.chance.sample(both, len(both)):
        stage.kill(each, incident)


def _end_before(stage: Stage, driver: Process, rival: Process, incident: Incident) -> bool:
    """Let the first end, or stand still, once the second stands by; False: it never did."""

    def stands_by() -> bool:
        return any(each.behind == newest_term(stage.store) > 0 for each in standbys(stage.store))

    def settled() -> bool:
        return stands_by() or len(_alive((driver, rival))) < 2

    wait_until(settled, stage.start_s, every_s=stage.look_s)
    if not stands_by() or driver.exit_code is not None:
        return False
    stage.feed(incident.feed)
    time.sleep(stage.chance.uniform(0.0, incident.at_s))
    if incident.behind == "KILL":
        stage.kill(driver, incident)
    elif incident.behind == "STOP":
        driver.signal("STOP", group=incident.group)
    else:
        try:
            hand_over(stage.store, requested_by="a person", reason="a history")
        except EosError as error:
            stage.journal.note("not handed over", why=str(error))
            return False
        if driver.wait(stage.start_s) is None:
            return False
    stage.feed(incident.feed)

    def follows() -> bool:
        return stage.admitted(rival) or rival.exit_code is not None

    if not wait_until(follows, stage.start_s, every_s=stage.look_s):
        stage.journal.note("crash", text=f"{rival.settings.name} stood by and did not follow")
    return True


def _alive(drivers: Sequence[Process]) -> list[Process]:
    return [each for each in drivers if each.exit_code is None]
